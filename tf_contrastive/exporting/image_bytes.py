"""Checks of encoded images in a SavedModel, which has no Python.

A file of a few bytes can declare 100,000 x 100,000 pixels, for which a decoder
would allocate 30 GB; a progressive JPEG can have thousands of scans, and each
takes as long as the whole image; and TensorFlow inflates all that a PNG holds.
The functions are TensorFlow operations on the bytes of one JPEG, PNG or .npy
file. They fail if the bytes are not such a file; the caller drops it.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import decoding
from tf_contrastive.datasets.decoding import JPEG_START, PNG_START, starts

_HOST = "/device:CPU:0"

# Limit of the steps over the metadata of a JPEG. Ordinary files take some
# dozens; a malicious one must not keep the server busy.
_MAX_STEPS = 1000
_XMP_ORIENTATION = b"tiff:Orientation"
_MAX_METADATA = 1 << 16  # Bytes, as a JPEG can have in a segment.
# Types of an orientation's value, of 16 and of 32 bits, and TIFF's mark.
_SHORTS, _LONGS, _TIFF = (3, 8), (4, 9), 42
_ABSENT = -1
_FILL = 0xFFFF  # The marker of a byte that fills a gap in a JPEG.
# Channels -> a PNG's type of colour: grey, with alpha, RGB, with alpha.
_PNG_COLORS = {1: b"\0", 2: b"\4", 3: b"\2", 4: b"\6"}
# The start of a .npy file of an image after its first byte, the bytes to which
# `numpy.save` pads its header, and the types of its values.
_NPY_START = (
    r"^NUMPY\x01\x00v\x00\{'descr': '([|<]..)',"
    r" 'fortran_order': False, 'shape':"
)
_NPY_BYTES = 128
_NPY_TYPES = {"|u1": tf.uint8, "<u2": tf.uint16, "<f4": tf.float32}


def on_host(function: Callable) -> Callable:
    """Keeps a function's operations on the CPU.

    TensorFlow would place some on a GPU, each with copies of a few bytes; and
    beside an H200 a few PNGs were turned otherwise than their EXIF data say.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            scope = tf.device(_HOST)
        else:  # The branches of `tf.cond` inherit only a function.
            scope = tf.compat.v1.device(lambda _: _HOST)
        with scope:
            return function(*args, **kwargs)

    return run


