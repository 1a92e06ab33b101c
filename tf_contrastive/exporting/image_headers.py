"""How large an encoded image says it is, before anything is decoded.

A file of a few bytes can name a size of 100,000 x 100,000 pixels, for which a
decoder would ask for 30 GB. All here is TensorFlow operations on one file's
bytes, which fail where the bytes are no such file: the caller drops it.
"""

import tensorflow as tf

# Steps over the parts of a GIF up to its first image. Files of encoders take
# some dozens; one that is made to keep the server busy may not go on for long.
_MOST_STEPS = 1000
_FULL = 255  # Bytes of a full block of a GIF.


def checked(data: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """Passes on what may be decoded: JPEG, PNG, BMP, and a GIF's first image.

    Args:
      data: string [], a file's bytes.
      max_pixels: most pixels that it may have.

    Returns:
      string []; of a GIF without what follows its first image, so that no more
      than that is decoded.

    Raises:
      InvalidArgumentError: for another format, a header that is cut off, or
        more pixels.
    """
    data, pixels = tf.case(
        [
            (_starts(data, b"\xff\xd8\xff"), lambda: (data, _of_jpeg(data))),
            (_starts(data, b"\x89PNG"), lambda: (data, _of_png(data))),
            (_starts(data, b"GIF8"), lambda: _first_of_gif(data)),
            (_starts(data, b"BM"), lambda: (data, _of_bmp(data))),
        ],
        default=lambda: (data, tf.constant(-1, tf.int64)),
    )
    fits = tf.debugging.Assert(
        (pixels > 0) & (pixels <= max_pixels),
        ["no JPEG, PNG, GIF or BMP, or too large; pixels:", pixels],
    )
    # Decoding depends on the check by its input: an operation without state
    # is not held back by one that stands before it.
    with tf.control_dependencies([fits]):
        return tf.identity(data)


def _starts(data: tf.Tensor, magic: bytes) -> tf.Tensor:
    return tf.strings.substr(data, 0, len(magic)) == magic


def _number(
    data: tf.Tensor, at: int, size: int, big_endian: bool = False
) -> tf.Tensor:
    """The unsigned number of `size` bytes at byte `at`, int64 []."""
    text = tf.strings.substr(data, at, size)
    values = tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int64)
    # Fails where the file is too short.
    values = tf.reshape(values, [size])
    weights = [256**power for power in range(size)]
    weights = weights[::-1] if big_endian else weights
    return tf.reduce_sum(values * tf.constant(weights, tf.int64))


def _of_jpeg(data: tf.Tensor) -> tf.Tensor:
    shape = tf.cast(tf.io.extract_jpeg_shape(data), tf.int64)
    return shape[0] * shape[1]


def _of_png(data: tf.Tensor) -> tf.Tensor:
    return _number(data, 16, 4, True) * _number(data, 20, 4, True)


def _of_bmp(data: tf.Tensor) -> tf.Tensor:
    height = _number(data, 22, 4)  # Signed: negative from the top down.
    height = tf.where(height >= 2**31, 2**32 - height, height)
    return _number(data, 18, 4) * height


def _first_of_gif(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts a GIF off behind its first image; also returns its pixels."""
    parts = tf.cast(tf.io.decode_raw(data, tf.uint8), tf.int32)

    def pair(at):
        return tf.cast(parts[at] + 256 * parts[at + 1], tf.int64)

    def colors(flags):
        """Bytes of the table of colours that follows."""
        size = 3 * tf.bitwise.left_shift(2, tf.bitwise.bitwise_and(flags, 7))
        return tf.where(flags >= 128, size, 0)

    def skip_blocks(at, steps):
        """Behind the blocks that begin at `at`, the empty one included."""

        def body(at, steps):
            # A run of full blocks is one step.
            sizes = parts[at :: _FULL + 1]
            full = tf.concat([tf.cast(sizes == _FULL, tf.int32), [0]], 0)
            run = tf.argmin(full, output_type=tf.int32)
            size = tf.where(run > 0, run * (_FULL + 1), parts[at] + 1)
            return at + size, steps + 1

        def more(at, steps):
            return (parts[at] > 0) & (steps < _MOST_STEPS)

        at, steps = tf.while_loop(more, body, [at, steps])
        return at + 1, steps

    def skip_extension(at, steps):
        return skip_blocks(at + 2, steps)

    at, steps = tf.while_loop(
        lambda at, steps: (parts[at] == 0x21) & (steps < _MOST_STEPS),
        skip_extension,
        [13 + colors(parts[10]), 0],
    )
    is_image = parts[at] == 0x2C
    pixels = tf.maximum(pair(6), pair(at + 5)) * tf.maximum(
        pair(8), pair(at + 7)
    )
    flags = parts[at + 9]
    end, steps = skip_blocks(at + 10 + colors(flags) + 1, steps)
    whole = is_image & (steps < _MOST_STEPS) & (end <= tf.size(parts))
    first = tf.strings.join([tf.strings.substr(data, 0, end), b"\x3b"])
    return first, tf.where(whole, pixels, -1)
