"""Nearest-neighbour affine transforms of a batch, a matrix per view.

Pillow's convention: pixel (x, y) has its centre at (x + 0.5, y + 0.5), and a
matrix (a, b, c, d, e, f) maps an output to the place where it is read, at
(a x + b y + c, d x + e y + f).
"""

import math

import numpy as np
import tensorflow as tf

from tf_contrastive import distribution

TRANSFORMS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


def matrices(
    kind: tf.Tensor, argument: tf.Tensor, size: int, static: bool = False
) -> tf.Tensor:
    """Matrices of transforms, float64 [m, 6]; float32 for a device (`static`).

    Kinds, int32 [m], are positions in `TRANSFORMS`; others give the identity.
    Arguments, float32 [m], are a shear's slope, a translation in pixels, or a
    rotation about the centre in degrees, counter-clockwise.
    """
    # In float64 on a host, since the last bit of sines depends on a value's
    # position in the batch.
    if not static:
        argument = tf.cast(argument, tf.float64)
    shear_x, shear_y, shift_x, shift_y, turn = (
        tf.where(kind == k, argument, 0.0) for k in range(len(TRANSFORMS))
    )
    cos, sin = tf.cos(turn * (math.pi / 180)), tf.sin(turn * (math.pi / 180))
    centre = 0.5 * size
    corner_x = centre - cos * centre + sin * centre
    corner_y = centre - sin * centre - cos * centre
    rows = [cos, shear_x - sin, shift_x + corner_x]
    rows += [shear_y + sin, cos, shift_y + corner_y]
    return tf.stack(rows, axis=1)


