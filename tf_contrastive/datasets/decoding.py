"""Decoding of encoded images, by TensorFlow where its pixels are Pillow's.

The result is that of Pillow, uint8 RGB: grey is tiled, alpha is dropped, 16-bit
grey keeps its upper 8 bits, and several images are the first.
"""

import contextlib
import functools
import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import PIL.features
import PIL.Image
import PIL.ImageOps
import tensorflow as tf

from tf_contrastive.base import installation

# Pillow's name of a format -> the extensions of its files. TensorFlow decodes
# the first two.
_FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"),
    "PNG": (".png", ".apng"),
    "GIF": (".gif",),
    "BMP": (".bmp", ".dib"),
    "WEBP": (".webp",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "AVIF": (".avif", ".avifs"),
    "HEIF": (".heic", ".heif", ".hif"),
}
FORMATS = tuple(_FORMATS)
JPEG_START, PNG_START = b"\xff\xd8\xff", b"\x89PNG"
# Start and length of the sides in a PNG; both have four bytes.
_PNG_SIZE = (16, 8)
# Of an image that is decoded.
MAX_PIXELS = 2**27
# Scans of a JPEG, each of which takes as long as the whole image. Encoders
# write at most about a dozen; a thumbnail in the metadata has its own.
MAX_SCANS = 20
SCAN = b"\xff\xda"  # Starts a scan; it cannot occur within one.
# Bytes of a PNG beyond those of its pixels, a thousand times as many of which
# TensorFlow would inflate.
_MAX_MORE = 1 << 18
# The tag of the orientation, and marks of the metadata of a JPEG or PNG that
# may have one; EXIF data in a text are ImageMagick's.
ORIENTATION = 0x0112
EXIF, XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
PNG_EXIF, PNG_XMP = b"eXIf", b"XML:com.adobe.xmp\0"
PNG_TEXT = b"Raw profile type exif\0"
_MARKS = (EXIF, XMP, PNG_EXIF, PNG_XMP, PNG_TEXT)
# Of a TIFF: tags of a tile's sides, and the pixels of a tile, which Pillow
# allocates, unless the image is large.
_TILE_SIDES = (322, 323)
_MAX_TILE = 1 << 22
# Whether graphs may call Pillow; see `without_python`.
_graphs = {"python": True}


# ---- Formats -----------------------------------------------------------------


@functools.cache
def formats() -> dict[str, tuple[str, ...]]:
    """The formats that can be read here, with the extensions of their files."""
    absent = set()
    if not PIL.features.check("avif"):
        absent.add("AVIF")
    if installation.missing("pillow_heif", "heic"):
        absent.add("HEIF")
    else:
        import pillow_heif

        pillow_heif.register_heif_opener()
    return {name: _FORMATS[name] for name in FORMATS if name not in absent}


@functools.cache
def extensions() -> tuple[str, ...]:
    """The extensions of the image files that can be read here."""
    return tuple(ending for endings in formats().values() for ending in endings)


def lacking(names: Iterable[str]) -> str:
    """Returns what would read HEIC files that are not read here, or nothing."""
    has_heic = any(n.lower().endswith(_FORMATS["HEIF"]) for n in names)
    problem = has_heic and installation.missing("pillow_heif", "heic")
    return f"; HEIC needs {problem}" if problem else ""


# ---- Pillow ------------------------------------------------------------------


class UnsupportedError(ValueError):
    """An image whose numbers have no form as 8 bits."""


class TileError(ValueError):
    """A TIFF whose tiles are larger than the image."""


def opened(contents: bytes) -> PIL.Image.Image:
    """Returns an image file's bytes as Pillow opens them, to be closed."""
    return PIL.Image.open(io.BytesIO(contents), formats=list(formats()))


def orientation_of(image: PIL.Image.Image, contents: bytes) -> int:
    """Returns the orientation of a JPEG or PNG, 1 to 8, by its metadata."""
    # Pillow would decode others, too.
    if not any(mark in contents for mark in _MARKS):
        return 1
    value = image.getexif().get(ORIENTATION, 1)
    return value if value in range(1, 9) else 1


def check_tiles(image: PIL.Image.Image) -> None:
    """Raises `TileError` for a TIFF that Pillow reads in too much memory."""
    tags = image.tag_v2  # type: ignore[attr-defined]
    height, width = (int(tags.get(tag, 0)) for tag in _TILE_SIDES)
    if height * width > max(_MAX_TILE, 4 * image.size[0] * image.size[1]):
        raise TileError


def by_pillow(contents: bytes, turn: bool) -> np.ndarray:
    """Returns an image file's pixels, uint8 [h, w, 3].

    Args:
      contents: its bytes.
      turn: whether to turn it as its EXIF data say.

    Raises:
      UnsupportedError: for floating-point and 32-bit numbers.
    """
    with opened(contents) as image:
        # A PGM file of 16 bits has mode I, too, and the largest value 65,535.
        is_deep = image.mode.startswith("I;16") or (
            image.mode == "I" and image.format == "PPM"
        )
        if image.mode in ("I", "F") and not is_deep:
            raise UnsupportedError
        turned = PIL.ImageOps.exif_transpose(image) if turn else image
        if is_deep:
            upper = (np.asarray(turned) >> 8).astype(np.uint8)
            turned = PIL.Image.fromarray(upper)
        return np.asarray(turned.convert("RGB"))


