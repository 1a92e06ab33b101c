"""Images of any number of channels and of 8 or 16 bits or floats, read whole.

Python reads them. A value v becomes (v - LOW) / (HIGH - LOW), float32, where
LOW and HIGH are the range of its type or `Reading.value_range`: nothing is cut
to 8 bits on the way.
"""

import io
import zipfile
from collections.abc import Callable

import numpy as np
import PIL.Image
import PIL.ImageOps
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import decoding
from tf_contrastive.datasets.source import Record

# NumPy's files, which only hold these images: extensions and starts.
EXTENSIONS = (".npy", ".npz")
_NPY, _ZIP = b"\x93NUMPY", b"PK"
# Where a PNG says how many bits a value has.
_PNG_BITS = 24
# Kind and bytes of a type -> its range.
_RANGES = {("u", 1): (0.0, 255.0), ("u", 2): (0.0, 65535.0)}
_RANGES |= {("f", size): (0.0, 1.0) for size in (2, 4, 8)}
# Pillow's modes whose values are a file's, apart from 16-bit ones.
_MODES = ("L", "LA", "RGB", "RGBA", "I", "F")
# Tags of TIFF, and what some of their values mean.
_BITS, _COLORS, _MORE, _NUMBERS_OF = 258, 262, 338, 339
_BLACK_IS_MOST, _MULTIPLIED, _UNSIGNED, _SIGNED = 0, 1, 1, 2
# Pillow cuts them to 8 bits, and does not say of how many they are.
_CUT = ("AVIF", "HEIF")


class FormError(ValueError):
    """An image of other channels or another type than asked for."""


# ---- Values ------------------------------------------------------------------


def scaled(values: np.ndarray, reading: Reading) -> np.ndarray:
    """Returns the values of an image as float32 [h, w, C] in [0, 1].

    Raises:
      FormError: for another shape or type, or values out of a float's range.
    """
    values = values[..., np.newaxis] if values.ndim == 2 else values
    channels = reading.channels
    if values.ndim != 3 or values.shape[2] != channels or not values.size:
        raise FormError(
            f"of shape {[*values.shape]} and not [height, width, {channels}]:"
            f" set {errors.arg('channels')} to the last, or write it again"
        )
    kind, size = values.dtype.kind, values.dtype.itemsize
    limits = reading.value_range or _RANGES.get((kind, size), ())
    if not limits or kind not in "uif":
        raise FormError(
            f"of {values.dtype}: write uint8, uint16 or floats in [0, 1], or"
            f" set {errors.arg('value_range', 'LOW,HIGH')}"
        )
    if kind == "f" and not np.isfinite(values).all():
        raise FormError("with values that are not finite: write others")
    low, high = limits
    if not reading.value_range:
        result = values.astype(np.float32) / np.float32(high)
        if result.min() < 0 or result.max() > 1:
            raise FormError(
                f"of floats from {result.min():g} to {result.max():g}: write"
                " floats in [0, 1], or set"
                f" {errors.arg('value_range', 'LOW,HIGH')}"
            )
        return result
    unit = (values.astype(np.float64) - low) / (high - low)
    return np.clip(unit, 0, 1).astype(np.float32)


# ---- Files -------------------------------------------------------------------


def read(contents: bytes) -> tuple[str, np.ndarray]:
    """Returns the format and the values of an image file's bytes.

    They are [h, w] or [h, w, C], of any type.

    Raises:
      FormError: for a file whose values cannot be had whole.
    """
    if contents.startswith(_NPY):
        return "NPY", np.load(io.BytesIO(contents), allow_pickle=False)
    if contents.startswith(_ZIP):
        return "NPZ", _of_npz(contents)
    with decoding.opened(contents) as image:
        if image.size[0] * image.size[1] > decoding.MAX_PIXELS:
            raise PIL.Image.DecompressionBombError
        if image.format != "PNG":
            return str(image.format), _of_pillow(image)
        orientation = decoding.orientation_of(image, contents)
    # Pillow cuts colours of 16 bits to 8.
    dtype = tf.uint16 if contents[_PNG_BITS] == 16 else tf.uint8
    with tf.device("CPU:0"):
        values = tf.io.decode_png(contents, dtype=dtype)
        return "PNG", decoding.upright(values, tf.constant(orientation)).numpy()


