"""Colour operations on a batch of views, with parameters per view.

Operations in HSV act on colour planes, float32 [3, m, S, S]: every step then
runs over contiguous memory, several times as fast as on [m, S, S, 3]. All
shapes but m are static, and everything compiles under XLA.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tf_contrastive.views import pillow, prng, selection

# ITU-R BT.601, as in tf.image.rgb_to_grayscale and torchvision.
_LUMA = np.array([0.2989, 0.587, 0.114], np.float32)
# All orders of four operations.
_ORDERS = np.array(list(itertools.permutations(range(1, 5))), np.int32)


def adjust_hue_saturation(
    planes: tf.Tensor, hue: tf.Tensor, saturation: tf.Tensor
) -> tf.Tensor:
    """Scales the saturation, then shifts the hue, in HSV.

    Equal to `tf.image.adjust_saturation` and then `tf.image.adjust_hue`, in one
    pass and without the case distinctions that make `tf.image.rgb_to_hsv` slow.
    Let R, G and B be the depths below the largest channel divided by the
    chroma, and x = B - G. The hue in sixths of a turn has the absolute value
    |x| + R (3 - 2 |x|) and the sign of x: at red (R = 0) that is |x|, beyond
    yellow or magenta (|x| = 1) 1 + R, opposite of red (R = 1) 3 - |x|.

    Args:
      planes: float32 [3, m, S, S], as the result.
      hue: float32 [m, 1, 1], shift in turns.
      saturation: float32 [m, 1, 1], factor; saturation is capped at 1.
    """
    red, green, blue = tf.unstack(planes)
    value = tf.maximum(tf.maximum(red, green), blue)
    chroma = value - tf.minimum(tf.minimum(red, green), blue)
    divisor = tf.maximum(chroma, 1e-20)  # Grey: both numerators are 0.
    depth = (value - red) / divisor
    x = (green - blue) / divisor
    size = tf.abs(x)
    size = size + depth * (3.0 - 2.0 * size)
    # The sum is x, but positive at 0, whose sign would be 0.
    turn = tf.sign(x + 1e-30) * size * (1 / 6) + hue
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
    """Common part of the forms of SimCLR's colour jitter, of strength s."""

    strength: float
    probability: float = 0.8

    streams: ClassVar[dict[str, int]] = {"jitter": 5}

    @property
    def span(self) -> float:
        return 0.8 * self.strength

    @property
    def factors(self) -> tuple[float, float]:
        return max(0.0, 1.0 - self.span), 1.0 + self.span

    def jittered(self, uniforms: prng.Uniforms) -> tf.Tensor:
        return uniforms["jitter"][:, :1] < self.probability

    def parameters(self, uniforms: prng.Uniforms) -> list[tf.Tensor]:
        """Brightness and hue to add, contrast and saturation to multiply by.

        Each is float32 [m]; of the forms of TensorFlow.
        """
        jittered, numbers = self.jittered(uniforms), uniforms["jitter"]
        shifts = tf.where(jittered, prng.lerp(numbers[:, 1:3], -1.0, 1.0), 0.0)
        factors = prng.lerp(numbers[:, 3:], *self.factors)
        factors = tf.where(jittered, factors, 1.0)
        shifts *= tf.constant([self.span, 0.2 * self.strength])
        return [*tf.unstack(shifts, axis=1), *tf.unstack(factors, axis=1)]


@dataclasses.dataclass(frozen=True)
class ColorJitter(_Jitter):
    """SimCLR's colour jitter (Chen et al. 2020, appendix A, TensorFlow form).

    In this order: brightness plus U(-0.8s, 0.8s); contrast times U(max(0,
    1 - 0.8s), 1 + 0.8s) about each channel's mean; saturation times the same;
    hue plus U(-0.2s, 0.2s) turns; one clip to [0, 1] at the end. Saturation
    and hue are those of HSV. `Grayscale` follows.
    """

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        if not self.strength:
            return pixels
        brightness, hue, contrast, saturation = map(
            pillow.per_view, self.parameters(uniforms)
        )
        planes = _to_planes(pixels)
        # (x + b - mean(x + b)) * c + mean(x + b), in one pass less.
        mean = tf.reduce_mean(planes, axis=[2, 3], keepdims=True)
        planes = planes * contrast + (mean * (1.0 - contrast) + brightness)
        planes = _ramp(adjust_hue_saturation(planes, hue, saturation))
        return _from_planes(planes, static)


# Maps rows of views and float32 [n, 4], their values, to rows.
_Operation = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class InRandomOrder(_Jitter):
    """Four operations in an order for each view that is jittered."""

    streams: ClassVar[dict[str, int]] = {"jitter": 5, "jitter_order": 1}

    def _values(self, uniforms: prng.Uniforms) -> tf.Tensor:
        """What operations take, float32 [m, 4]."""
        raise NotImplementedError

    def _operations(self, static: bool) -> list[_Operation]:
        raise NotImplementedError

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        if not self.strength:
            return pixels
        order = tf.cast(uniforms["jitter_order"][:, 0] * len(_ORDERS), tf.int32)
        choice = tf.where(self.jittered(uniforms), tf.gather(_ORDERS, order), 0)
        operations, values = self._operations(static), self._values(uniforms)
        rows = pillow.as_rows(pixels)
        for step in range(4):
            rows = selection.apply_choice(
                choice[:, step], operations, rows, values, static
            )
        return pillow.as_pixels(rows)


