"""Colour operations on a batch, with parameters per image.

They act on colour planes, float32 [3, m, S, S]: channels first, so that every
step runs over contiguous memory, which is several times as fast as the same on
[m, S, S, 3]. All shapes are static but m, and everything compiles under XLA.
"""

import dataclasses

import tensorflow as tf

from tf_contrastive.views import draws

# ITU-R BT.601, as tf.image.rgb_to_grayscale has it.
_LUMA = (0.2989, 0.587, 0.114)


def adjust_hue_saturation(
    planes: tf.Tensor, hue: tf.Tensor, saturation: tf.Tensor
) -> tf.Tensor:
    """Scales the saturation, then turns the hue, through HSV.

    The same as `tf.image.adjust_saturation` and then `tf.image.adjust_hue`, in
    one pass and without the sorting by cases that makes `tf.image.rgb_to_hsv`
    slow. With the depths below the largest channel, over the chroma, written
    R, G and B, and x = B - G, the hue in sixths of a turn has the size
    |x| + R (3 - 2 |x|) and the sign of x: at red (R = 0) that is |x|, beyond
    yellow or magenta (|x| = 1) 1 + R, opposite of red (R = 1) 3 - |x|.

    Args:
      planes: float32 [3, m, S, S].
      hue: float32 [m, 1, 1], in turns, added.
      saturation: float32 [m, 1, 1], factor; saturation is capped at 1.

    Returns:
      float32 [3, m, S, S].
    """
    red, green, blue = tf.unstack(planes)
    value = tf.maximum(tf.maximum(red, green), blue)
    chroma = value - tf.minimum(tf.minimum(red, green), blue)
    divisor = tf.maximum(chroma, 1e-20)  # Grey: both numerators are 0.
    depth = (value - red) / divisor
    x = (green - blue) / divisor
    size = tf.abs(x)
    size = size + depth * (3.0 - 2.0 * size)
    sign = 2.0 * tf.cast(x >= 0.0, tf.float32) - 1.0
    turn = sign * size * (1 / 6) + hue
    sixths = 6.0 * (turn - tf.floor(turn))
    # Saturation is chroma / value, and 0 where value is not positive.
    chroma = tf.minimum(chroma * saturation, tf.maximum(value, 0.0))
    return tf.stack(
        [
            value - chroma * _ramp(2.0 - tf.abs(sixths - 3.0)),
            value - chroma * _ramp(tf.abs(sixths - 2.0) - 1.0),
            value - chroma * _ramp(tf.abs(sixths - 4.0) - 1.0),
        ]
    )


def _ramp(x: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(x, 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class ColorJitter:
    """SimCLR's colour jitter (Chen et al. 2020, appendix A, TensorFlow form).

    In this order: brightness plus U(-0.8s, 0.8s); contrast times U(max(0,
    1 - 0.8s), 1 + 0.8s) about each channel's mean; saturation times the same;
    hue plus U(-0.2s, 0.2s) turns; one clip to [0, 1] at the end.

    Attributes:
      strength: s. 0 leaves images as they are.
      probability: share of the views that are jittered.
    """

    strength: float
    probability: float = 0.8

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes."""
        return {"jitter": 5}

    def __call__(self, planes: tf.Tensor, unit: draws.Unit) -> tf.Tensor:
        """Jitters planes float32 [3, m, S, S]."""
        if not self.strength:
            return planes
        unit = unit["jitter"]
        jittered = unit[:, :1] < self.probability
        span = 0.8 * self.strength
        low, high = max(0.0, 1.0 - span), 1.0 + span
        shifts = tf.where(jittered, draws.between(unit[:, 1:3], -1.0, 1.0), 0.0)
        factors = tf.where(jittered, draws.between(unit[:, 3:], low, high), 1.0)
        brightness, hue = draws.planes(
            shifts * tf.constant([span, 0.2 * self.strength])
        )
        contrast, saturation = draws.planes(factors)
        # (x + b - mean(x + b)) * c + mean(x + b), with one pass less.
        mean = tf.reduce_mean(planes, axis=[2, 3], keepdims=True)
        planes = planes * contrast + (mean * (1.0 - contrast) + brightness)
        return _ramp(adjust_hue_saturation(planes, hue, saturation))


@dataclasses.dataclass(frozen=True)
class Grayscale:
    """Takes the colour from some views; they keep three equal channels.

    Attributes:
      probability: share of the views.
    """

    probability: float = 0.2

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes."""
        return {"gray": 1}

    def __call__(self, planes: tf.Tensor, unit: draws.Unit) -> tf.Tensor:
        """Acts on planes float32 [3, m, S, S]."""
        gray = unit["gray"] < self.probability
        (share,) = draws.planes(tf.cast(gray, tf.float32))
        red, green, blue = tf.unstack(planes)
        luma = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
        # Exact for a share of 0 and of 1.
        return planes * (1.0 - share) + luma * share
