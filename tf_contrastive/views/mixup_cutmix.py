"""MixUp and CutMix: views mixed with those of another image, and their labels.

Both act on finished views, a batch at a time, in the training step.
KerasCV's layers, the tests' references of the formulas, draw from TensorFlow's
global state, so that a resumed run would differ.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from tf_contrastive.config import fields
from tf_contrastive.config.views import Views
from tf_contrastive.views import prng

# Bisections of [0, 1/2] for a quantile: more would change nothing in float32.
_BISECTIONS = 26
# Positions of a view's uniform numbers.
_BLEND, _BOX, _LEFT, _TOP, _CHOICE = range(5)


@dataclasses.dataclass(frozen=True)
class Mixing:
    """Mixes each image with its neighbour in the batch: 0 with 1, 2 with 3.

    The neighbour is the same for any number of replicas, if each has an even
    number of images. Fractions below one half would repeat its mixtures, so a
    view's own image always has the larger fraction, and its label stays the
    most likely class.

    The alphas are the parameters of Beta(alpha, alpha); 0: not at all. If both
    are set, every view gets one of them, each with probability 1/2.
    """

    num_classes: int
    mixup_alpha: float = Views.mixup_alpha
    cutmix_alpha: float = Views.cutmix_alpha

    def __post_init__(self) -> None:
        alphas = {k: v for k, v in vars(self).items() if k != "num_classes"}
        fields.validate_fields(Views(**alphas))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Mixing":
        """Makes the mixing that `get_config` describes."""
        return cls(**config)

    @tf.autograph.experimental.do_not_convert
    def __call__(
        self, views: tf.Tensor, labels: tf.Tensor, seeds: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mixes views, and returns the classes' fractions in each, [B, V, C].

        Zhang et al. 2018, eq. 1 and 2; Yun et al. 2019, eq. 1 to 3. Views are
        float32 [B, V, S, S, K], B even; labels int [B]; seeds int32 [B, V, 2].
        """
        if labels.shape.rank != 1:
            raise ValueError(
                f"labels of shape {labels.shape}: must be int [B] to be mixed"
            )
        if (views.shape[0] or 0) % 2:
            raise ValueError(
                f"{views.shape[0]} images cannot be mixed in pairs: use an even"
                " number (and batch with drop_remainder=True)"
            )
        flat = tf.reshape(seeds, [-1, 2])
        uniforms = prng.uniform(flat, {"mixing": 5})["mixing"]
        uniforms = tf.reshape(uniforms, [-1, *views.shape[1:2], 5])
        weight = self._weights(uniforms, views.shape[2:4])
        fraction = tf.reduce_mean(weight, axis=[2, 3])[..., tf.newaxis]
        weight = weight[..., tf.newaxis]
        mixed = weight * views + (1 - weight) * _neighbours(views)
        classes = tf.one_hot(labels, self.num_classes)[:, tf.newaxis]
        others = (1 - fraction) * _neighbours(classes)
        return mixed, fraction * classes + others

    def _weights(self, uniforms: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
        """Weight of a view's own image per pixel: [B, V, S or 1, S or 1]."""
        if not self.cutmix_alpha:
            return self._mixup(uniforms)
        if not self.mixup_alpha:
            return self._cutmix(uniforms, size)
        is_mixup = uniforms[..., _CHOICE, tf.newaxis, tf.newaxis] < 0.5
        mixup, cutmix = self._mixup(uniforms), self._cutmix(uniforms, size)
        return tf.where(is_mixup, mixup, cutmix)

    def _mixup(self, uniforms: tf.Tensor) -> tf.Tensor:
        """One weight for all pixels, at least 1/2: [B, V, 1, 1]."""
        weight = beta_quantile(uniforms[..., _BLEND], self.mixup_alpha)
        weight = tf.maximum(weight, 1 - weight)
        return weight[..., tf.newaxis, tf.newaxis]

    def _cutmix(self, uniforms: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
        """1 outside of a box and 0 inside, or the reverse: [B, V, S, S].

        The box has the image's aspect, and its centre is anywhere.
        """
        area = 1 - beta_quantile(uniforms[..., _BOX], self.cutmix_alpha)
        rows, columns = (
            _inside(side, tf.sqrt(area), uniforms[..., column])
            for side, column in zip(size, (_TOP, _LEFT), strict=True)
        )
        weight = 1 - rows[..., tf.newaxis] * columns[..., tf.newaxis, :]
        larger = tf.reduce_mean(weight, axis=[2, 3], keepdims=True) >= 0.5
        return tf.where(larger, weight, 1 - weight)


def _inside(side: int, fraction: tf.Tensor, centre: tf.Tensor) -> tf.Tensor:
    """1 for the pixels of an axis that a box covers, else 0: [B, V, side]."""
    length = tf.floor(fraction * side)[..., tf.newaxis]
    start = tf.floor(centre * side)[..., tf.newaxis] - length / 2
    pixels = tf.range(side, dtype=tf.float32)
    covered = (pixels >= start) & (pixels < start + length)
    return tf.cast(covered, tf.float32)


def _neighbours(x: tf.Tensor) -> tf.Tensor:
    """Rows 1, 0, 3, 2, ... of `x`."""
    pairs = tf.reshape(x, [-1, 2, *x.shape[1:]])
    return tf.reshape(tf.reverse(pairs, [1]), [-1, *x.shape[1:]])


def beta_quantile(uniforms: tf.Tensor, alpha: float) -> tf.Tensor:
    """Quantiles of Beta(alpha, alpha), which turn uniform numbers into draws.

    Both are float32 in [0, 1], of any shape. By bisection, since TensorFlow's
    gamma sampler takes one seed per batch and has no XLA kernel.
    """
    # Beta(alpha, alpha) is symmetric; near 0 floats are dense.
    tail = tf.minimum(uniforms, 1 - uniforms)
    parameter = tf.ones_like(tail) * alpha

    def bisect(
        step: tf.Tensor, low: tf.Tensor, high: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        middle = (low + high) / 2
        above = tf.math.betainc(parameter, parameter, middle) < tail
        low, high = tf.where(above, middle, low), tf.where(above, high, middle)
        return step + 1, low, high

    # A loop, since XLA takes long to compile each copy of this function.
    _, low, high = tf.while_loop(
        lambda step, *_: step < _BISECTIONS,
        bisect,
        (0, tf.zeros_like(tail), 0.5 * tf.ones_like(tail)),
    )
    quantile = (low + high) / 2
    return tf.where(uniforms < 0.5, quantile, 1 - quantile)
