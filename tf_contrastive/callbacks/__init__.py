"""Keras callbacks of a run: checkpoints, progress, warnings, TensorBoard.

They run on the host, between two executions of the training step.
"""

from tf_contrastive.callbacks.checkpointing import (
    CheckpointCallback,
    NonFiniteError,
)
from tf_contrastive.callbacks.data_service import DeliveredExamples
from tf_contrastive.callbacks.progress import CollapseWarning, Progress
from tf_contrastive.callbacks.steps_per_execution import (
    AdaptiveStepsPerExecution,
)
from tf_contrastive.callbacks.tensorboard import (
    GRID_IMAGES,
    Profile,
    TensorBoard,
    view_grid,
)

__all__ = [
    "GRID_IMAGES",
    "AdaptiveStepsPerExecution",
    "CheckpointCallback",
    "CollapseWarning",
    "DeliveredExamples",
    "NonFiniteError",
    "Profile",
    "Progress",
    "TensorBoard",
    "view_grid",
]
