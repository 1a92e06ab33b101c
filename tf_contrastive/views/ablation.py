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

from tf_contrastive.views import affine, blur, pillow, prng, selection


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A function of the pixels alone, without random numbers."""

    function: Callable[[tf.Tensor], tf.Tensor]

    streams: ClassVar[dict[str, int]] = {}

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        return self.function(pixels)


def sobel(pixels: tf.Tensor) -> tf.Tensor:
    """The magnitude of every channel's Sobel gradient, clipped to 1."""
    squares = tf.square(tf.image.sobel_edges(pixels))
    return tf.minimum(tf.sqrt(tf.reduce_sum(squares, axis=-1)), 1.0)


def equalize(pixels: tf.Tensor) -> tf.Tensor:
    """Equalizes the histogram of every channel's 8-bit levels."""
    return pillow.to_unit(pillow.equalize(pillow.from_unit(pixels)))


def solarize(pixels: tf.Tensor) -> tf.Tensor:
    """Inverts the upper half of the 8-bit levels."""
    threshold = tf.fill(tf.shape(pixels)[:1], 128.0)
    return pillow.to_unit(pillow.solarize(pillow.from_unit(pixels), threshold))


SOBEL, EQUALIZE, SOLARIZE = Fixed(sobel), Fixed(equalize), Fixed(solarize)


@dataclasses.dataclass(frozen=True)
class Rotate:
    """Rotates views by 0, 90, 180 or 270 degrees, counter-clockwise."""

    streams: ClassVar[dict[str, int]] = {"rotate": 1}

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        quarters = tf.cast(uniforms["rotate"][:, 0] * 4, tf.int32)
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

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers per view, by stream."""
        return {"noise": 1 + 2 * ((3 * self.size**2 + 1) // 2)}

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
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
        normal = tf.cast(normal[:, : 3 * self.size**2], tf.float32)
        noise = tf.reshape(normal, [-1, self.size, self.size, 3])
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
        radius = max(blur.kernel_radius(size), 1)
        angle = math.pi * tf.cast(uniforms["motion_blur"], tf.float64)
        steps = np.arange(-radius, radius + 1)
        down = tf.cast(tf.round(tf.sin(angle) * steps), tf.int32)
        right = tf.cast(tf.round(tf.cos(angle) * steps), tf.int32)
        # Sums of levels are exact in any order, which graphs may change.
        pixels = pillow.as_pixels(pillow.from_unit(pixels))
        total = tf.zeros_like(pixels)
        for step in range(len(steps)):
            total += affine.shift(pixels, down[:, step], right[:, step])
        return tf.minimum(total * (1 / (255 * len(steps))), 1.0)
