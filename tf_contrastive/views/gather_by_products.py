"""Pixels read at places of their own by matrix products, for TPUs.

A TPU gathers single pixels hundreds of times slower than its matrix unit
selects them. A row of weights per output, zero but for one or two, multiplies
the rows of the image; a mask over the columns then selects the pixel. The left
and the right half of the image are above each other, which halves the mask.

TPUs round the factors of a product to bfloat16, eight bits of precision, which
keeps whole numbers up to 256.
"""

import tensorflow as tf

from tf_contrastive import distribution


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
    """Sums over rows and columns: [m, S^2, 3].

    Weights are [m, S^2, 2 S], of columns [m, S^2, 1, S // 2 + 1].
    """
    values = tf.matmul(weights, halves)
    values = tf.reshape(values, [-1, weights.shape[1], 3, columns.shape[-1]])
    # Exact, unlike a product.
    return tf.reduce_sum(values * columns, axis=-1)


def nearest(pixels: tf.Tensor, row: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
    """Reads views [m, S, S, 3] of whole numbers up to 256 at whole places.

    Places are int32 [m, S, S]; reads from outside give any pixel or 0.
    """
    size = pixels.shape[1]
    row, column = _in_halves(row, column, size)
    weights = tf.cast(tf.range(2 * size) == row, tf.float32)
    mask = tf.cast(tf.range(size // 2 + 1) == column, tf.float32)
    read = _read(weights, _halves(pixels), mask[:, :, tf.newaxis])
    return tf.reshape(read, [-1, size, size, 3])


def bilinear(pixels: tf.Tensor, row: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
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
