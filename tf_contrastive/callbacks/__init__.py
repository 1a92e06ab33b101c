"""Keras callbacks of a run: checkpoints, progress, warnings, its pace.

They run on the host, between two executions of the training step.
"""

from tf_contrastive.callbacks.checkpointing import (
    CheckpointCallback,
    NonFiniteError,
)
from tf_contrastive.callbacks.progress import (
    CollapseWarning,
    DeliveredExamples,
    Progress,
)
from tf_contrastive.callbacks.steps_per_execution import (
    AdaptiveStepsPerExecution,
)

__all__ = [
    "AdaptiveStepsPerExecution",
    "CheckpointCallback",
    "CollapseWarning",
    "DeliveredExamples",
    "NonFiniteError",
    "Progress",
]
