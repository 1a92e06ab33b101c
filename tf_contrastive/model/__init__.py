"""The Keras model that is pretrained.

`contrastive.py` is the plain training step. Each further module adds one
feature by overriding methods of that step; without its module, and its line
below, the feature is gone and nothing else.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive.model.device_augmentation import DeviceAugmentation
from tf_contrastive.model.gradient_cache import GradientCache
from tf_contrastive.model.input_wait import InputWait
from tf_contrastive.model.loss_scaling import LossScaling
from tf_contrastive.model.mixing import Mixing
from tf_contrastive.model.momentum_encoder import MomentumEncoder
from tf_contrastive.model.non_finite import NonFinite
from tf_contrastive.model.online_knn import OnlineKNN
from tf_contrastive.model.online_probe import OnlineProbe

__all__ = ["ContrastiveModel"]

# Arguments that are objects of their own.
_PARTS = ("encoder", "projection_head", "loss", "probe", "augment", "mix")


class ContrastiveModel(
    MomentumEncoder,
    OnlineKNN,
    Mixing,
    DeviceAugmentation,
    GradientCache,
    LossScaling,
    NonFinite,
    OnlineProbe,
    InputWait,
):
    """Trains an encoder by a contrastive loss, under any `tf.distribute`.

    `fit` takes (views [B, V, H, W, K], labels [B]), or views alone, as floats
    in [0, 1] or as uint8. With `augment` or `mix` the views come with seeds for
    the step's random operations: ((views, seeds [B, V, 2]), labels).

    Args:
      encoder: images float32 [N, H, W, K] in [0, 1] -> features h [N, D].
      projection_head: h [N, D] -> z [N, P].
      loss: of `losses`: (z [B, V, P], labels, seed) -> float32 [].
      probe: h [N, D] -> logits [N, C], trained behind a stop-gradient (Chen et
        al. 2020, appendix B.6); None: no probe.
      momentum: of the key encoder's moving average, in [0, 1), for the loss
        "moco" (He et al. 2020).
      queue_size: keys kept as negatives, at least one global batch; None: the
        default of `config.loss.Loss`.
      grad_cache_chunks: chunks in which a replica's images pass through the
        encoder, to save memory (Gao et al. 2021); divides their number.
      augment: (views float32 [B, V, H, W, K], seeds int32 [B, V, 2]) -> views,
        or None for views that are ready.
      mix: (views, labels int [B], seeds) -> (views, class fractions float32
        [B, V, C]), such as `views.mixing.Mixing`, or None.
      online_knn_size: latest training images among which each batch looks for
        its nearest neighbors, where there are labels; 0: none.
      seed: of the random numbers that a loss may draw.

    Raises:
      ValueError: for numbers out of range, a momentum with a loss that takes
        no keys, or a loss that takes keys without a momentum.
    """

    def __init__(
        self,
        encoder: tf.keras.Model,
        projection_head: tf.keras.layers.Layer,
        loss: Any,
        probe: tf.keras.layers.Layer | None = None,
        *,
        momentum: float | None = None,
        queue_size: int | None = None,
        grad_cache_chunks: int = 1,
        augment: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None,
        mix: Callable[..., tuple[tf.Tensor, tf.Tensor]] | None = None,
        online_knn_size: int = 0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            encoder,
            projection_head,
            loss,
            probe=probe,
            momentum=momentum,
            queue_size=queue_size,
            grad_cache_chunks=grad_cache_chunks,
            augment=augment,
            mix=mix,
            online_knn_size=online_knn_size,
            seed=seed,
            **kwargs,
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, serialized as Keras does."""
        branch = self.key_branch
        serialize = tf.keras.saving.serialize_keras_object
        return {
            "encoder": serialize(self.encoder),
            "projection_head": serialize(self.projection_head),
            "loss": serialize(self.contrastive_loss),
            "probe": serialize(self.probe),
            "momentum": branch.momentum if branch else None,
            "queue_size": branch.queue_size if branch else None,
            "grad_cache_chunks": self.grad_cache_chunks,
            "augment": serialize(self.augment),
            "mix": serialize(self.mix),
            "online_knn_size": self.neighbors.size if self.neighbors else 0,
            "seed": self.seed,
            "name": self.name,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "ContrastiveModel":
        """Creates a model with new weights from `get_config`'s result."""
        parts = {
            name: tf.keras.saving.deserialize_keras_object(
                config[name], custom_objects=custom_objects
            )
            for name in _PARTS
            if name in config
        }
        return cls(**{**config, **parts})
