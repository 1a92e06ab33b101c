"""The contents of a run's TensorBoard pages.

`callbacks.TensorBoard` writes them while a run trains.
`scalars` names the curves and arranges them, `run_summary` describes the run,
`histograms` measures a fixed batch, `projector` embeds some images. None of it
is part of the training step, and none of it needs other replicas or workers.
"""

from tf_contrastive.tensorboard.histograms import (
    Histograms,
    HostCopy,
    images_per_batch,
)

__all__ = ["EVENTS", "Histograms", "HostCopy", "images_per_batch"]

# Folder of the event files in a workdir.
EVENTS = "events"