def _of_npz(contents: bytes) -> np.ndarray:
    (member, *others) = zipfile.ZipFile(io.BytesIO(contents)).infolist()
    if others or member.file_size > 8 * decoding.MAX_PIXELS:
        raise FormError("of several arrays, or too large: write one array")
    with np.load(io.BytesIO(contents), allow_pickle=False) as arrays:
        return arrays[arrays.files[0]]


def _of_pillow(image: PIL.Image.Image) -> np.ndarray:
    """Returns the values of an image, or of a TIFF's pages as channels."""
    pages = 1
    if image.format in _CUT or (image.format == "PPM" and _is_rescaled(image)):
        raise FormError(
            f"of a {image.format} that Pillow cuts to 8 bits, or rescales:"
            " write a .npy file"
        )
    if image.format == "TIFF":
        pages = getattr(image, "n_frames", 1)
    planes = []
    for page in range(pages):
        if page:
            image.seek(page)
        if image.format == "TIFF":
            _check_tiff(image)
        if image.mode not in _MODES and not image.mode.startswith("I;16"):
            raise FormError(f"of mode {image.mode}: write a .npy file")
        planes.append(np.asarray(PIL.ImageOps.exif_transpose(image)))
    if len(planes) == 1:
        return planes[0]
    forms = {(plane.shape, plane.dtype.str) for plane in planes}
    if len(forms) > 1 or planes[0].ndim > 2:
        raise FormError("of pages that are not one channel each, alike")
    return np.stack(planes, axis=-1)


def _is_rescaled(image: PIL.Image.Image) -> bool:
    """Whether a PPM's largest value is neither 255 nor that of 16-bit grey."""
    codec, _, _, arguments = image.tile[0]  # type: ignore[attr-defined]
    exact = 65535 if image.mode == "I" else 255
    return codec != "raw" and arguments[1] != exact


def _check_tiff(image: PIL.Image.Image) -> None:
    """Raises `FormError` for a page of a TIFF that Pillow reads wrongly."""
    decoding.check_tiles(image)
    tags = image.tag_v2  # type: ignore[attr-defined]
    bits, numbers = tags.get(_BITS, (1,)), tags.get(_NUMBERS_OF, (_UNSIGNED,))
    is_inverted = tags.get(_COLORS) == _BLACK_IS_MOST
    if (
        (max(bits) > 8 and (len(bits) > 1 or is_inverted))
        or (max(bits) <= 8 and _SIGNED in numbers)
        or (max(bits) > 16 and _UNSIGNED in numbers)
        or _MULTIPLIED in tags.get(_MORE, ())
    ):
        raise FormError(
            "of a TIFF whose numbers Pillow misreads (several samples or"
            " inverted ones of more than 8 bits, signed ones of 8, unsigned"
            " ones of 32, colors multiplied by alpha): write a page for each"
            " channel, or a .npy file"
        )


def decode(image: tf.Tensor, reading: Reading) -> tf.Tensor:
    """Returns a file's bytes, string [], or values, as float32 [h, w, C]."""

    def call(image: bytes | np.ndarray) -> np.ndarray:
        values = read(image)[1] if isinstance(image, bytes) else image
        return scaled(values, reading)

    pixels = decoding.by_python(call, image, tf.float32, reading.channels)
    if image.dtype != tf.string:
        pixels.set_shape([*image.shape[:2], reading.channels])
    return pixels


def record_decoder(reading: Reading) -> Callable[[Record], Record]:
    """Returns what decodes the `image` of a record, string []."""

    def decode_record(record: Record) -> Record:
        image = record["image"]
        if reading.float_channels is None:
            return record | {"image": decoding.decode(image)}
        if form := reading.raw_form:
            image = tf.reshape(tf.io.decode_raw(image, form[0]), form[1])
        return record | {"image": decode(image, reading)}

    return decode_record
