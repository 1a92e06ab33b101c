"""SimAugment's warp: a thin-plate spline through four displaced points."""

import dataclasses
import math
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.views import affine, prng, selection

# Standard deviation of a displacement, at most, in pixels at 224 x 224.
_MAX_DEVIATION = 23.0
# Rows and columns, at most, at which the spline itself is computed.
_MAX_NODES = 64


def _spline(distance: tf.Tensor) -> tf.Tensor:
    """The thin-plate kernel of squared distances: r^2 log r."""
    return 0.5 * distance * tf.math.log(tf.maximum(distance, 1e-10))


def _cross(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
    """Twice the signed area of triangles, [m]; their corners are [m, 2]."""
    b, c = b - a, c - a
    return b[:, 0] * c[:, 1] - b[:, 1] * c[:, 0]


def _weights(
    centre: tf.Tensor, shift: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The spline with values `shift` at points `centre`, both [m, 4, 2].

    Returns the weights of the points' kernels [m, 4], by which to multiply
    them, their factors [m, 2], and of each output row, column and 1 [m, 3, 2].
    Weights are orthogonal to rows, columns and 1, which leaves one direction
    for four points; the rest is a plane. Sums, since a device may round its
    matrix products.
    """
    a, b, c, d = tf.unstack(centre, axis=1)
    minors = [_cross(b, c, d), -_cross(a, c, d), _cross(a, b, d)]
    direction = tf.stack([*minors, -_cross(a, b, c)], axis=1)
    differences = centre[:, :, tf.newaxis] - centre[:, tf.newaxis]
    kernels = _spline(tf.reduce_sum(tf.square(differences), axis=3))
    bend = tf.reduce_sum(kernels * direction[:, tf.newaxis], axis=2)
    factor = tf.reduce_sum(direction[:, :, tf.newaxis] * shift, axis=1)
    factor /= tf.reduce_sum(direction * bend, axis=1, keepdims=True)
    rest = shift - bend[:, :, tf.newaxis] * factor[:, tf.newaxis]
    # The plane, by the normal equations about the mean of the points.
    mean = tf.reduce_mean(centre, axis=1, keepdims=True)
    y, x = tf.unstack((centre - mean)[..., tf.newaxis], axis=2)
    y_y, y_x, x_x, y_rest, x_rest = (
        tf.reduce_sum(product, axis=1)
        for product in (y * y, y * x, x * x, y * rest, x * rest)
    )
    determinant = y_y * x_x - y_x * y_x
    row = (x_x * y_rest - y_x * x_rest) / determinant
    column = (y_y * x_rest - y_x * y_rest) / determinant
    constant = tf.reduce_mean(rest, axis=1)
    constant -= row * mean[:, :, 0] + column * mean[:, :, 1]
    return direction, factor, tf.stack([row, column, constant], axis=1)


def flow(
    points: tf.Tensor, targets: tf.Tensor, size: int, static: bool = False
) -> tf.Tensor:
    """The thin-plate spline that displaces points.

    Points and targets are [m, 4, 2] (row, column), the displacement of each
    output float32 [m, 2, S, S], all in pixels. On a host, large views compute
    logarithms only at some nodes, with cubic interpolation between them, exact
    to a hundredth of a pixel. Units of the side keep the equations well
    conditioned.
    """
    unit = 1.0 / size
    centre = targets * unit
    direction, factor, plane = _weights(centre, (targets - points) * unit)
    count = size if static else min(size, _MAX_NODES)
    nodes = np.linspace(0.0, size - 1.0, count)
    x = tf.constant(nodes * unit, points.dtype)
    y = x[:, tf.newaxis]

    def each(values: tf.Tensor) -> tf.Tensor:
        """Makes [m, n] broadcast against [m, n, rows, columns]."""
        return values[..., tf.newaxis, tf.newaxis]

    distance = tf.square(y - each(centre[:, :, 0]))
    distance += tf.square(x - each(centre[:, :, 1]))
    curved = each(direction) * _spline(distance)
    curved = tf.reduce_sum(curved, axis=1, keepdims=True)
    row, column, constant = map(each, tf.unstack(plane, axis=1))
    field = curved * each(factor) + row * y + column * x + constant
    field = tf.cast(field * size, tf.float32)
    if count == size:
        return field
    # From the nodes to every row, [size, count].
    import scipy.interpolate  # Of this policy alone, and slow to import.

    cubic = scipy.interpolate.CubicSpline(nodes, np.eye(count))
    matrix = tf.constant(cubic(np.arange(size)), tf.float32)
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
    place = tf.range(size, dtype=tf.float32)
    place = tf.stack(tf.meshgrid(place, place, indexing="ij"))
    read = tf.clip_by_value(place - displacement, 0.0, size - 1.0)
    if static and distribution.on_tpu():
        return affine.bilinear_by_products(pixels, *tf.unstack(read, axis=1))
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

    probability: float

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
            displacement = flow(points, targets, size, static)
            return resample(pixels, displacement, static)

        numbers = uniforms["warp"]
        mask = numbers[:, 0] < self.probability
        return selection.apply_where(
            mask, warp, pixels, numbers, static, costly=True
        )
