"""What a run shows and keeps while it trains: guard, TensorBoard, progress.

Layer 5. Keras callbacks. All of it happens on the host, between executions of
the training step.
"""

from tf_contrastive.callbacks.checkpointing import (
    CollapseAlarm,
    Keeper,
    NonFiniteError,
)
from tf_contrastive.callbacks.progress import Progress
from tf_contrastive.callbacks.summaries import (
    GRID_IMAGES,
    Profile,
    Summaries,
    grid,
)

__all__ = [
    "GRID_IMAGES",
    "CollapseAlarm",
    "Keeper",
    "NonFiniteError",
    "Profile",
    "Progress",
    "Summaries",
    "grid",
]