@on_host
def decode(data: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """Decodes a JPEG's or PNG's bytes, string [], as Pillow does, upright.

    Returns:
      uint8 [h, w, 3].

    Raises:
      InvalidArgumentError: for other formats, a JPEG of four channels or of too
        many scans, more pixels, a PNG of far more bytes than its pixels have,
        or whose EXIF data are in a text.
    """

    def of_jpeg() -> tf.Tensor:
        shape = tf.io.extract_jpeg_shape(data, tf.int64)
        scans = tf.size(tf.strings.split(data, decoding.SCAN)) - 1
        fits = (shape[2] < 4) & (scans <= decoding.MAX_SCANS)
        return tf.where(fits, shape[0] * shape[1], -1)

    is_jpeg, is_png = starts(data, JPEG_START), starts(data, PNG_START)
    pixels = tf.case(
        [(is_jpeg, of_jpeg), (is_png, lambda: _pixels_of_png(data))],
        default=lambda: tf.constant(-1, tf.int64),
    )
    data = _checked(data, pixels, max_pixels)
    angle = orientation(data)
    with tf.control_dependencies([angle]):
        image = tf.cond(
            is_jpeg,
            lambda: decoding.decode_jpeg(data),
            lambda: decoding.decode_png(data),
        )
    image.set_shape([None, None, 3])
    return decoding.upright(image, angle)


@on_host
def decode_whole(
    data: tf.Tensor, max_pixels: int, reading: Reading
) -> tf.Tensor:
    """Decodes the bytes, string [], of a .npy file or a PNG, of all channels.

    A .npy file is as `numpy.save` writes an array [h, w, C], in C order, of
    uint8, uint16 or float32; a PNG has 8 or 16 bits, and at most 4 channels.

    Returns:
      float32 [h, w, C] in [0, 1], as `reading` says.

    Raises:
      InvalidArgumentError: for other formats or channels, more pixels, or
        floats out of range.
    """
    values, largest = _of_npy_or_png(data, max_pixels, reading.channels)
    low, high = reading.value_range or (0.0, largest)
    image = (values - low) / (high - low)
    fits = (image >= 0) & (image <= 1)
    if reading.value_range:
        fits = tf.math.is_finite(image)
    check = tf.debugging.Assert(tf.reduce_all(fits), ["floats out of range"])
    with tf.control_dependencies([check]):
        return tf.cast(tf.clip_by_value(image, 0.0, 1.0), tf.float32)


def _of_npy_or_png(
    data: tf.Tensor, max_pixels: int, channels: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns values [h, w, C], and the largest of their type, float64."""

    def of_npy() -> tuple[tf.Tensor, tf.Tensor]:
        last = f"(, {channels})" + "?" * (channels == 1)
        form = rf"{_NPY_START} \((\d{{1,8}}), (\d{{1,8}}){last}\), \}} *\n$"
        header = tf.strings.substr(data, 1, _NPY_BYTES - 1)
        header = tf.strings.regex_replace(header, form, r"\1 \2 \3")
        kind, *sides = tf.unstack(tf.strings.split(header)[:3], 3)
        # Fails for another header.
        sides = tf.strings.to_number(sides, tf.int64)
        checked = _checked(data, tf.reduce_prod(sides), max_pixels)
        rest = tf.strings.length(data) - _NPY_BYTES
        body = tf.strings.substr(checked, _NPY_BYTES, rest)

        def read(dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
            values = tf.cast(tf.io.decode_raw(body, dtype), tf.float64)
            largest = dtype.max if dtype.is_integer else 1
            return values, tf.constant(largest, tf.float64)

        cases = [
            (kind == name, functools.partial(read, dtype))
            for name, dtype in _NPY_TYPES.items()
        ]
        values, largest = tf.case(cases)
        return tf.reshape(values, [*tf.unstack(sides), channels]), largest

    def of_png() -> tuple[tf.Tensor, tf.Tensor]:
        fits = tf.strings.substr(data, 25, 1) == _PNG_COLORS[channels]
        pixels = tf.where(fits, _pixels_of_png(data), -1)
        checked = _checked(data, pixels, max_pixels)
        values = tf.io.decode_png(checked, channels, tf.uint16)
        # 8 bits are decoded to multiples of 257.
        has_16_bits = tf.strings.substr(data, 24, 1) == b"\x10"
        unit = tf.cast(tf.where(has_16_bits, 1, 257), tf.float64)
        return tf.cast(values, tf.float64) / unit, 65535.0 / unit

    if channels not in _PNG_COLORS:
        return of_npy()
    return tf.cond(starts(data, PNG_START), of_png, of_npy)


def _pixels_of_png(data: tf.Tensor) -> tf.Tensor:
    """Returns the pixels of a PNG, int64 []; -1 if it has far more bytes."""
    width, height = _number(data, 16), _number(data, 20)
    length = tf.cast(tf.strings.length(data), tf.int64)
    fits = length <= decoding.most_png_bytes(width, height)
    return tf.where(fits, width * height, -1)


def _checked(data: tf.Tensor, pixels: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """Returns the same bytes; fails unless their image has 1 to `max_pixels`.

    What decodes takes the result: stateless operations do not wait for an
    assertion, and what runs while another fails is cancelled, which TensorFlow
    might report instead, and no dataset ignores.
    """
    fits = tf.debugging.Assert(
        (pixels > 0) & (pixels <= max_pixels),
        ["not a usual image file, or too much; pixels:", pixels],
    )
    with tf.control_dependencies([fits]):
        return tf.identity(data)


@on_host
def orientation(data: tf.Tensor) -> tf.Tensor:
    """Reads the orientation of a JPEG's or PNG's bytes, string [].

    It is in the EXIF data or, if those lack it, in the XMP data.

    Returns:
      1 to 8, int32 []; 1, which is upright, if there is none.
    """
    exif, xmp = tf.cond(
        starts(data, JPEG_START),
        lambda: _jpeg_metadata(data),
        lambda: _png_metadata(data),
    )
    # Some programs write the mark twice.
    exif = tf.strings.regex_replace(exif, r"^(Exif\x00\x00)+", b"")
    value = _of_exif(tf.io.decode_raw(exif, tf.uint8))
    value = tf.cond(value == _ABSENT, lambda: _of_xmp(xmp), lambda: value)
    return tf.where((value >= 1) & (value <= 8), value, 1)


# Not inlined: what few files need would cost all others time, since operations
# take some even if they are not executed.
def _on_bytes(function: Callable) -> Callable:
    return tf.function(
        on_host(function),
        input_signature=[tf.TensorSpec([], tf.string)],
        autograph=False,
        experimental_attributes={"_noinline": True},
    )


def _number(data: tf.Tensor, at: int | tf.Tensor) -> tf.Tensor:
    """Returns the unsigned number of 4 bytes at byte `at`, int64 []."""
    text = tf.strings.substr(data, at, 4)
    value = tf.io.decode_raw(text, tf.int32, little_endian=False)
    value = tf.reshape(value, [])  # Fails if the file is too short.
    return tf.cast(tf.bitcast(value, tf.uint32), tf.int64)


def _segment(data: tf.Tensor, at: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a JPEG segment's marker, 0 beyond the file, and its end."""
    text = tf.strings.substr(data, tf.minimum(at, tf.strings.length(data)), 4)
    parts = tf.io.decode_raw(tf.strings.join([text, bytes(4)]), tf.uint8)
    parts = tf.cast(parts, tf.int32)
    marker = 256 * parts[0] + parts[1]
    end = at + 2 + 256 * parts[2] + parts[3]
    return marker, tf.where(marker == _FILL, at + 1, end)


@_on_bytes
def _jpeg_metadata(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a JPEG's first EXIF data and its last XMP data, string []."""

    def more(at: tf.Tensor, steps: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
        marker, _ = _segment(data, at)
        # Of an application, a comment, or a byte that fills a gap.
        is_metadata = (marker // 16 == 0xFFE) | (marker == 0xFFFE)
        return (is_metadata | (marker == _FILL)) & (steps < _MAX_STEPS)

    def body(
        at: tf.Tensor, steps: tf.Tensor, exif: tf.Tensor, xmp: tf.Tensor
    ) -> list[tf.Tensor]:
        marker, end = _segment(data, at)
        start = tf.minimum(at + 4, tf.strings.length(data))
        text = tf.strings.substr(data, start, tf.maximum(end - start, 0))
        is_app1 = marker == 0xFFE1
        is_exif = is_app1 & starts(text, decoding.EXIF) & (exif == b"")
        is_xmp = is_app1 & starts(text, decoding.XMP)
        return [
            tf.maximum(end, at + 1),
            steps + 1,
            tf.where(is_exif, text, exif),
            tf.where(is_xmp, text, xmp),
        ]

    empty = tf.constant(b"")
    *_, exif, xmp = tf.while_loop(more, body, [2, 0, empty, empty])
    return exif, xmp


@_on_bytes
def _png_metadata(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a PNG's EXIF data and its XMP data, string []."""
    end = tf.strings.length(data)

    def chunk(mark: bytes) -> tf.Tensor:
        """Returns what follows in a chunk of this type, and of these bytes."""
        at = tf.strings.length(tf.strings.split(data, mark, maxsplit=1)[0])
        length = _number(data, at - 4) + 4 - len(mark)
        length = tf.clip_by_value(length, 0, _MAX_METADATA)
        start = tf.minimum(at + len(mark), end)
        return tf.strings.substr(data, start, tf.cast(length, tf.int32))

    parts = tf.strings.split(data, decoding.PNG_TEXT, maxsplit=1)
    unread = tf.debugging.Assert(tf.size(parts) < 2, ["EXIF data in a text"])
    with tf.control_dependencies([unread]):
        return chunk(decoding.PNG_EXIF), chunk(b"iTXt" + decoding.PNG_XMP)


def _of_exif(block: tf.Tensor) -> tf.Tensor:
    """Returns the orientation in EXIF data, uint8 [n]; `_ABSENT` if none."""
    parts = tf.cast(block, tf.int32)
    # What lies beyond the end reads as 0.
    parts = tf.concat([parts, [0]], 0)
    end = tf.size(parts) - 1
    is_little = parts[0] == ord("I")

    def number(at: tf.Tensor) -> tf.Tensor:
        """Returns the 16-bit numbers at some bytes."""
        first, second = (
            tf.gather(parts, tf.minimum(at + i, end)) for i in (0, 1)
        )
        return tf.where(is_little, first + 256 * second, 256 * first + second)

    def long(at: tf.Tensor) -> tf.Tensor:
        """Returns the lower half of 32-bit numbers."""
        return number(at + tf.where(is_little, 0, 2))

    # The first directory: its place, the number of entries, and the entries.
    directory = long(tf.constant(4))
    at = directory + 2 + 12 * tf.range(number(directory))
    is_exif = (parts[0] == parts[tf.minimum(1, end)]) & (number(2) == _TIFF)
    is_entry = (number(at) == decoding.ORIENTATION) & is_exif
    at = tf.boolean_mask(at, is_entry)
    kind, count = number(at + 2)[:, tf.newaxis], long(at + 4)
    is_short = tf.reduce_any(kind == _SHORTS, 1)
    is_long = tf.reduce_any(kind == _LONGS, 1)
    value = tf.where(is_short, number(at + 8), long(at + 8))
    # Of several values the first, if they are not elsewhere.
    usual = is_short & (count <= 2) | is_long & (count <= 1)
    value = tf.where(usual & (count > 0), value, 1)
    return tf.concat([value, [_ABSENT]], 0)[0]


def _of_xmp(text: tf.Tensor) -> tf.Tensor:
    """Returns the orientation in XMP data, string []; 1 if none."""
    follow = tf.strings.split(text, _XMP_ORIENTATION)[1:]
    follow = tf.strings.substr(follow, 0, 3)
    form = r'^(="|>)([0-9])\C*$'
    values = tf.boolean_mask(follow, tf.strings.regex_full_match(follow, form))
    values = tf.strings.regex_replace(values, form, r"\2")
    values = tf.strings.to_number(values, tf.int32)
    return tf.concat([values, [1]], 0)[0]
