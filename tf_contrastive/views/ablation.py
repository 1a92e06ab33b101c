"""Operations that only ablations apply (Chen et al. 2020, figures 4 and 5).

They act on every view. The paper leaves sizes and levels open; those here are
ours.
"""

import dataclasses
import math
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tf_contrastive.views import blur, geometry, pillow, prng, selection


@dataclasses.dataclass(frozen=True)
class Rotate:
    """Turns views by 0, 90, 180 or 270 degrees, counter-clockwise."""

    streams: ClassVar[dict[str, int]] = {"rotate": 1}

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Acts on pixels float32 [m, S, S, 3]."""
        quarters = tf.cast(unit["rotate"][:, 0] * 4, tf.int32)
        turns = [lambda x, _, k=k: tf.image.rot90(x, k) for k in (1, 2, 3)]
        return selection.apply(pixels, quarters, unit["rotate"], turns, static)


@dataclasses.dataclass(frozen=True)
class Cutout:
    """Hides a square of half the side, centred anywhere, behind grey."""

    streams: ClassVar[dict[str, int]] = {"cutout": 2}

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Acts on pixels float32 [m, S, S, 3] in [0, 1]."""
        size = pixels.shape[1]
        y, x = tf.unstack(tf.floor(unit["cutout"] * size), axis=1)
        half = tf.fill(tf.shape(y), float(size // 4))
        hidden = pillow.cutout(pillow.as_rows(pixels), half, y, x, fill=0.5)
        return pillow.as_pixels(hidden)


@dataclasses.dataclass(frozen=True)
class Noise:
    """Adds Gaussian noise whose deviation is U(0, deviation), and clips.

    Attributes:
      size: side of a view in pixels, S.
      deviation: highest standard deviation, pixels being in [0, 1].
    """

    size: int
    deviation: float = 0.2

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes."""
        return {"noise": 1 + 2 * self._pairs()}

    def _pairs(self) -> int:
        return (3 * self.size**2 + 1) // 2

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Acts on pixels float32 [m, S, S, 3] in [0, 1]."""
        # Box and Muller. In float64 on a host, for the last bit of logarithms
        # and sines depends on a value's position in the batch.
        uniform = tf.cast(unit["noise"], tf.float32 if static else tf.float64)
        first, second = tf.split(uniform[:, 1:], 2, axis=1)
        radius = tf.sqrt(-2.0 * tf.math.log(1.0 - first)) * uniform[:, :1]
        angle = 2.0 * math.pi * second
        normal = tf.concat(
            [radius * tf.cos(angle), radius * tf.sin(angle)], axis=1
        )
        normal = tf.cast(normal[:, : 3 * self.size**2], tf.float32)
        noise = tf.reshape(normal, [-1, self.size, self.size, 3])
        return tf.clip_by_value(pixels + self.deviation * noise, 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Sobel:
    """The length of every channel's Sobel gradient, clipped to 1."""

    streams: ClassVar[dict[str, int]] = {}

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Acts on pixels float32 [m, S, S, 3] in [0, 1]."""
        squares = tf.square(tf.image.sobel_edges(pixels))
        return tf.minimum(tf.sqrt(tf.reduce_sum(squares, axis=-1)), 1.0)


@dataclasses.dataclass(frozen=True)
class Equalize:
    """Spreads the 8-bit levels of every channel evenly."""

    streams: ClassVar[dict[str, int]] = {}

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Acts on pixels float32 [m, S, S, 3] in [0, 1]."""
        return pillow.to_unit(pillow.equalize(pillow.from_unit(pixels)))


@dataclasses.dataclass(frozen=True)
class Solarize:
    """Inverts the upper half of the 8-bit levels."""

    streams: ClassVar[dict[str, int]] = {}

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Acts on pixels float32 [m, S, S, 3] in [0, 1]."""
        threshold = tf.fill(tf.shape(pixels)[:1], 128.0)
        inverted = pillow.solarize(pillow.from_unit(pixels), threshold)
        return pillow.to_unit(inverted)


@dataclasses.dataclass(frozen=True)
class MotionBlur:
    """Averages along a line, as long as a blur's kernel, in any direction."""

    streams: ClassVar[dict[str, int]] = {"motion_blur": 1}

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Acts on pixels float32 [m, S, S, 3]."""
        size = pixels.shape[1]
        radius = max(blur.kernel_radius(size), 1)
        angle = math.pi * tf.cast(unit["motion_blur"], tf.float64)
        steps = np.arange(-radius, radius + 1)
        down = tf.cast(tf.round(tf.sin(angle) * steps), tf.int32)
        right = tf.cast(tf.round(tf.cos(angle) * steps), tf.int32)
        # Sums of levels are exact in any order, which graphs may change.
        pixels = pillow.as_pixels(pillow.from_unit(pixels))
        total = tf.zeros_like(pixels)
        for step in range(len(steps)):
            total += geometry.shift(pixels, down[:, step], right[:, step])
        return tf.minimum(total * (1 / (255 * len(steps))), 1.0)
