"""SimAugment's warp: a thin-plate spline through four displaced points."""

import dataclasses
import math
from typing import ClassVar

import numpy as np
import scipy.interpolate
import tensorflow as tf

from tf_contrastive.config.views import Views
from tf_contrastive.views import affine, prng, selection

# Standard deviation of a displacement, at most, in pixels at 224 x 224.
_MAX_DEVIATION = 23.0
# Rows and columns, at most, at which the spline itself is computed.
_MAX_NODES = 64


def _spline(distance: tf.Tensor) -> tf.Tensor:
    """The thin-plate kernel of squared distances: r^2 log r."""
    return 0.5 * distance * tf.math.log(tf.maximum(distance, 1e-10))


def _squared_distances(
    y: tf.Tensor, x: tf.Tensor, points: tf.Tensor
) -> tf.Tensor:
    """Squared distances [m, 4, p] of places [.., p] to points [m, 4, 2]."""
    dy = y - points[:, :, :1]
    dx = x - points[:, :, 1:]
    return dy * dy + dx * dx


def flow(points: tf.Tensor, targets: tf.Tensor, size: int) -> tf.Tensor:
    """The thin-plate spline that displaces points.

    Points and targets are [m, 4, 2] (row, column), the displacement of each
    output float32 [m, 2, S, S], all in pixels. Large views compute logarithms
    only at some nodes, with cubic interpolation between them, exact to a
    hundredth of a pixel. Units of the side keep the equations well conditioned.
    """
    unit = 1.0 / size
    shift, centre = (targets - points) * unit, targets * unit
    distance = _squared_distances(
        tf.linalg.matrix_transpose(centre[:, :, :1]),
        tf.linalg.matrix_transpose(centre[:, :, 1:]),
        centre,
    )
    linear = tf.concat([centre, tf.ones_like(centre[:, :, :1])], axis=2)
    top = tf.concat([_spline(distance), linear], axis=2)
    zeros = tf.zeros_like(linear[:, :3])
    bottom = tf.concat([tf.linalg.matrix_transpose(linear), zeros], axis=2)
    equations = tf.concat([top, bottom], axis=1)
    values = tf.pad(shift, [[0, 0], [0, 3], [0, 0]])
    weights = tf.linalg.solve(equations, values)
    count = min(size, _MAX_NODES)
    nodes = np.linspace(0.0, size - 1.0, count)
    y, x = (
        tf.constant(part.reshape(1, -1), points.dtype)
        for part in np.meshgrid(nodes * unit, nodes * unit, indexing="ij")
    )
    kernel = _spline(_squared_distances(y, x, centre))
    curved = tf.matmul(weights[:, :4], kernel, transpose_a=True)
    row, column, constant = tf.unstack(weights[:, 4:, :, tf.newaxis], axis=1)
    field = (curved + row * y + column * x + constant) * size
    field = tf.cast(tf.reshape(field, [-1, 2, count, count]), tf.float32)
    # From the nodes to every row, [size, count].
    cubic = scipy.interpolate.CubicSpline(nodes, np.eye(count))
    whole = count == size
    matrix = tf.constant(
        np.eye(size) if whole else cubic(np.arange(size)), tf.float32
    )
    return tf.matmul(matrix, tf.matmul(field, matrix, transpose_b=True))


def resample(
    pixels: tf.Tensor, displacement: tf.Tensor, static: bool = False
) -> tf.Tensor:
    """Reads every output at its place minus its displacement, bilinearly.

    Displacements are float32 [m, 2, S, S] in pixels, rows and columns. Reads
    beyond the border of pixels [m, S, S, 3] give the border. `static`: for a
    device.
    """
    size = pixels.shape[1]
    place = np.indices([size, size]).astype(np.float32)
    read = tf.clip_by_value(place - displacement, 0.0, size - 1.0)
    corner = tf.minimum(tf.floor(read), size - 2.0)
    fraction = (read - corner)[..., tf.newaxis]
    if not static:
        # Exact, and several times as fast as a broadcast along channels.
        fraction = tf.matmul(fraction, tf.ones([1, 3]))
    down, right = tf.unstack(fraction, axis=1)
    row, column = tf.unstack(tf.cast(corner, tf.int32), axis=1)
    first = row * size + column

    def at(offset: int) -> tf.Tensor:
        return affine.gather(pixels, first + offset)

    upper, lower = at(0), at(size)
    upper = upper + right * (at(1) - upper)
    lower = lower + right * (at(size + 1) - lower)
    return upper + down * (lower - upper)


@dataclasses.dataclass(frozen=True)
class Warp:
    """SupCon's warp (Khosla et al. 2020, TensorFlow code).

    Four points at the thirds of the view are displaced by N(0, I) L with L in
    U(0, 23) pixels at 224 x 224, scaled with the side; a thin-plate spline
    displaces all other pixels.
    """

    probability: float = Views.warp_probability

    streams: ClassVar[dict[str, int]] = {"warp": 10}

    def displacements(self, uniforms: tf.Tensor, size: int) -> tf.Tensor:
        """Displacements in pixels, [m, 4, 2] of the type of `uniforms`."""
        length = uniforms[:, 1:2] * (_MAX_DEVIATION * size / 224)
        # Box-Muller transform: two normal numbers of two uniform ones.
        radius = tf.sqrt(-2.0 * tf.math.log(1.0 - uniforms[:, 2:6]))
        angle = 2.0 * math.pi * uniforms[:, 6:]
        normal = tf.stack(
            [radius * tf.cos(angle), radius * tf.sin(angle)], axis=2
        )
        return normal * length[:, :, tf.newaxis]

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        size = pixels.shape[1]
        thirds = np.array([size / 3, 2 * size / 3])
        grid = np.stack(np.meshgrid(thirds, thirds, indexing="ij"), -1)

        def warp(pixels: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
            # In float64 on a host, since the last bit of logarithms and sines
            # depends on a value's position in the batch.
            numbers = numbers if static else tf.cast(numbers, tf.float64)
            points = tf.constant(grid.reshape(1, 4, 2), numbers.dtype)
            targets = points + self.displacements(numbers, size)
            return resample(pixels, flow(points, targets, size), static)

        numbers = uniforms["warp"]
        mask = numbers[:, 0] < self.probability
        return selection.apply_where(mask, warp, pixels, numbers, static)
