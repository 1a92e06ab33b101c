"""Keras callbacks of a run: checkpoints, progress, warnings, its pace."""

from tf_contrastive.callbacks.checkpointing import CheckpointCallback
from tf_contrastive.callbacks.progress import CollapseWarning, Progress
from tf_contrastive.callbacks.reports import announce, reports
from tf_contrastive.callbacks.steps_per_execution import (
    AdaptiveStepsPerExecution,
)
from tf_contrastive.checkpoints import NonFiniteError

__all__ = [
    "AdaptiveStepsPerExecution",
    "CheckpointCallback",
    "CollapseWarning",
    "NonFiniteError",
    "Progress",
    "announce",
    "reports",
]
