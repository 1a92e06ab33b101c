"""The Keras model that is pretrained: encoder, projection head, loss, probe.

Layer 4. `fit` drives it under any `tf.distribute` strategy; the step is the
same function everywhere.
"""

from tf_contrastive.model.building import (
    build,
    build_encoder,
    build_head,
    precision,
)
from tf_contrastive.model.contrastive import ContrastiveModel
from tf_contrastive.model.loss_scaling import passing_over

__all__ = [
    "ContrastiveModel",
    "build",
    "build_encoder",
    "build_head",
    "passing_over",
    "precision",
]
