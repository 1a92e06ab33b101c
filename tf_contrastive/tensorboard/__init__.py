"""A run's TensorBoard pages, and the callbacks that write them.

`scalars` names the curves, `hparams` compares a run's options and results with
others', `histograms` measures a fixed batch, `projector` embeds some images.
None of it is part of the training step, or needs other replicas or workers.
"""

from tf_contrastive.tensorboard.callback import Profile, TensorBoard, view_grid
from tf_contrastive.tensorboard.histograms import Histograms, HostCopy

__all__ = [
    "EVENTS",
    "Histograms",
    "HostCopy",
    "Profile",
    "TensorBoard",
    "view_grid",
]

# Folder of the event files in a workdir.
EVENTS = "events"
