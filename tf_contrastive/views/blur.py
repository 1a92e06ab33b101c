"""Gaussian blur of a batch, with a width per image."""

import dataclasses

import numpy as np
import tensorflow as tf

from tf_contrastive.views import draws


def kernel_radius(size: int) -> int:
    """Pixels on each side of a kernel about a tenth of the image wide."""
    return size // 10 // 2


def _reach(size: int) -> np.ndarray:
    """Where each tap of a kernel reads, as float32 [radius + 1, size * size].

    Entry [d, i, j] counts how often output i reads input j at distance d. The
    image continues mirrored about its outermost pixels ("reflect"), so that
    borders do not darken.
    """
    radius = kernel_radius(size)
    reach = np.zeros((radius + 1, size, size), np.float32)
    rows = np.arange(size)
    for offset in range(-radius, radius + 1):
        columns = np.abs(rows + offset)
        columns = np.where(columns >= size, 2 * (size - 1) - columns, columns)
        reach[abs(offset), rows, columns] += 1.0
    return reach.reshape(radius + 1, size * size)


@dataclasses.dataclass(frozen=True)
class GaussianBlur:
    """SimCLR's blur (Chen et al. 2020, appendix A): sigma in U(0.1, 2.0).

    The kernel is a tenth of the image's side wide; images under 20 pixels have
    a kernel of one pixel and are left as they are. Every view has its own
    sigma. The convolution is a product with one banded matrix per view and
    axis, which suits CPUs and matrix units alike; where shapes are static, a
    view that is not blurred has the identity.

    Attributes:
      probability: share of the views that are blurred.
      sigma: lowest and highest standard deviation in pixels.
    """

    probability: float = 0.5
    sigma: tuple[float, float] = (0.1, 2.0)

    planar = True

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes."""
        return {"blur": 2}

    def weights(self, unit: tf.Tensor, radius: int) -> tf.Tensor:
        """Kernel weights at distances 0..radius, float32 [m, radius + 1]."""
        blurred = unit[:, :1] < self.probability
        # In float64, for tf.exp's last bit depends on a value's position in
        # the batch; rounding to float32 forgets it.
        sigma = tf.cast(draws.between(unit[:, 1:], *self.sigma), tf.float64)
        distance = tf.range(radius + 1, dtype=tf.float64)
        kernel = tf.exp(-0.5 * tf.square(distance / sigma))
        total = 2.0 * tf.reduce_sum(kernel, axis=1, keepdims=True) - 1.0
        untouched = tf.one_hot([0], radius + 1)
        kernel = tf.cast(kernel / total, tf.float32)
        return tf.where(blurred, kernel, untouched)

    def __call__(
        self, planes: tf.Tensor, unit: draws.Unit, static: bool = False
    ) -> tf.Tensor:
        """Blurs planes float32 [3, m, S, S]."""
        radius = kernel_radius(planes.shape[-1])
        if not radius:
            return planes
        weights = self.weights(unit["blur"], radius)
        if static:
            return _convolve(planes, weights)
        rows = tf.where(unit["blur"][:, 0] < self.probability)
        blurred = _convolve(
            tf.gather(planes, rows[:, 0], axis=1),
            tf.gather(weights, rows[:, 0]),
        )
        merged = map(
            lambda plane, part: tf.tensor_scatter_nd_update(plane, rows, part),
            tf.unstack(planes),
            tf.unstack(blurred),
        )
        return tf.stack(list(merged))


def _convolve(planes: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Convolves planes [3, k, S, S] with kernels [k, radius + 1] both ways."""
    size = planes.shape[-1]
    bands = tf.reshape(tf.matmul(weights, _reach(size)), [-1, size, size])
    planes = tf.matmul(tf.matmul(bands, planes), bands, transpose_b=True)
    # Weights sum to 1 up to rounding.
    return tf.minimum(planes, 1.0)
