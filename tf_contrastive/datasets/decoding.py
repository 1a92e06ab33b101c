"""Decoding of images, and the check that they can be decoded.

TensorFlow decodes JPEG, PNG, GIF (its first image) and BMP, and Pillow other
formats. The result is uint8 RGB: grey is tiled, alpha is dropped, 16-bit
images keep their upper 8 bits.
"""

import functools
import io
from collections.abc import Callable, Sequence
from importlib import util
from typing import NamedTuple

import numpy as np
import PIL.features
import PIL.Image
import PIL.ImageOps
import tensorflow as tf
from absl import logging

from tf_contrastive import errors
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import image_headers
from tf_contrastive.datasets.source import Record

# Pillow's name of a format -> the extensions of its files.
_NATIVE = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
}
_BY_PILLOW = {
    "WEBP": (".webp",),
    "TIFF": (".tif", ".tiff"),
    "JPEG2000": (".jp2",),
    "PPM": (".ppm", ".pgm"),
    "AVIF": (".avif",),
    "HEIF": (".heic", ".heif"),
}
# Kinds of files, by what decodes them.
_TENSORFLOW, _GIF, _PILLOW = range(3)
_EXIF_ORIENTATION = 0x0112


@functools.cache
def formats() -> dict[str, tuple[str, ...]]:
    """The formats that can be read here, with the extensions of their files."""
    absent = set()
    if not PIL.features.check("avif"):
        absent.add("AVIF")
    if util.find_spec("pillow_heif"):
        import pillow_heif

        pillow_heif.register_heif_opener()
    else:
        absent.add("HEIF")
    found = _NATIVE | _BY_PILLOW
    return {name: found[name] for name in found if name not in absent}


@functools.cache
def extensions() -> tuple[str, ...]:
    """The extensions of the image files that can be read here."""
    return tuple(ending for endings in formats().values() for ending in endings)


class Found(NamedTuple):
    """What was found of image files."""

    sizes: np.ndarray  # Height and width, int32 [n, 2]; zeros if unreadable.
    kinds: np.ndarray  # What decodes them, int [n].
    labels: np.ndarray  # int64 [n], or zeros.
    digests: np.ndarray  # Of their bytes, int64 [n]; zeros if unreadable.

    def decoder(
        self, upright: bool = False
    ) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns `decode` for these files."""
        return functools.partial(
            decode,
            has_gifs=bool(np.any(self.kinds == _GIF)),
            by_pillow=self.by_pillow,
            upright=upright,
        )

    @property
    def by_pillow(self) -> bool:
        """Whether Pillow decodes some of them."""
        return bool(np.any(self.kinds == _PILLOW))

    def select(self, rows: np.ndarray) -> "Found":
        """Returns what was found of some of them."""
        return Found(*(column[rows] for column in self))


def decode(
    contents: tf.Tensor,
    has_gifs: bool = False,
    by_pillow: bool = False,
    upright: bool = False,
    halvings: tf.Tensor | None = None,
) -> tf.Tensor:
    """Decodes an image file's bytes, string [], to uint8 [h, w, 3].

    Args:
      contents: the bytes.
      has_gifs: whether to decode only the first image of a GIF, which takes
        half a millisecond longer for each file.
      by_pillow: whether to have Pillow decode what TensorFlow cannot.
      upright: whether to turn images as their EXIF data say.
      halvings: how often to halve a JPEG, 0 to 3, int32 []: faster than
        decoding all of it. Other formats keep their size.
    """

    def native() -> tf.Tensor:
        data = image_headers.first_image(contents) if has_gifs else contents
        whole = functools.partial(
            tf.io.decode_image, data, channels=3, expand_animations=False
        )
        if halvings is None:
            image = whole()
        else:
            half = functools.partial(_decode_halved, data, halvings)
            image = tf.cond(tf.io.is_jpeg(data), half, whole)
        image.set_shape([None, None, 3])
        if upright:
            turn = image_headers.orientation(contents)
            image = image_headers.upright(image, turn)
        return image

    def other() -> tf.Tensor:
        read = functools.partial(_decode_by_pillow, upright=upright)
        return tf.numpy_function(read, [contents], tf.uint8, stateful=False)

    if not by_pillow:
        return native()
    image = tf.cond(image_headers.is_native(contents), native, other)
    image.set_shape([None, None, 3])
    return image


def _decode_halved(contents: tf.Tensor, halvings: tf.Tensor) -> tf.Tensor:
    """Decodes a JPEG, string [], at 1, 1/2, 1/4 or 1/8 of its size."""
    return tf.switch_case(
        halvings,
        [
            functools.partial(
                tf.io.decode_jpeg, contents, channels=3, ratio=2**number
            )
            for number in range(4)
        ],
    )


def _decode_by_pillow(contents: bytes, upright: bool) -> np.ndarray:
    """Returns an image file's pixels, uint8 [h, w, 3]."""
    with PIL.Image.open(io.BytesIO(contents), formats=list(formats())) as image:
        if image.mode in ("I", "F"):
            raise ValueError(f"pixels of mode {image.mode}")
        turned = PIL.ImageOps.exif_transpose(image) if upright else image
        if turned.mode.startswith("I;16"):
            upper = (np.asarray(turned) >> 8).astype(np.uint8)
            turned = PIL.Image.fromarray(upper)
        return np.asarray(turned.convert("RGB"))