def gather(pixels: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Reads views [m, S, T, c] at places of their own: [m, h, w, c].

    `places` are int32 [m, h, w], row times T plus column.
    """
    rows, columns, depth = pixels.shape[1:]
    height, width = places.shape[1:]
    # All views at once: on a host, twice as fast as tf.gather.
    first = tf.range(tf.shape(pixels)[0]) * (rows * columns)
    indices = places + tf.reshape(first, [-1, 1, 1])
    values = tf.gather_nd(
        tf.reshape(pixels, [-1, depth]), tf.reshape(indices, [-1, 1])
    )
    return tf.reshape(values, [-1, height, width, depth])


def transform(
    pixels: tf.Tensor, matrix: tf.Tensor, fill: float, static: bool = False
) -> tf.Tensor:
    """Transforms views of levels, float32 [m, S, S, 3], by matrices [m, 6].

    `fill` is the value of the pixels beyond the border. `static`: for a device.
    """
    size = pixels.shape[1]
    a, b, c, d, e, f = tf.unstack(matrix, axis=1)
    centred = [a, b, c + 0.5 * (a + b), d, e, f + 0.5 * (d + e)]
    # In whole 65536ths of a pixel, like Pillow: exact under any compiler.
    fixed = tf.cast(tf.floor(tf.stack(centred) * 65536.0 + 0.5), tf.int32)
    a, b, c, d, e, f = tf.unstack(tf.reshape(fixed, [6, -1, 1, 1]))
    rows, columns = np.ogrid[:size, :size]
    x = tf.bitwise.right_shift(a * columns + (b * rows + c), 16)
    y = tf.bitwise.right_shift(d * columns + (e * rows + f), 16)
    if static and distribution.on_tpu():
        inside = (x >= 0) & (x < size) & (y >= 0) & (y < size)
        read = _nearest_by_products(pixels, y, x)
        return tf.where(inside[..., tf.newaxis], read, fill)
    # Reads from outside get a pixel of a frame of one pixel.
    x, y = (tf.clip_by_value(place, -1, size) for place in (x, y))
    padded = tf.pad(
        pixels, [[0, 0], [1, 1], [1, 1], [0, 0]], constant_values=fill
    )
    wide = size + 2
    return gather(padded, y * wide + (x + wide + 1))


def shift(
    pixels: tf.Tensor, down: tf.Tensor, right: tf.Tensor, static: bool
) -> tf.Tensor:
    """Reads views [m, S, S, 3] from `down` rows below, `right` columns right.

    Both are int32 [m]. Reads beyond the border give the border. On a TPU,
    pixels are whole numbers up to 256.
    """
    size = pixels.shape[1]
    place = tf.range(size)
    rows = tf.clip_by_value(place + down[:, tf.newaxis], 0, size - 1)
    columns = tf.clip_by_value(place + right[:, tf.newaxis], 0, size - 1)
    rows, columns = rows[:, :, tf.newaxis], columns[:, tf.newaxis]
    if static and distribution.on_tpu():
        shape = tf.shape(pixels)[:3]
        rows, columns = (tf.broadcast_to(x, shape) for x in (rows, columns))
        return _nearest_by_products(pixels, rows, columns)
    return gather(pixels, rows * size + columns)


# ---- For TPUs ----------------------------------------------------------------

# A TPU gathers single pixels hundreds of times slower than its matrix unit
# selects them. A row of weights per output, zero but for one or two, multiplies
# the rows of the image; a mask over the columns then selects the pixel. The
# left and the right half of the image are above each other, which halves the
# mask. Factors are rounded to bfloat16, which keeps whole numbers up to 256.


def _halves(pixels: tf.Tensor) -> tf.Tensor:
    """Halves of [m, S, S, 3] above each other, [m, 2 S, 3 (S // 2 + 1)]."""
    size = pixels.shape[1]
    width = size // 2 + 1
    planes = tf.transpose(pixels, [0, 1, 3, 2])
    halves = [planes[..., :width], planes[..., size - width :]]
    return tf.reshape(tf.concat(halves, axis=1), [-1, 2 * size, 3 * width])


def _in_halves(
    row: tf.Tensor, column: tf.Tensor, size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Places int32 [m, S, S] as places in `_halves`, both [m, S^2, 1]."""
    start = size - (size // 2 + 1)
    right = column >= start
    row = tf.where(right, row + size, row)
    column = tf.where(right, column - start, column)
    shape = [-1, size**2, 1]
    return tf.reshape(row, shape), tf.reshape(column, shape)


def _read(
    weights: tf.Tensor, halves: tf.Tensor, columns: tf.Tensor
) -> tf.Tensor:
    """Sums over weights [m, S^2, 2 S] and columns: [m, S^2, 3]."""
    values = tf.matmul(weights, halves)
    values = tf.reshape(values, [-1, weights.shape[1], 3, columns.shape[-1]])
    # Exact, unlike a product.
    return tf.reduce_sum(values * columns, axis=-1)


def _nearest_by_products(
    pixels: tf.Tensor, row: tf.Tensor, column: tf.Tensor
) -> tf.Tensor:
    """Reads whole numbers up to 256 at int32 [m, S, S]; outside: any pixel."""
    size = pixels.shape[1]
    row, column = _in_halves(row, column, size)
    weights = tf.cast(tf.range(2 * size) == row, tf.float32)
    mask = tf.cast(tf.range(size // 2 + 1) == column, tf.float32)
    read = _read(weights, _halves(pixels), mask[:, :, tf.newaxis])
    return tf.reshape(read, [-1, size, size, 3])


def bilinear_by_products(
    pixels: tf.Tensor, row: tf.Tensor, column: tf.Tensor
) -> tf.Tensor:
    """Reads views float32 [m, S, S, 3] between pixels, to 2^-16 of a value.

    Places are float32 [m, S, S] in [0, S - 1].
    """
    size = pixels.shape[1]
    shape = [-1, size**2, 1]
    y, x = tf.floor(row), tf.floor(column)
    down, right = tf.reshape(row - y, shape), tf.reshape(column - x, shape)
    y, x = _in_halves(tf.cast(y, tf.int32), tf.cast(x, tf.int32), size)

    def weights(
        count: int, place: tf.Tensor, first: tf.Tensor, second: tf.Tensor
    ) -> tf.Tensor:
        number = tf.range(count)
        second = tf.where(number == place + 1, second, 0.0)
        return tf.where(number == place, first, second)

    columns = weights(size // 2 + 1, x, 1.0 - right, right)[:, :, tf.newaxis]
    # The product of both rests is below the precision of the others.
    upper, lower = (
        distribution.bfloat16_parts(1.0 - down),
        distribution.bfloat16_parts(down),
    )
    high, low = (
        weights(2 * size, y, *pair) for pair in zip(upper, lower, strict=True)
    )
    high_halves, low_halves = distribution.bfloat16_parts(_halves(pixels))
    read = _read(high, high_halves, columns)
    read += _read(high, low_halves, columns) + _read(low, high_halves, columns)
    return tf.reshape(read, [-1, size, size, 3])
