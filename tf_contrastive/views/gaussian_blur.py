"""Gaussian blur of a batch, with a width per image."""

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tf_contrastive.views import pillow, prng, selection

# Rows of a block, at most: smaller blocks multiply less with zero, but copy
# more.
_BLOCK = 28
# Lowest and highest standard deviation in pixels.
_SIGMA = 0.1, 2.0


def kernel_radius(size: int) -> int:
    """Pixels on each side of a kernel about a tenth of the image wide."""
    return size // 10 // 2


def _windows(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows that each block depends on, int32 [blocks, length + 2 radius].

    And float32 [radius + 1, length, length + 2 radius], 1 where an output reads
    at each distance. The image is continued by reflection about its outermost
    pixels, so that borders do not darken.
    """
    radius = kernel_radius(size)
    blocks = -(-size // _BLOCK)
    length = -(-size // blocks)
    window = np.arange(length + 2 * radius)
    rows = np.arange(0, blocks * length, length)[:, np.newaxis] + window
    rows = np.abs(rows - radius)
    rows = np.where(rows >= size, 2 * (size - 1) - rows, rows)
    distance = np.abs(window - np.arange(length)[:, np.newaxis] - radius)
    reads = distance == np.arange(radius + 1)[:, np.newaxis, np.newaxis]
    # Rows beyond the reflected radius belong to outputs that are cut off.
    return np.maximum(rows, 0).astype(np.int32), reads.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class GaussianBlur:
    """SimCLR's blur (Chen et al. 2020, appendix A): sigma in U(0.1, 2.0).

    The kernel is a tenth of the image's side wide; images under 20 pixels are
    left unchanged. The convolution is a product of blocks of rows with a banded
    matrix per view, done twice with rows and columns swapped.
    """

    probability: float = 0.5

    streams: ClassVar[dict[str, int]] = {"blur": 2}

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        radius = kernel_radius(pixels.shape[1])
        if not radius:
            return pixels
        blurred = uniforms["blur"][:, 0] < self.probability
        weights = _kernels(uniforms["blur"], radius, static)
        convolve = _add_shifted if static else _convolve
        return selection.apply_where(blurred, convolve, pixels, weights, static)


def _kernels(uniforms: tf.Tensor, radius: int, static: bool) -> tf.Tensor:
    """Kernel weights at distances 0..radius, float32 [m, radius + 1]."""
    # In float64 on a host, since the last bit of tf.exp depends on the
    # position in the batch; rounding to float32 removes it.
    dtype = tf.float32 if static else tf.float64
    sigma = tf.cast(prng.lerp(uniforms[:, 1:], *_SIGMA), dtype)
    distance = tf.range(radius + 1, dtype=dtype)
    kernel = tf.exp(-0.5 * tf.square(distance / sigma))
    total = 2.0 * tf.reduce_sum(kernel, axis=1, keepdims=True) - 1.0
    return tf.cast(kernel / total, tf.float32)


def _add_shifted(pixels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """`_convolve` by sums, since devices round the factors of a product."""
    size, radius = pixels.shape[1], weights.shape[1] - 1
    weights = tf.reshape(weights, [-1, radius + 1, 1, 1, 1])
    for axis in (1, 2):
        paddings = np.zeros([4, 2], np.int32)
        paddings[axis] = radius
        padded = tf.pad(pixels, paddings, "REFLECT")

        def shifted(
            start: int, padded: tf.Tensor = padded, axis: int = axis
        ) -> tf.Tensor:
            index = [slice(None)] * axis + [slice(start, start + size)]
            return padded[tuple(index)]

        pixels = weights[:, 0] * pixels
        for k in range(1, radius + 1):
            pixels += weights[:, k] * (
                shifted(radius - k) + shifted(radius + k)
            )
    return tf.minimum(pixels, 1.0)


def _convolve(pixels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Convolves views [k, S, S, 3] with kernels [k, radius + 1] both ways."""
    size = pixels.shape[1]
    windows, reads = _windows(size)
    bands = tf.matmul(weights, reads.reshape(len(reads), -1))
    bands = tf.reshape(bands, [-1, 1, *reads.shape[1:]])
    height = len(windows) * reads.shape[1]
    for _ in range(2):
        rows = tf.gather(pillow.as_rows(pixels), windows, axis=1)
        rows = tf.reshape(tf.matmul(bands, rows), [-1, height, 3 * size])
        pixels = tf.transpose(pillow.as_pixels(rows[:, :size]), [0, 2, 1, 3])
    # Weights sum to 1 up to rounding.
    return tf.minimum(pixels, 1.0)
