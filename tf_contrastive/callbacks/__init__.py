"""Keras callbacks of a run: checkpoints, progress, warnings, its pace.

They run on the host, between two executions of the training step.
"""

from tf_contrastive.callbacks.announcement import announce
from tf_contrastive.callbacks.checkpointing import CheckpointCallback
from tf_contrastive.callbacks.progress import (
    NARROW_STD,
    CollapseWarning,
    Progress,
)
from tf_contrastive.callbacks.reports import reports
from tf_contrastive.callbacks.steps_per_execution import (
    AdaptiveStepsPerExecution,
)
from tf_contrastive.checkpoints import NonFiniteError

__all__ = [
    "NARROW_STD",
    "AdaptiveStepsPerExecution",
    "CheckpointCallback",
    "CollapseWarning",
    "NonFiniteError",
    "Progress",
    "announce",
    "reports",
]
