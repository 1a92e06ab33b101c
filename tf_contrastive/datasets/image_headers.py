"""What the header of an encoded image says, read before it is decoded.

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
_MAX_SCANS = 20
_SCAN = b"\xff\xda"  # Starts a scan; it cannot occur within one.
_GIF = b"GIF8"
_FULL = 255  # Bytes of a full block of a GIF.
# EXIF data are a JPEG's first or second segment, of 64 KB at most.
_EXIF_BYTES = 1 << 17
_ORIENTATION = 0x0112  # Its tag.


def check(data: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """Returns an image file's bytes, string [], if they may be decoded.

    Those of a GIF are cut off after its first image; see `first_image`.

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
            (starts(_GIF), lambda: _first_of_gif(data)),
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


def first_image(data: tf.Tensor) -> tf.Tensor:
    """Cuts the bytes, string [], of a GIF off after its first image.

    TensorFlow decodes all images of a GIF, also where it returns only one.
    Bytes of other formats are returned unchanged.
    """
    return tf.cond(
        tf.strings.substr(data, 0, len(_GIF)) == _GIF,
        lambda: _first_of_gif(data)[0],
        lambda: data,
    )


def orientation(data: tf.Tensor) -> tf.Tensor:
    """Reads the EXIF orientation of a JPEG's bytes, string [].

    Returns:
      1 to 8, int32 []; 1, which is upright, if there is none.
    """
    head = tf.strings.substr(data, 0, _EXIF_BYTES)
    follows = tf.concat([tf.strings.split(head, b"Exif\0\0"), ["", ""]], 0)[1]
    is_jpeg = tf.strings.substr(data, 0, 2) == b"\xff\xd8"
    parts = tf.cast(tf.io.decode_raw(follows, tf.uint8), tf.int32)
    # What lies beyond the end reads as 0.
    parts = tf.concat([parts, [0]], 0)
    end = tf.size(parts) - 1
    is_little = parts[0] == ord("I")

    def number(at: tf.Tensor) -> tf.Tensor:
        """Returns the 16-bit numbers at some bytes."""
        first = tf.gather(parts, tf.minimum(at, end))
        second = tf.gather(parts, tf.minimum(at + 1, end))
        return tf.where(is_little, first + 256 * second, 256 * first + second)

    # The first directory: its place, the number of entries, and the entries.
    directory = number(tf.where(is_little, 4, 6))
    at = directory + 2 + 12 * tf.range(number(directory))
    found = tf.boolean_mask(number(at + 8), number(at) == _ORIENTATION)
    value = tf.concat([found, [1]], 0)[0]
    return tf.where(is_jpeg & (value >= 1) & (value <= 8), value, 1)


def upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Turns an image [h, w, K] to the orientation of its EXIF data, 1 to 8."""

    def turned() -> tf.Tensor:
        across = tf.cond(
            orientation >= 5,
            lambda: tf.transpose(image, [1, 0, 2]),
            lambda: image,
        )
        vertical = tf.reduce_any(orientation == [3, 4, 7, 8])
        horizontal = tf.reduce_any(orientation == [2, 3, 6, 7])
        return tf.raw_ops.Reverse(
            tensor=across, dims=tf.stack([vertical, horizontal, False])
        )

    turned_image = tf.cond(orientation > 1, turned, lambda: image)
    turned_image.set_shape([None, None, image.shape[-1]])
    return turned_image


def is_native(data: tf.Tensor) -> tf.Tensor:
    """Whether TensorFlow decodes the bytes, string [], of a file; bool []."""
    magic = [b"\xff\xd8\xff", b"\x89PNG", _GIF, b"BM"]
    starts = [tf.strings.substr(data, 0, len(m)) == m for m in magic]
    return tf.reduce_any(starts)


def has_too_many_scans(contents: bytes) -> bool:
    """Whether the bytes of a JPEG have more scans than an encoder makes."""
    return contents.count(_SCAN) > _MAX_SCANS


def _number(data: tf.Tensor, at: int, little_endian: bool = True) -> tf.Tensor:
    """Returns the unsigned number of 4 bytes at byte `at`, int64 []."""
    text = tf.strings.substr(data, at, 4)
    value = tf.io.decode_raw(text, tf.int32, little_endian)
    # Fails if the file is too short.
    value = tf.reshape(value, [])
    return tf.cast(tf.bitcast(value, tf.uint32), tf.int64)


# Not inlined: its loops would cost each image of another format a millisecond.
@tf.function(
    input_signature=[tf.TensorSpec([], tf.string)],
    autograph=False,
    experimental_attributes={"_noinline": True},
)
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
