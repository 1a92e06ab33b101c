"""Colour operations on a batch of views, with parameters per view.

What is linear in red, green and blue is one product with a matrix per view.
What goes through HSV acts on colour planes, float32 [3, m, S, S]: there every
step runs over contiguous memory, which is several times as fast as the same on
[m, S, S, 3]. All shapes are static but m, and everything compiles under XLA.
"""

import dataclasses
import itertools
import math
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tf_contrastive.views import pillow, prng, selection

# ITU-R BT.601, as tf.image.rgb_to_grayscale and torchvision have it.
_LUMA = (0.2989, 0.587, 0.114)
_LUMA_WEIGHTS = np.array(_LUMA, np.float32)
# From RGB to YIQ, the luma and two axes of colour, as tf.image.rgb_to_yiq.
_YIQ = np.array(
    [
        [0.299, 0.587, 0.114],
        [0.59590059, -0.27455667, -0.32134392],
        [0.21153661, -0.52273617, 0.31119955],
    ]
)
_RGB = np.linalg.inv(_YIQ)
# A colour is its grey, plus what the hue turns in the plane of I and Q: so far
# as it stays where it is, and as it goes a quarter of a turn.
_GREY = np.tile(_YIQ[0], [3, 1])
_STAY = np.eye(3) - _GREY
_QUARTER = _RGB @ np.array([[0, 0, 0], [0, 0, 1], [0, -1, 0]]) @ _YIQ
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


def _to_planes(pixels: tf.Tensor) -> tf.Tensor:
    return tf.stack(tf.unstack(pixels, axis=-1))


def _from_planes(planes: tf.Tensor, static: bool) -> tf.Tensor:
    if static:
        return tf.stack(tf.unstack(planes), axis=-1)
    size = planes.shape[-1]
    flat = tf.reshape(tf.stack(tf.unstack(planes), axis=1), [-1, 3, size**2])
    # The identity matrix interleaves channels, exactly on a host, in half the
    # time of tf.transpose.
    pixels = tf.matmul(flat, tf.eye(3), transpose_a=True)
    return tf.reshape(pixels, [-1, size, size, 3])


@dataclasses.dataclass(frozen=True)
class _Jitter:
    """What all forms of SimCLR's colour jitter share.

    Attributes:
      strength: s. 0 leaves images as they are.
      probability: share of the views that are jittered.
    """

    strength: float
    probability: float = 0.8

    streams: ClassVar[dict[str, int]] = {"jitter": 5}

    @property
    def span(self) -> float:
        """Half the range of brightness, contrast and saturation."""
        return 0.8 * self.strength

    @property
    def factors(self) -> tuple[float, float]:
        """The least and the largest factor."""
        return max(0.0, 1.0 - self.span), 1.0 + self.span

    def jittered(self, unit: prng.Unit) -> tf.Tensor:
        """Which views are jittered, bool [m, 1]."""
        return unit["jitter"][:, :1] < self.probability

    def additive(self, unit: prng.Unit) -> list[tf.Tensor]:
        """What `ColorJitter` does to each view.

        Returns:
          float32 [m] each: brightness and hue, to add; contrast and
          saturation, to multiply with.
        """
        jittered, unit = self.jittered(unit), unit["jitter"]
        shifts = tf.where(jittered, prng.between(unit[:, 1:3], -1.0, 1.0), 0.0)
        factors = prng.between(unit[:, 3:], *self.factors)
        factors = tf.where(jittered, factors, 1.0)
        shifts *= tf.constant([self.span, 0.2 * self.strength])
        return [*tf.unstack(shifts, axis=1), *tf.unstack(factors, axis=1)]


