"""Operations of ablations only (Chen et al. 2020, figures 4 and 5).

They act on every view. Sizes and levels, which the paper does not state, are
choices of this package.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tf_contrastive.views import (
    affine,
    crops,
    gaussian_blur,
    pillow,
    prng,
    selection,
)


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A function of pixels and `static`, without random numbers."""

    function: Callable[[tf.Tensor, bool], tf.Tensor]

    streams: ClassVar[dict[str, int]] = {}

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        return self.function(pixels, static)


def sobel(pixels: tf.Tensor, static: bool = False) -> tf.Tensor:
    """The magnitude of every channel's Sobel gradient, clipped to 1."""
    squares = tf.square(tf.image.sobel_edges(pixels))
    return tf.minimum(tf.sqrt(tf.reduce_sum(squares, axis=-1)), 1.0)


def equalize(pixels: tf.Tensor, static: bool = False) -> tf.Tensor:
    """Equalizes the histogram of every channel's 8-bit levels."""
    return pillow.to_unit(pillow.equalize(pillow.from_unit(pixels), static))


def solarize(pixels: tf.Tensor, static: bool = False) -> tf.Tensor:
    """Inverts the upper half of the 8-bit levels."""
    threshold = tf.fill(tf.shape(pixels)[:1], 128.0)
    return pillow.to_unit(pillow.solarize(pillow.from_unit(pixels), threshold))


SOBEL, EQUALIZE, SOLARIZE = Fixed(sobel), Fixed(equalize), Fixed(solarize)


@dataclasses.dataclass(frozen=True)
class SecondCrop:
    """Random crop of a view, resized to the view's size; half are flipped.

    Figure 5 has the crop as an operation of its own, after the crop that every
    view gets. Bilinear, as `tf.image.resize` of the box.
    """

    min_area: float
    flip: bool

    streams: ClassVar[dict[str, int]] = {
        "second_crop": crops.RandomCrop.streams["crop"],
        "flip": 1,
    }

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        size = pixels.shape[1]
        boxes = crops.random_boxes(
            uniforms["second_crop"], size, size, self.min_area
        )
        top, left, heights, widths = tf.unstack(boxes, axis=1)
        row, column = _samples(top, heights, size), _samples(left, widths, size)
        if self.flip:
            mirrored = uniforms["flip"] < 0.5
            column = tf.where(mirrored, column[:, ::-1], column)
        rows = _neighbours(row, size)
        columns = _neighbours(column, size)
        total = tf.zeros_like(pixels)
        for row, row_weight in rows:
            for column, column_weight in columns:
                places = row[:, :, tf.newaxis] * size + column[:, tf.newaxis]
                weight = row_weight[:, :, tf.newaxis] * column_weight[:, None]
                total += weight[..., tf.newaxis] * affine.gather(pixels, places)
        return tf.minimum(total, 1.0)


def _samples(start: tf.Tensor, length: tf.Tensor, size: int) -> tf.Tensor:
    """Places that a box is read at along an axis, float32 [m, size].

    Boxes are float32 [m], whole pixels.
    """
    centres = (tf.range(size, dtype=tf.float32) + 0.5) * (1 / size)
    length = length[:, tf.newaxis]
    place = tf.clip_by_value(length * centres - 0.5, 0.0, length - 1.0)
    return start[:, tf.newaxis] + place


def _neighbours(
    place: tf.Tensor, size: int
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """The two pixels around each place [m, size], and their weights."""
    before = tf.floor(place)
    after = tf.minimum(before + 1.0, size - 1.0)
    fraction = place - before
    return [
        (tf.cast(before, tf.int32), 1.0 - fraction),
        (tf.cast(after, tf.int32), fraction),
    ]


@dataclasses.dataclass(frozen=True)
class Rotate:
    """Rotates views by 0, 90, 180 or 270 degrees, counter-clockwise."""

    turned: bool = False  # By 0 degrees never.

    streams: ClassVar[dict[str, int]] = {"rotate": 1}

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        least = 1 if self.turned else 0
        quarters = uniforms["rotate"][:, 0] * (4 - least)
        quarters = least + tf.cast(quarters, tf.int32)
        turns = [lambda x, _, k=k: tf.image.rot90(x, k) for k in (1, 2, 3)]
        return selection.apply_choice(
            quarters, turns, pixels, uniforms["rotate"], static
        )


@dataclasses.dataclass(frozen=True)
class Cutout:
    """Covers a square of half the side, centred anywhere, with grey."""

    streams: ClassVar[dict[str, int]] = {"cutout": 2}

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        size = pixels.shape[1]
        y, x = tf.unstack(tf.floor(uniforms["cutout"] * size), axis=1)
        half = tf.fill(tf.shape(y), float(size // 4))
        covered = pillow.cutout(pillow.as_rows(pixels), half, y, x, fill=0.5)
        return pillow.as_pixels(covered)


@dataclasses.dataclass(frozen=True)
class Noise:
    """Adds Gaussian noise with a standard deviation from U(0, deviation)."""

    size: int  # Side of a view in pixels, S.
    deviation: float = 0.2
    channels: int = 3

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers per view, by stream."""
        return {"noise": 1 + 2 * ((self.channels * self.size**2 + 1) // 2)}

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, K] in [0, 1]."""
        # Box-Muller transform; in float64 on a host, since the last bit of
        # logarithms and sines depends on a value's position in the batch.
        numbers = tf.cast(
            uniforms["noise"], tf.float32 if static else tf.float64
        )
        first, second = tf.split(numbers[:, 1:], 2, axis=1)
        radius = tf.sqrt(-2.0 * tf.math.log(1.0 - first)) * numbers[:, :1]
        angle = 2.0 * math.pi * second
        normal = tf.concat(
            [radius * tf.cos(angle), radius * tf.sin(angle)], axis=1
        )
        shape = [self.size, self.size, self.channels]
        normal = tf.cast(normal[:, : math.prod(shape)], tf.float32)
        noise = tf.reshape(normal, [-1, *shape])
        return tf.clip_by_value(pixels + self.deviation * noise, 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class MotionBlur:
    """Averages along a line of random direction, as long as a blur's kernel."""

    streams: ClassVar[dict[str, int]] = {"motion_blur": 1}

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        size = pixels.shape[1]
        radius = max(gaussian_blur.kernel_radius(size), 1)
        angle = uniforms["motion_blur"]
        angle = math.pi * (angle if static else tf.cast(angle, tf.float64))
        steps = np.arange(-radius, radius + 1)
        places = tf.stack([tf.sin(angle) * steps, tf.cos(angle) * steps], 2)
        places = tf.cast(tf.round(places), tf.int32)
        # Sums of levels are exact in any order, which graphs may change.
        pixels = pillow.as_pixels(pillow.from_unit(pixels))
        total = tf.zeros_like(pixels)
        for step in range(len(steps)):
            down, right = tf.unstack(places[:, step], 2, 1)
            total += affine.shift(pixels, down, right, static)
        return tf.minimum(total * (1 / (255 * len(steps))), 1.0)