@dataclasses.dataclass(frozen=True)
class PyTorchColorJitter(InRandomOrder):
    """SimCLR's colour jitter as torchvision's `ColorJitter` defines it.

    Brightness, contrast and saturation blend, each by a factor U(max(0,
    1 - 0.8s), 1 + 0.8s), with black, with the mean of the grayscale image and
    with the grayscale image; the hue shifts by U(-0.2s, 0.2s), at most half a
    turn. In random order per view, clipped to [0, 1] after each.
    """

    def _values(self, uniforms: prng.Uniforms) -> tf.Tensor:
        turn = min(0.2 * self.strength, 0.5)
        low = np.array([self.factors[0]] * 3 + [-turn], np.float32)
        high = np.array([self.factors[1]] * 3 + [turn], np.float32)
        return prng.lerp(uniforms["jitter"][:, 1:], low, high)

    def _operations(self, static: bool) -> list[_Operation]:
        return [
            lambda x, p: _ramp(x * pillow.per_view(p[:, 0])),
            lambda x, p: _blend(_mean_gray(x, static), x, p[:, 1]),
            lambda x, p: _blend(_gray(x, static), x, p[:, 2]),
            lambda x, p: _shift_hue(x, p[:, 3], static),
        ]


@dataclasses.dataclass(frozen=True)
class ShuffledColorJitter(InRandomOrder):
    """`ColorJitter` in random order per view, clipped to [0, 1] after each.

    As in the code of SimCLR (its first version) and of SupCon.
    """

    def _values(self, uniforms: prng.Uniforms) -> tf.Tensor:
        brightness, hue, contrast, saturation = self.parameters(uniforms)
        return tf.stack([brightness, contrast, saturation, hue], axis=1)

    def _operations(self, static: bool) -> list[_Operation]:
        return [
            lambda x, p: _ramp(x + pillow.per_view(p[:, 0])),
            lambda x, p: _ramp(_scale_contrast(x, p[:, 1], static)),
            lambda x, p: _ramp(
                _in_hsv(x, tf.zeros_like(p[:, 2]), p[:, 2], static)
            ),
            lambda x, p: _ramp(_shift_hue(x, p[:, 3], static)),
        ]


JITTERS: dict[str, type[ColorJitter | InRandomOrder]] = {
    "tensorflow": ColorJitter,
    "tensorflow_shuffled": ShuffledColorJitter,
    "pytorch": PyTorchColorJitter,
}


def _gray(rows: tf.Tensor, static: bool) -> tf.Tensor:
    return pillow.weighted_gray(rows, _LUMA, static)


def _mean_gray(rows: tf.Tensor, static: bool) -> tf.Tensor:
    mean = pillow.channel_means(_gray(rows, static), static)
    mean = mean[:, :1, tf.newaxis]
    return tf.cast(mean, tf.float32)


def _blend(
    degenerate: tf.Tensor, rows: tf.Tensor, factor: tf.Tensor
) -> tf.Tensor:
    return _ramp(degenerate + pillow.per_view(factor) * (rows - degenerate))


def _scale_contrast(
    rows: tf.Tensor, factor: tf.Tensor, static: bool
) -> tf.Tensor:
    """Scales the distances to each channel's mean, as `tf.image` does."""
    pixels = pillow.as_pixels(rows)
    mean = tf.cast(pillow.channel_means(rows, static), tf.float32)
    mean = mean[:, tf.newaxis, tf.newaxis]
    factor = tf.reshape(factor, [-1, 1, 1, 1])
    return pillow.as_rows(mean + factor * (pixels - mean))


def _in_hsv(
    rows: tf.Tensor, turns: tf.Tensor, factor: tf.Tensor, static: bool
) -> tf.Tensor:
    """`adjust_hue_saturation` of rows, by hues and factors [m]."""
    planes = _to_planes(pillow.as_pixels(rows))
    planes = adjust_hue_saturation(
        planes, pillow.per_view(turns), pillow.per_view(factor)
    )
    return pillow.as_rows(_from_planes(planes, static))


def _shift_hue(rows: tf.Tensor, turns: tf.Tensor, static: bool) -> tf.Tensor:
    return _in_hsv(rows, turns, tf.ones_like(turns), static)


@dataclasses.dataclass(frozen=True)
class Grayscale:
    """Makes some views grey; they keep three equal channels."""

    probability: float = 0.2

    streams: ClassVar[dict[str, int]] = {"gray": 1}

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        rows = selection.apply_where(
            uniforms["gray"][:, 0] < self.probability,
            lambda rows, _: _gray(rows, static),
            pillow.as_rows(pixels),
            uniforms["gray"],
            static,
        )
        return pillow.as_pixels(rows)