def decode_record(
    record: Record, decoder: Callable[[tf.Tensor], tf.Tensor] = decode
) -> Record:
    """Decodes the `image` of a record, string []."""
    return record | {"image": decoder(record["image"])}


def check(
    name: str, names: Sequence[str], sizes: np.ndarray, reading: Reading
) -> tuple[np.ndarray, tuple[int, int, int] | None, tuple[str, ...]]:
    """Checks that few enough of a dataset's named images are unreadable.

    Returns:
      (indices of the readable images, their common shape or None, names of the
      unreadable ones).
    """
    readable, total = sizes[:, 0] > 0, len(sizes)
    bad = [names[i] for i in np.flatnonzero(~readable).tolist()]
    first = ", ".join(bad[:3]) + (", ..." if len(bad) > 3 else "")
    if len(bad) == total:
        raise errors.UserError(
            f"{name}: none of the {total} images can be read ({first}): use"
            f" {', '.join(formats())} files of at most"
            f" {errors.arg('max_image_pixels', reading.max_image_pixels)}"
            " pixels"
        )
    if len(bad) > reading.max_bad_images:
        raise errors.UserError(
            f"{name}: {len(bad)} of {total} images cannot be read ({first}),"
            " more than"
            f" {errors.arg('max_bad_images', reading.max_bad_images)}: repair"
            f" or remove them, or set {errors.arg('max_bad_images', len(bad))}"
            " to leave them out"
        )
    if bad:
        logging.warning(
            "%s: leaving out %d unreadable: %s", name, len(bad), first
        )
    distinct = np.unique(sizes[readable], axis=0).tolist()
    shape = (*distinct[0], 3) if len(distinct) == 1 else None
    return np.flatnonzero(readable), shape, tuple(bad)


def verify(
    contents: bytes, max_pixels: int, upright: bool
) -> tuple[int, int, int]:
    """Returns (height, width, kind); raises where `decode` would fail."""
    with PIL.Image.open(io.BytesIO(contents), formats=list(formats())) as image:
        # From the header: nothing is decoded yet. Of a GIF that is an upper
        # limit of the size of its first image.
        width, height = image.size
        name = image.format
        turned = (
            upright
            and name == "JPEG"
            and image.getexif().get(_EXIF_ORIENTATION, 1) in range(5, 9)
        )
    if width * height > max_pixels:
        raise ValueError(f"{width} x {height} pixels")
    if name not in _NATIVE:
        height, width, _ = _decode_by_pillow(contents, upright).shape
        return height, width, _PILLOW
    if name != "JPEG":
        image = decode(contents, has_gifs=name == "GIF")
        height, width, _ = image.shape
        return height, width, _GIF if name == "GIF" else _TENSORFLOW
    if image_headers.has_too_many_scans(contents):
        raise ValueError("too many scans")
    # An eighth of the size is cheap and still reads every byte, so that a
    # truncated file fails.
    tf.io.decode_jpeg(contents, channels=3, ratio=8)
    if turned:
        height, width = width, height
    return height, width, _TENSORFLOW
