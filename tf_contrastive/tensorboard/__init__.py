"""What TensorBoard shows of a run, beside the points that `callbacks` writes.

Layer 5. `scalars` names the points and lays their curves out; `about` says what
the run is; `local` holds a copy of the encoder on the host, with which
`distributions` and `projector` look at a few images. None of it is part of the
training step, and none of it talks to other replicas or workers.
"""

from tf_contrastive.tensorboard.histograms import Distributions, images_of
from tf_contrastive.tensorboard.local_copy import LocalCopy

__all__ = ["Distributions", "LocalCopy", "images_of"]
