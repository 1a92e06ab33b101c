"""Pillow's operations on 8-bit levels, for a batch of views.

Views and results are rows, float32 [m, S, 3 S], of whole numbers from 0 to 255:
values of a view or a channel then broadcast along whole rows, several times as
fast as along the three channels of [m, S, S, 3]. Arguments are float32 [m], one
per view. The references are Pillow's `ImageOps` and `ImageEnhance`.
"""

import numpy as np
import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.views import affine

FILL = 128.0  # Value beyond the border, and of a cutout.

# ITU-R BT.601 in 16 bits, like Pillow: products and sums of levels are exact in
# float32, in any order.
_LUMA = np.array([19595, 38470, 7471], np.float32) / 65536

# Distance between two levels, by the number of bits that are kept.
_STEPS = np.exp2(np.arange(8, -1, -1)).astype(np.float32)


def as_rows(pixels: tf.Tensor) -> tf.Tensor:
    """Views [m, S, S, 3] as rows [m, S, 3 S], without a copy."""
    size = pixels.shape[1]
    return tf.reshape(pixels, [-1, size, 3 * size])


def as_pixels(rows: tf.Tensor) -> tf.Tensor:
    """Rows [m, S, 3 S] as views [m, S, S, 3], without a copy."""
    size = rows.shape[1]
    return tf.reshape(rows, [-1, size, size, 3])


def from_unit(pixels: tf.Tensor) -> tf.Tensor:
    """Rounds pixels [m, S, S, 3] in [0, 1] to rows of levels."""
    return tf.round(as_rows(pixels) * 255.0)


def to_unit(rows: tf.Tensor) -> tf.Tensor:
    """Converts rows of levels to pixels [m, S, S, 3] in [0, 1]."""
    return as_pixels(rows * (1 / 255))


def per_view(values: tf.Tensor) -> tf.Tensor:
    """Makes [m] broadcast against rows."""
    return tf.reshape(values, [-1, 1, 1])


def _per_channel(values: tf.Tensor, size: int) -> tf.Tensor:
    """Makes [m, 3] broadcast against rows."""
    return tf.reshape(tf.tile(values, [1, size]), [-1, 1, 3 * size])


def weighted_gray(
    rows: tf.Tensor, weights: np.ndarray, static: bool
) -> tf.Tensor:
    """The weighted sum of the channels, in all three: [m, S, 3 S]."""
    # A matrix product is several times as fast as sums of strided channels on a
    # host; accelerators would round it.
    if static:
        pixels = as_pixels(rows)
        gray = tf.reduce_sum(pixels * weights, axis=-1, keepdims=True)
        return as_rows(tf.broadcast_to(gray, tf.shape(pixels)))
    flat = tf.reshape(rows, [-1, 3])
    gray = tf.matmul(flat, np.repeat(weights[:, np.newaxis], 3, axis=1))
    return tf.reshape(gray, [-1, *rows.shape[1:]])


def channel_means(rows: tf.Tensor, static: bool = False) -> tf.Tensor:
    """The mean of each view's channels, float64 [m, 3]; float32 if `static`."""
    size = rows.shape[1]
    # Down the columns first, several times as fast; then in float64, so that a
    # view's mean does not depend on the batch.
    sums = tf.reduce_sum(rows, axis=1)
    if not static:
        sums = tf.cast(sums, tf.float64)
    sums = tf.reduce_sum(tf.reshape(sums, [-1, size, 3]), axis=1)
    return sums * (1 / size**2)


def gray(rows: tf.Tensor, static: bool = False) -> tf.Tensor:
    """Pillow's `convert("L")`, in three equal channels."""
    return tf.floor(weighted_gray(rows, _LUMA, static) + 0.5)


def blend(
    degenerate: tf.Tensor, rows: tf.Tensor, factor: tf.Tensor
) -> tf.Tensor:
    """Pillow's `Image.blend`: 0 gives the degenerate image, 1 the view."""
    blended = degenerate + per_view(factor) * (rows - degenerate)
    return tf.floor(tf.clip_by_value(blended, 0.0, 255.0))


def color(
    rows: tf.Tensor, factor: tf.Tensor, static: bool = False
) -> tf.Tensor:
    """Blends with the grayscale image."""
    return blend(gray(rows, static), rows, factor)