@dataclasses.dataclass(frozen=True)
class ColorJitter(_Jitter):
    """SimCLR's colour jitter (Chen et al. 2020, appendix A, TensorFlow form).

    In this order: brightness plus U(-0.8s, 0.8s); contrast times U(max(0,
    1 - 0.8s), 1 + 0.8s) about each channel's mean; saturation times the same;
    hue plus U(-0.2s, 0.2s) turns; one clip to [0, 1] at the end. Saturation
    and hue are those of HSV.
    """

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Jitters pixels float32 [m, S, S, 3]."""
        if not self.strength:
            return pixels
        brightness, hue, contrast, saturation = map(
            pillow.per_view, self.additive(unit)
        )
        planes = _to_planes(pixels)
        # (x + b - mean(x + b)) * c + mean(x + b), with one pass less.
        mean = tf.reduce_mean(planes, axis=[2, 3], keepdims=True)
        planes = planes * contrast + (mean * (1.0 - contrast) + brightness)
        planes = _ramp(adjust_hue_saturation(planes, hue, saturation))
        return _from_planes(planes, static)


def turning(hue: tf.Tensor, saturation: tf.Tensor) -> tf.Tensor:
    """Matrices that scale the saturation and turn the hue, in YIQ.

    The luma and the greys stay as they are. To scale the saturation is to blend
    with the grayscale image.

    Args:
      hue: float64 [m], in turns, added: red becomes green in a third.
      saturation: float64 [m], factor.

    Returns:
      float64 [m, 3, 3], to be multiplied with columns of RGB.
    """
    stay = pillow.per_view(saturation * tf.cos(2.0 * math.pi * hue))
    turn = pillow.per_view(saturation * tf.sin(2.0 * math.pi * hue))
    return _GREY + stay * _STAY + turn * _QUARTER


@dataclasses.dataclass(frozen=True)
class LinearColorJitter(_Jitter):
    """SimCLR's colour jitter and grayscale as one matrix per view.

    As `ColorJitter`, from the same draws, but saturation and hue are those of
    YIQ, in which they are linear: a saturation blends with the grayscale image,
    and a hue is a turn about the grey axis. Brightness and contrast are the
    same to rounding. Both forms keep greys; HSV keeps the largest channel, YIQ
    the luma. On photographs, from the same draws at s = 1, hues differ by 0.02
    turns (the median), mean saturations by 0.03 and mean luma by 0.005.
    Grayscale comes before the clip, not after it.

    Attributes:
      gray: share of the views whose colour is then taken, as by `Grayscale`.
    """

    gray: float = 0.0

    streams: ClassVar[dict[str, int]] = {"jitter": 5, "gray": 1}

    def matrices(
        self, unit: prng.Unit, mean: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The change of each view, float64 [m, 3, 3] and [m, 3, 1].

        Args:
          unit: uniform numbers, by stream.
          mean: float64 [m, 3] of each view's channels.
        """
        # In float64, for the last bit of sines depends on a value's position in
        # the batch.
        brightness, hue, contrast, saturation = (
            tf.cast(x, tf.float64) for x in self.additive(unit)
        )
        turned = turning(hue, saturation)
        gray = pillow.per_view(unit["gray"][:, 0] < self.gray)
        turned = tf.where(
            gray, tf.matmul(np.tile(_LUMA, [1, 3, 1]), turned), turned
        )
        contrast = pillow.per_view(contrast)
        # (x + b - mean(x + b)) * c + mean(x + b)
        shift = (1.0 - contrast) * mean[:, :, tf.newaxis]
        shift += pillow.per_view(brightness)
        return contrast * turned, tf.matmul(turned, shift)

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Jitters pixels float32 [m, S, S, 3]."""
        if not (self.strength or self.gray):
            return pixels
        mean = pillow.channel_means(pillow.as_rows(pixels))
        matrix, shift = (
            tf.cast(x, tf.float32) for x in self.matrices(unit, mean)
        )
        return _ramp(pillow.transform(pixels, matrix, shift, static))


@dataclasses.dataclass(frozen=True)
class PyTorchColorJitter(_Jitter):
    """SimCLR's colour jitter as torchvision's `ColorJitter` defines it.

    Brightness, contrast and saturation blend, each by a factor U(max(0,
    1 - 0.8s), 1 + 0.8s), with black, with the mean of the grayscale image and
    with the grayscale image; the hue turns by U(-0.2s, 0.2s), at most half a
    turn. In random order per view, clipped to [0, 1] after each.
    """

    streams: ClassVar[dict[str, int]] = {"jitter": 5, "jitter_order": 1}

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Jitters pixels float32 [m, S, S, 3]."""
        if not self.strength:
            return pixels
        order = tf.cast(unit["jitter_order"][:, 0] * len(_ORDERS), tf.int32)
        which = tf.where(self.jittered(unit), tf.gather(_ORDERS, order), 0)
        turn = min(0.2 * self.strength, 0.5)
        low = np.array([self.factors[0]] * 3 + [-turn], np.float32)
        high = np.array([self.factors[1]] * 3 + [turn], np.float32)
        values = prng.between(unit["jitter"][:, 1:], low, high)
        operations = [
            lambda x, p: _ramp(x * pillow.per_view(p[:, 0])),
            lambda x, p: _blend(_mean_gray(x, static), x, p[:, 1]),
            lambda x, p: _blend(_gray(x, static), x, p[:, 2]),
            lambda x, p: _turn_hue(x, p[:, 3], static),
        ]
        rows = pillow.as_rows(pixels)
        for step in range(4):
            rows = selection.apply(
                rows, which[:, step], values, operations, static
            )
        return pillow.as_pixels(rows)


def _gray(rows: tf.Tensor, static: bool) -> tf.Tensor:
    return pillow.weighted_gray(rows, _LUMA_WEIGHTS, static)


def _mean_gray(rows: tf.Tensor, static: bool) -> tf.Tensor:
    mean = pillow.channel_means(_gray(rows, static))[:, :1, tf.newaxis]
    return tf.cast(mean, tf.float32)


def _blend(
    degenerate: tf.Tensor, rows: tf.Tensor, factor: tf.Tensor
) -> tf.Tensor:
    mixed = degenerate + pillow.per_view(factor) * (rows - degenerate)
    return _ramp(mixed)


def _turn_hue(rows: tf.Tensor, turns: tf.Tensor, static: bool) -> tf.Tensor:
    hue = pillow.per_view(turns)
    planes = _to_planes(pillow.as_pixels(rows))
    planes = adjust_hue_saturation(planes, hue, tf.ones_like(hue))
    return pillow.as_rows(_from_planes(planes, static))


@dataclasses.dataclass(frozen=True)
class Grayscale:
    """Takes the colour from some views; they keep three equal channels.

    Attributes:
      probability: share of the views.
    """

    probability: float = 0.2

    streams: ClassVar[dict[str, int]] = {"gray": 1}

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Acts on pixels float32 [m, S, S, 3]."""
        made = selection.some(
            pillow.as_rows(pixels),
            unit["gray"][:, 0] < self.probability,
            unit["gray"],
            lambda rows, _: _gray(rows, static),
            static,
        )
        return pillow.as_pixels(made)
