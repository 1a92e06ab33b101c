"""Checks the size in an encoded image's header before anything is decoded.

A file of a few bytes can declare 100,000 x 100,000 pixels, for which a decoder
would allocate 30 GB. A progressive JPEG can have thousands of scans, and each
takes as long as the whole image. The functions are TensorFlow operations on the
bytes of one file. They fail if the bytes are not such a file; the caller drops
it.
"""

import tensorflow as tf

# Limit of the steps over the parts of a GIF before its first image. Ordinary
# files take some dozens; a malicious one must not keep the server busy.
_MAX_STEPS = 1000
# Scans of a JPEG. Encoders write at most about a dozen; a thumbnail in the
# metadata has its own.
_MAX_SCANS = 30
_SCAN = b"\xff\xda"  # Starts a scan; it cannot occur within one.
_FULL = 255  # Bytes of a full block of a GIF.


def check(data: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """Returns what may be decoded: JPEG, PNG, BMP, or a GIF's first image.

    The bytes, string [], of a GIF are cut off after its first image, so that
    only this one is decoded.

    Raises:
      InvalidArgumentError: for another format, an incomplete header, more
        pixels, or a JPEG of too many scans.
    """

    def starts(magic: bytes) -> tf.Tensor:
        return tf.strings.substr(data, 0, len(magic)) == magic

    def of_jpeg() -> tuple[tf.Tensor, tf.Tensor]:
        shape = tf.io.extract_jpeg_shape(data, tf.int64)
        scans = tf.size(tf.strings.split(data, _SCAN)) - 1
        return data, tf.where(scans <= _MAX_SCANS, shape[0] * shape[1], -1)

    def of_png() -> tuple[tf.Tensor, tf.Tensor]:
        return data, _number(data, 16, False) * _number(data, 20, False)

    def of_bmp() -> tuple[tf.Tensor, tf.Tensor]:
        height = _number(data, 22)  # Signed: negative from the top down.
        height = tf.where(height >= 2**31, 2**32 - height, height)
        return data, _number(data, 18) * height

    checked, pixels = tf.case(
        [
            (starts(b"\xff\xd8\xff"), of_jpeg),
            (starts(b"\x89PNG"), of_png),
            (starts(b"GIF8"), lambda: _first_of_gif(data)),
            (starts(b"BM"), of_bmp),
        ],
        default=lambda: (data, tf.constant(-1, tf.int64)),
    )
    fits = tf.debugging.Assert(
        (pixels > 0) & (pixels <= max_pixels),
        ["not a JPEG, PNG, GIF or BMP, or too much; pixels:", pixels],
    )
    # Decoding must take the result as its input: stateless operations do not
    # wait for an earlier assertion.
    with tf.control_dependencies([fits]):
        return tf.identity(checked)


def _number(data: tf.Tensor, at: int, little_endian: bool = True) -> tf.Tensor:
    """Returns the unsigned number of 4 bytes at byte `at`, int64 []."""
    text = tf.strings.substr(data, at, 4)
    value = tf.io.decode_raw(text, tf.int32, little_endian)
    # Fails if the file is too short.
    value = tf.reshape(value, [])
    return tf.cast(tf.bitcast(value, tf.uint32), tf.int64)


def _first_of_gif(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (a GIF cut off after its first image, that image's pixels)."""
    parts = tf.cast(tf.io.decode_raw(data, tf.uint8), tf.int32)

    def pair(at: tf.Tensor) -> tf.Tensor:
        return tf.cast(parts[at] + 256 * parts[at + 1], tf.int64)

    def color_bytes(flags: tf.Tensor) -> tf.Tensor:
        """Returns the size of the colour table that the flags announce."""
        size = 3 * tf.bitwise.left_shift(2, tf.bitwise.bitwise_and(flags, 7))
        return tf.where(flags >= 128, size, 0)

    def skip_blocks(at: tf.Tensor, steps: tf.Tensor) -> list[tf.Tensor]:
        """Skips the blocks from `at` on, including the empty last one."""

        def body(at: tf.Tensor, steps: tf.Tensor) -> list[tf.Tensor]:
            # A run of full blocks is one step.
            sizes = parts[at :: _FULL + 1]
            full = tf.concat([tf.cast(sizes == _FULL, tf.int32), [0]], 0)
            run = tf.argmin(full, output_type=tf.int32)
            size = tf.where(run > 0, run * (_FULL + 1), parts[at] + 1)
            return [at + size, steps + 1]

        def more(at: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
            return (parts[at] > 0) & (steps < _MAX_STEPS)

        at, steps = tf.while_loop(more, body, [at, steps])
        return [at + 1, steps]

    at, steps = tf.while_loop(
        lambda at, steps: (parts[at] == 0x21) & (steps < _MAX_STEPS),
        lambda at, steps: skip_blocks(at + 2, steps),
        [13 + color_bytes(parts[10]), 0],
    )
    is_image = parts[at] == 0x2C
    pixels = tf.maximum(pair(6), pair(at + 5)) * tf.maximum(
        pair(8), pair(at + 7)
    )
    flags = parts[at + 9]
    end, steps = skip_blocks(at + 10 + color_bytes(flags) + 1, steps)
    whole = is_image & (steps < _MAX_STEPS) & (end <= tf.size(parts))
    first = tf.strings.join([tf.strings.substr(data, 0, end), b"\x3b"])
    return first, tf.where(whole, pixels, -1)