def contrast(
    rows: tf.Tensor, factor: tf.Tensor, static: bool = False
) -> tf.Tensor:
    """Blends with the mean of the grayscale image."""
    # Sums of rows are exact in float32, sums of images only as integers: the
    # mean must not depend on the order of summation.
    sums = tf.reduce_sum(gray(rows, static), axis=2)
    total = tf.reduce_sum(tf.cast(sums, tf.int32) // 3, axis=1)
    count = rows.shape[1] ** 2
    mean = (total + count // 2) // count  # Rounded.
    return blend(per_view(tf.cast(mean, tf.float32)), rows, factor)


def brightness(rows: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Blends with black."""
    return tf.floor(tf.minimum(rows * per_view(factor), 255.0))


def sharpness(rows: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Blends with the image smoothed by [[1,1,1],[1,5,1],[1,1,1]]/13."""
    if rows.shape[1] < 3:
        return rows
    middle = rows[:, 1:-1]
    inner = middle[:, :, 3:-3]
    total = rows[:, :-2] + middle + rows[:, 2:]
    total = total[:, :, :-6] + total[:, :, 3:-3] + total[:, :, 6:]
    # Slightly more than a half compensates rounding.
    smooth = tf.floor((total + 4.0 * inner) * (1 / 13) + 0.501)
    inner = blend(smooth, inner, factor)
    inner = tf.concat([middle[:, :, :3], inner, middle[:, :, -3:]], axis=2)
    return tf.concat([rows[:, :1], inner, rows[:, -1:]], axis=1)


def invert(rows: tf.Tensor) -> tf.Tensor:
    """Maps every level x to 255 - x."""
    return 255.0 - rows


def posterize(rows: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    """Keeps the highest bits of every level."""
    place = tf.cast(tf.clip_by_value(bits, 0.0, 8.0), tf.int32)
    step = per_view(tf.gather(_STEPS, place))
    return tf.floor(rows * (1.0 / step)) * step


def solarize(rows: tf.Tensor, threshold: tf.Tensor) -> tf.Tensor:
    """Inverts the levels from the threshold up."""
    return tf.where(rows < per_view(threshold), rows, 255.0 - rows)


def solarize_add(rows: tf.Tensor, addition: tf.Tensor) -> tf.Tensor:
    """Adds to the levels below 128."""
    added = tf.minimum(rows + per_view(addition), 255.0)
    return tf.where(rows < 128.0, added, rows)


def autocontrast(rows: tf.Tensor) -> tf.Tensor:
    """Stretches every channel to 0..255."""
    size = rows.shape[1]
    # Down the columns first, several times as fast.
    low = tf.reshape(tf.reduce_min(rows, axis=1), [-1, size, 3])
    high = tf.reshape(tf.reduce_max(rows, axis=1), [-1, size, 3])
    low, high = tf.reduce_min(low, axis=1), tf.reduce_max(high, axis=1)
    constant = high <= low
    scale = tf.where(constant, 1.0, 255.0 / tf.maximum(high - low, 1.0))
    low = tf.where(constant, 0.0, low)
    low, scale = _per_channel(low, size), _per_channel(scale, size)
    # Exact results are multiples of 1 / (high - low): the addition only
    # compensates rounding.
    return tf.floor((rows - low) * scale + 1e-3)


def equalize(rows: tf.Tensor, static: bool = False) -> tf.Tensor:
    """Equalizes the histogram of every channel."""
    size = rows.shape[1]
    if static and distribution.on_tpu():
        return _equalize_by_products(rows)
    channel = np.tile(np.arange(0, 768, 256, dtype=np.int32), size**2)
    bins = tf.cast(tf.reshape(rows, [-1, 3 * size**2]), tf.int32) + channel
    counts = tf.raw_ops.DenseBincount(
        input=bins, size=768, weights=tf.constant([], tf.int32)
    )
    table = _equalization(tf.reshape(counts, [-1, 3, 256]), size)
    # Tables as views of 1 x 768 pixels of one channel.
    equal = affine.gather(
        tf.reshape(table, [-1, 1, 768, 1]), tf.expand_dims(bins, 1)
    )
    return tf.reshape(equal, [-1, size, 3 * size])


def _equalization(counts: tf.Tensor, size: int) -> tf.Tensor:
    """The new level of each level, float32 [m, 3, 256], by int32 counts."""
    level = tf.range(256)
    highest = tf.reduce_max(tf.where(counts > 0, level, 0), -1, keepdims=True)
    last = tf.where(level == highest, counts, 0)
    last = tf.reduce_sum(last, axis=-1, keepdims=True)
    step = (size**2 - last) // 255
    below = tf.cumsum(counts, axis=-1, exclusive=True)
    table = tf.minimum((below + step // 2) // tf.maximum(step, 1), 255)
    return tf.cast(tf.where(step > 0, table, level), tf.float32)


def _equalize_by_products(rows: tf.Tensor) -> tf.Tensor:
    """`equalize` without a scatter or a gather, which TPUs do one by one.

    A level is 16 high + low; products of zeros and ones count and look up the
    pairs. Every factor is a whole number below 256, exact in bfloat16.
    """
    size = rows.shape[1]
    levels = tf.transpose(tf.reshape(rows, [-1, size**2, 3]), [0, 2, 1])
    digit = tf.floor(levels * (1 / 16))
    number = tf.range(16, dtype=tf.float32)
    high = tf.cast(digit[..., tf.newaxis] == number, tf.float32)
    low = (levels - 16.0 * digit)[..., tf.newaxis] == number
    low = tf.cast(low, tf.float32)
    counts = tf.cast(tf.matmul(high, low, transpose_a=True), tf.int32)
    table = _equalization(tf.reshape(counts, [-1, 3, 256]), size)
    table = tf.reshape(table, [-1, 3, 16, 16])
    equal = tf.reduce_sum(tf.matmul(high, table) * low, axis=-1)
    equal = tf.transpose(equal, [0, 2, 1])
    return tf.reshape(equal, [-1, size, 3 * size])


def cutout(
    rows: tf.Tensor,
    half: tf.Tensor,
    y: tf.Tensor,
    x: tf.Tensor,
    fill: float = FILL,
) -> tf.Tensor:
    """Fills the part inside the view of a square of side 2 * half at (y, x).

    `half`, `y` and `x` are float32 [m], whole numbers of pixels.
    """
    size = rows.shape[1]
    down = _covered(tf.range(size, dtype=tf.float32), y, half)
    place = np.repeat(np.arange(size, dtype=np.float32), 3)
    covered = down[:, :, tf.newaxis] & _covered(place, x, half)[:, tf.newaxis]
    return tf.where(covered, fill, rows)


def _covered(place: tf.Tensor, centre: tf.Tensor, half: tf.Tensor) -> tf.Tensor:
    offset = place - centre[:, tf.newaxis]
    half = half[:, tf.newaxis]
    return (offset >= -half) & (offset < half)
