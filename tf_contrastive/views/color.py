"""Colour operations on a batch, with parameters per image.

They act on colour planes, float32 [3, m, S, S]: channels first, so that every
step runs over contiguous memory, which is several times as fast as the same on
[m, S, S, 3]. All shapes are static but m, and everything compiles under XLA.
"""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from tf_contrastive.views import choice, draws, levels

# ITU-R BT.601, as tf.image.rgb_to_grayscale and torchvision have it.
_LUMA = (0.2989, 0.587, 0.114)
_LUMA_WEIGHTS = np.array(_LUMA, np.float32)
# The orders in which a view may go through four operations.
_ORDERS = np.array(list(itertools.permutations(range(1, 5))), np.int32)


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

    planar = True

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes."""
        return {"jitter": 5}

    def __call__(
        self, planes: tf.Tensor, unit: draws.Unit, static: bool = False
    ) -> tf.Tensor:
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
class PyTorchColorJitter:
    """SimCLR's colour jitter as torchvision's `ColorJitter` defines it.

    Brightness, contrast and saturation blend, each by a factor U(max(0,
    1 - 0.8s), 1 + 0.8s), with black, with the mean of the grayscale image and
    with the grayscale image; the hue turns by U(-0.2s, 0.2s), at most half a
    turn. In random order per view, clipped to [0, 1] after each.

    Attributes:
      strength: s. 0 leaves images as they are.
      probability: share of the views that are jittered.
    """

    strength: float
    probability: float = 0.8

    planar = False

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes."""
        return {"jitter": 5, "jitter_order": 1}

    def __call__(
        self, pixels: tf.Tensor, unit: draws.Unit, static: bool = False
    ) -> tf.Tensor:
        """Jitters pixels float32 [m, S, S, 3]."""
        if not self.strength:
            return pixels
        jittered = unit["jitter"][:, :1] < self.probability
        order = tf.cast(unit["jitter_order"][:, 0] * len(_ORDERS), tf.int32)
        which = tf.where(jittered, tf.gather(_ORDERS, order), 0)
        span = 0.8 * self.strength
        turn = min(0.2 * self.strength, 0.5)
        low = np.array([max(0.0, 1.0 - span)] * 3 + [-turn], np.float32)
        high = np.array([1.0 + span] * 3 + [turn], np.float32)
        values = draws.between(unit["jitter"][:, 1:], low, high)
        operations = [
            lambda x, p: _ramp(x * levels.per_view(p[:, 0])),
            lambda x, p: _blend(_mean_gray(x, static), x, p[:, 1]),
            lambda x, p: _blend(_gray(x, static), x, p[:, 2]),
            lambda x, p: _turn_hue(x, p[:, 3]),
        ]
        rows = levels.as_rows(pixels)
        for step in range(4):
            rows = choice.apply(
                rows, which[:, step], values, operations, static
            )
        return levels.as_pixels(rows)


def _gray(rows: tf.Tensor, static: bool) -> tf.Tensor:
    return levels.weighted_gray(rows, _LUMA_WEIGHTS, static)


def _mean_gray(rows: tf.Tensor, static: bool) -> tf.Tensor:
    # In float64 on a host, so that a view's mean does not depend on the batch.
    sums = tf.reduce_sum(_gray(rows, static), axis=1, keepdims=True)
    if not static:
        sums = tf.cast(sums, tf.float64)
    mean = tf.reduce_mean(sums, axis=2, keepdims=True) * (1 / rows.shape[1])
    return tf.cast(mean, tf.float32)


def _blend(
    degenerate: tf.Tensor, rows: tf.Tensor, factor: tf.Tensor
) -> tf.Tensor:
    mixed = degenerate + levels.per_view(factor) * (rows - degenerate)
    return _ramp(mixed)


def _turn_hue(rows: tf.Tensor, turns: tf.Tensor) -> tf.Tensor:
    hue = levels.per_view(turns)
    planes = tf.stack(tf.unstack(levels.as_pixels(rows), axis=-1))
    planes = adjust_hue_saturation(planes, hue, tf.ones_like(hue))
    return levels.as_rows(tf.stack(tf.unstack(planes), axis=-1))


@dataclasses.dataclass(frozen=True)
class Grayscale:
    """Takes the colour from some views; they keep three equal channels.

    Attributes:
      probability: share of the views.
    """

    probability: float = 0.2

    planar = True

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes."""
        return {"gray": 1}

    def __call__(
        self, planes: tf.Tensor, unit: draws.Unit, static: bool = False
    ) -> tf.Tensor:
        """Acts on planes float32 [3, m, S, S]."""
        gray = unit["gray"] < self.probability
        (share,) = draws.planes(tf.cast(gray, tf.float32))
        red, green, blue = tf.unstack(planes)
        luma = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
        # Exact for a share of 0 and of 1.
        return planes * (1.0 - share) + luma * share