def by_python(
    function: Callable[[Any], np.ndarray],
    value: tf.Tensor,
    dtype: tf.DType,
    channels: int,
) -> tf.Tensor:
    """Returns the image [h, w, channels] that Python makes of a value."""

    def call(value: Any) -> np.ndarray:
        # Outside of a graph a text is an array of one object.
        is_text = isinstance(value, np.ndarray) and value.dtype == object
        return function(value.item() if is_text else value)

    # Stateless, so that graphs may leave it out.
    image = tf.numpy_function(call, [value], dtype, stateful=False)
    image.set_shape([None, None, channels])
    return image


def pillow(contents: tf.Tensor, turn: bool = False) -> tf.Tensor:
    """Returns `by_pillow` of bytes, string [], in a graph."""
    read = functools.partial(by_pillow, turn=turn)
    return by_python(read, contents, tf.uint8, 3)


@contextlib.contextmanager
def without_python() -> Iterator[None]:
    """Keeps Pillow out of the graphs that are made in this context.

    The hosts of a TPU pod have no Python.
    """
    before = _graphs["python"]
    _graphs["python"] = False
    try:
        yield
    finally:
        _graphs["python"] = before


# ---- TensorFlow --------------------------------------------------------------


def decode_jpeg(
    contents: tf.Tensor, halvings: tf.Tensor | None = None
) -> tf.Tensor:
    """Decodes a JPEG of at most three channels to uint8 [h, w, 3].

    `halvings`, 0 to 3, int32 [], is how often it is halved: faster than
    decoding all of it.
    """

    def decode(number: int = 0) -> tf.Tensor:
        # As Pillow does. The faster transform overflows, from white to black,
        # where neighbours are black and white.
        return tf.io.decode_jpeg(
            contents, channels=3, ratio=2**number, dct_method="INTEGER_ACCURATE"
        )

    if halvings is None:
        return decode()
    sizes = [functools.partial(decode, number) for number in range(4)]
    image = tf.switch_case(halvings, sizes)
    image.set_shape([None, None, 3])
    return image


def decode_png(contents: tf.Tensor) -> tf.Tensor:
    """Decodes a PNG's bytes, string [], to uint8 [h, w, 3]."""
    return tf.io.decode_png(contents, channels=3)


def most_png_bytes(width: Any, height: Any) -> Any:
    """Returns the bytes of a PNG's largest file that TensorFlow decodes."""
    # At most four channels of 16 bits, and a byte for each row.
    return _MAX_MORE + (8 * width + 1) * height


def starts(contents: tf.Tensor, magic: bytes) -> tf.Tensor:
    """Whether bytes, string [], start with some; bool []."""
    return tf.strings.substr(contents, 0, len(magic)) == magic


def decode(contents: tf.Tensor) -> tf.Tensor:
    """Decodes an image's bytes, string [], which nobody has looked at.

    JPEG and PNG by TensorFlow, all others by Pillow; without Python those fail,
    and so do images of more pixels than are decoded. The image is not turned.

    Returns:
      uint8 [h, w, 3].
    """

    def other() -> tf.Tensor:
        if _graphs["python"]:
            return pillow(contents)
        text = "only Pillow decodes this image, which cannot run here"
        refused = tf.debugging.Assert(False, [text])
        with tf.control_dependencies([refused]):
            return tf.zeros([1, 1, 3], tf.uint8)

    def of_jpeg() -> tf.Tensor:
        shape = tf.io.extract_jpeg_shape(contents)
        with tf.control_dependencies([_check_size(shape[:2])]):
            is_native = shape[2] < 4
        return tf.cond(is_native, lambda: decode_jpeg(contents), other)

    def of_png() -> tf.Tensor:
        header = tf.strings.substr(contents, *_PNG_SIZE)
        size = tf.io.decode_raw(header, tf.int32, little_endian=False)
        with tf.control_dependencies([_check_size(size)]):
            return decode_png(tf.identity(contents))

    image = tf.case(
        [
            (starts(contents, PNG_START), of_png),
            (starts(contents, JPEG_START), of_jpeg),
        ],
        default=other,
    )
    image.set_shape([None, None, 3])
    return image


def _check_size(size: tf.Tensor) -> tf.Operation:
    """Fails for an image, of sides int32 [2], of too many pixels."""
    pixels = tf.reduce_prod(tf.cast(size, tf.int64))
    text = [f"the image has more than {MAX_PIXELS} pixels"]
    return tf.debugging.Assert(pixels <= MAX_PIXELS, text)


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
