"""Decoding of images, and the check that they can be decoded.

TensorFlow decodes usual JPEG, PNG, GIF and BMP files, and Pillow other formats
and subtypes. The result is that of Pillow, uint8 RGB: grey is tiled, alpha is
dropped, 16-bit grey keeps its upper 8 bits, and several images are the first.
"""

import functools
import io
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import PIL.features
import PIL.Image
import PIL.ImageOps
import tensorflow as tf

from tf_contrastive.base import errors, installation, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import image_headers
from tf_contrastive.datasets.source import Record

# Pillow's name of a format -> the extensions of its files.
_NATIVE = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"),
    "PNG": (".png", ".apng"),
    "GIF": (".gif",),
    "BMP": (".bmp", ".dib"),
}
_BY_PILLOW = {
    "WEBP": (".webp",),
    "TIFF": (".tif", ".tiff"),
    "JPEG2000": (".jp2", ".j2k", ".j2c", ".jpc", ".jpx", ".jpf"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "AVIF": (".avif", ".avifs"),
    "HEIF": (".heic", ".heif", ".hif"),
}
_FORMATS = (*_NATIVE, *_BY_PILLOW)
_EXIF_ORIENTATION = 0x0112
# Tags of TIFF, and what some of their values mean.
_TIFF_BITS, _TIFF_COLORS, _TIFF_PLANES, _TIFF_NUMBERS = 258, 262, 284, 339
_BLACK_IS_MOST, _SEPARATE, _SIGNED = 0, 2, 2
_UNCOMPRESSED = "raw"
_JPEG2000_START = b"\xff\x4f\xff\x51"  # Of a stream, and of its sizes.
_PNG_BITS = 24  # Place of the bits per channel.
# Why an image is unreadable.
REASONS = (
    "damaged",
    "that cannot be opened",
    "of more than {} pixels",
    "of floating-point, signed or 32-bit numbers",
    "of unclear orientation",
    "of more scans than encoders make",
    "without content",
    "of a format or subtype that is not read",
    "of 16 bits in a form of which Pillow reads other pixels",
)
_DAMAGED, CLOSED, _PIXELS, _NUMBERS, _TURN, _SCANS = range(6)
_EMPTY, _FORMAT, _MISREAD = range(6, len(REASONS))
_NAMED = 3  # Files that a message names.
_DARK = 63  # Of 255: data of 14 bits or fewer in files of 16.


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
    found = _NATIVE | _BY_PILLOW
    return {name: found[name] for name in found if name not in absent}


@functools.cache
def extensions() -> tuple[str, ...]:
    """The extensions of the image files that can be read here."""
    return tuple(ending for endings in formats().values() for ending in endings)


def lacking(names: Iterable[str]) -> str:
    """Returns what would read HEIC files that are not read here, or nothing."""
    has_heic = any(n.lower().endswith(_BY_PILLOW["HEIF"]) for n in names)
    problem = has_heic and installation.missing("pillow_heif", "heic")
    return f"; HEIC needs {problem}" if problem else ""


class UnreadableError(Exception):
    """An image that is not read, for one of the `REASONS`."""

    def __init__(self, reason: int) -> None:
        super().__init__(REASONS[reason])
        self.reason = reason


class Verified(NamedTuple):
    """What is found of an image: numbers, which are remembered."""

    height: int  # 0 if it is unreadable.
    width: int
    format: int  # Its place in `_FORMATS`; of an unreadable one, in `REASONS`.
    by_pillow: int  # Whether Pillow decodes it, 0 or 1.
    turned: int  # Whether its EXIF data may turn it, 0 or 1.
    # The largest of its 8-bit pixels if it has 16 bits per channel, else -1.
    peak: int


class Found(NamedTuple):
    """What is found of n images: sizes, and columns of `Verified`."""

    sizes: np.ndarray  # Height and width, int32 [n, 2].
    formats: np.ndarray  # Integers [n], as all others.
    pillow: np.ndarray
    turned: np.ndarray
    peaks: np.ndarray
    digests: np.ndarray  # Of their bytes; 0 if unreadable.
    labels: np.ndarray  # Or zeros.

    def decoder(
        self, upright: bool = False
    ) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns `decode` for these files.

        What none of them needs is left out of it: it takes time, for each image
        and at the start.
        """
        gifs = (self.formats == _FORMATS.index("GIF")) & self.readable
        return functools.partial(
            decode,
            has_gifs=bool(np.any(gifs)),
            by_pillow=self.by_pillow,
            upright=upright and bool(np.any(self.turned)),
        )

    @property
    def readable(self) -> np.ndarray:
        """Which of them can be read, bool [n]."""
        return self.sizes[:, 0] > 0

    @property
    def by_pillow(self) -> bool:
        """Whether Pillow decodes some of them."""
        return bool(np.any(self.pillow))

    def counts(self) -> str:
        """Returns the number of readable images of each format, in words."""
        numbers = np.bincount(self.formats[self.readable]).tolist()
        named = zip(_FORMATS, numbers, strict=False)
        return ", ".join(f"{n:,} {name}" for name, n in named if n)

    def select(self, rows: np.ndarray | slice) -> "Found":
        """Returns what is found of some of them."""
        return Found(*(column[rows] for column in self))


@image_headers.on_host
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
      by_pillow: whether to have Pillow decode what TensorFlow cannot, or not
        in the same way.
      upright: whether to turn images as their EXIF data say.
      halvings: how often to halve a JPEG, 0 to 3, int32 []: faster than
        decoding all of it. Other formats keep their size.
    """

    def native() -> tf.Tensor:
        data = image_headers.first_image(contents) if has_gifs else contents
        turn = image_headers.orientation(data) if upright else tf.constant(1)
        # One after the other: what runs while another fails is cancelled, and
        # TensorFlow might report that instead of the reason.
        with tf.control_dependencies([turn]):
            image = image_headers.decode(data, halvings)
        return image_headers.upright(image, turn) if upright else image

    def other() -> tf.Tensor:
        read = functools.partial(_decode_by_pillow, upright=upright)
        return tf.numpy_function(read, [contents], tf.uint8, stateful=False)

    if not by_pillow:
        return native()
    image = tf.cond(image_headers.is_native(contents), native, other)
    image.set_shape([None, None, 3])
    return image


@image_headers.on_host
def decode_native(contents: tf.Tensor) -> tf.Tensor:
    """Decodes a file that nobody has verified; fails if only Pillow can."""
    return image_headers.decode(image_headers.native(contents))


def _decode_by_pillow(contents: bytes, upright: bool) -> np.ndarray:
    """Returns an image file's pixels, uint8 [h, w, 3]."""
    with _opened(contents) as image:
        # A PGM file of 16 bits has mode I, too, and the largest value 65,535.
        is_deep = image.mode.startswith("I;16") or (
            image.mode == "I" and image.format == "PPM"
        )
        if image.mode in ("I", "F") and not is_deep:
            raise UnreadableError(_NUMBERS)
        turned = PIL.ImageOps.exif_transpose(image) if upright else image
        if is_deep:
            upper = (np.asarray(turned) >> 8).astype(np.uint8)
            turned = PIL.Image.fromarray(upper)
        return np.asarray(turned.convert("RGB"))


def _opened(contents: bytes) -> PIL.Image.Image:
    return PIL.Image.open(io.BytesIO(contents), formats=list(formats()))


def decode_record(
    record: Record, decoder: Callable[[tf.Tensor], tf.Tensor] = decode
) -> Record:
    """Decodes the `image` of a record, string []."""
    return record | {"image": decoder(record["image"])}


def check(
    name: str, names: Sequence[str], found: Found, reading: Reading
) -> tuple[np.ndarray, tuple[int, int, int] | None, tuple[str, ...]]:
    """Checks that few enough of a dataset's named images are unreadable.

    Warns of images that have 16 bits and use few of them.

    Returns:
      (indices of the readable images, their common shape or None, names of the
      unreadable ones).
    """
    readable, total = found.readable, len(names)
    bad = [names[i] for i in np.flatnonzero(~readable).tolist()]
    what = _unreadable(names, found, reading) + lacking(bad)
    if len(bad) == total:
        raise errors.UserError(
            f"{name}: none of the {total} images can be read: {what}: use"
            f" {', '.join(formats())} files"
        )
    if len(bad) > reading.max_bad_images:
        raise errors.UserError(
            f"{name}: {len(bad)} of {total} images cannot be read, more than"
            f" {errors.arg('max_bad_images', reading.max_bad_images)}: {what}:"
            " repair or remove them, or set"
            f" {errors.arg('max_bad_images', len(bad))} to leave them out"
        )
    if bad:
        terminal.warning(f"{name}: leaving out {len(bad)} unreadable: {what}")
    _check_bits(name, names, found)
    distinct = np.unique(found.sizes[readable], axis=0).tolist()
    shape = (*distinct[0], 3) if len(distinct) == 1 else None
    return np.flatnonzero(readable), shape, tuple(bad)


def _unreadable(names: Sequence[str], found: Found, reading: Reading) -> str:
    """Describes the unreadable images, by reason."""
    parts = []
    for number, reason in enumerate(REASONS):
        rows = np.flatnonzero(~found.readable & (found.formats == number))
        if len(rows):
            first = ", ".join(names[i] for i in rows[:_NAMED].tolist())
            more = ", ..." * (len(rows) > _NAMED)
            text = reason.format(
                errors.arg("max_image_pixels", reading.max_image_pixels)
            )
            parts.append(f"{len(rows)} {text} ({first}{more})")
    return ", ".join(parts)


def _check_bits(name: str, names: Sequence[str], found: Found) -> None:
    """Warns of images of 16 bits per channel that are almost black."""
    is_deep = found.peaks >= 0
    rows = np.flatnonzero(is_deep & (found.peaks <= _DARK))
    if 2 * len(rows) > is_deep.sum():
        peak = int(found.peaks[rows].max())
        first = ", ".join(names[i] for i in rows[:_NAMED].tolist())
        first += ", ..." * (len(rows) > _NAMED)
        terminal.warning(
            f"{name}: {len(rows):,} images of 16 bits per channel have no value"
            f" above {256 * peak + 255:,}, as those of a sensor of"
            f" {8 + peak.bit_length()} bits ({first}): the upper 8 of 16 bits"
            f" are read, so that they are almost black, at most {peak} of 255:"
            f" multiply their values by {1 << 8 - peak.bit_length()}"
        )


def _bits_of_jpeg2000(contents: bytes) -> int:
    """Returns the bits of each channel, at most."""
    sizes = contents.find(_JPEG2000_START) + len(_JPEG2000_START)
    channels = int.from_bytes(contents[sizes + 36 : sizes + 38], "big")
    each = contents[sizes + 38 : sizes + 38 + 3 * channels : 3]
    return max(byte % 128 + 1 for byte in each)


def _check_subtype(image: PIL.Image.Image, contents: bytes) -> None:
    """Raises for an image of which Pillow returns other pixels than it has."""
    if image.format == "JPEG2000":
        # Of several channels white becomes black.
        is_grey = image.mode.startswith("I")
        if not is_grey and _bits_of_jpeg2000(contents) > 8:
            raise UnreadableError(_MISREAD)
    if image.format == "TIFF":
        tags = image.tag_v2  # type: ignore[attr-defined]
        if _SIGNED in tags.get(_TIFF_NUMBERS, ()):
            raise UnreadableError(_NUMBERS)
        inverted = tags.get(_TIFF_COLORS) == _BLACK_IS_MOST
        separate = (
            tags.get(_TIFF_PLANES) == _SEPARATE
            and len(tags.get(_TIFF_BITS, ())) > 1
            and image.info.get("compression") == _UNCOMPRESSED
        )
        if 16 in tags.get(_TIFF_BITS, ()) and (inverted or separate):
            raise UnreadableError(_MISREAD)


def _is_native(contents: bytes) -> bool:
    try:
        return image_headers.is_native_file(contents)
    except tf.errors.InvalidArgumentError as error:  # Such as lossless JPEG.
        raise UnreadableError(_FORMAT) from error


@image_headers.on_host
def verify(contents: bytes, max_pixels: int, upright: bool) -> Verified:
    """Returns what is found of an image; raises where `decode` would fail."""
    if not contents:
        raise UnreadableError(_EMPTY)
    try:
        return _verify(contents, max_pixels, upright)
    except PIL.UnidentifiedImageError as error:
        raise UnreadableError(_FORMAT) from error


def _verify(contents: bytes, max_pixels: int, upright: bool) -> Verified:
    with _opened(contents) as image:
        # From the header: nothing is decoded yet. Of a GIF that is an upper
        # limit of the size of its first image.
        width, height = image.size
        # Phones write JPEGs of several images.
        name = "JPEG" if image.format == "MPO" else str(image.format)
        if width * height > max_pixels:
            raise UnreadableError(_PIXELS)
        _check_subtype(image, contents)
        bits = getattr(image, "tag_v2", {}).get(_TIFF_BITS, (8,))
        is_deep = image.mode.startswith("I") or 16 in bits
        by_pillow = name not in _NATIVE or not _is_native(contents)
        turn = 1
        if upright and not by_pillow and image_headers.may_be_turned(contents):
            turn = int(image_headers.orientation(contents))
            if turn != _orientation(image):
                raise UnreadableError(_TURN)
    peak, number = -1, _FORMATS.index(name)
    if name == "JPEG" and not by_pillow:
        if image_headers.has_too_many_scans(contents):
            raise UnreadableError(_SCANS)
        # An eighth of the size is cheap and still reads every byte, so that a
        # truncated file fails.
        tf.io.decode_jpeg(contents, channels=3, ratio=8)
    else:
        if by_pillow:
            pixels = _decode_by_pillow(contents, upright)
        elif name == "GIF":
            pixels = decode(contents, has_gifs=True).numpy()
            # TensorFlow decodes a damaged GIF as far as it can.
            if not np.array_equal(pixels, _decode_by_pillow(contents, upright)):
                raise UnreadableError(_DAMAGED)
        else:
            # As `decode`, by one operation.
            pixels = tf.io.decode_image(contents, channels=3).numpy()
            is_deep = name == "PNG" and contents[_PNG_BITS] == 16
        height, width, _ = pixels.shape
        peak = int(pixels.max()) if is_deep else -1
    if turn >= 5:
        width, height = height, width
    turned = by_pillow or turn != 1
    return Verified(height, width, number, int(by_pillow), int(turned), peak)


def _orientation(image: PIL.Image.Image) -> int:
    """Returns the orientation of a JPEG or PNG as Pillow finds it, 1 to 8."""
    if image.format not in ("JPEG", "MPO", "PNG"):
        return 1
    value = image.getexif().get(_EXIF_ORIENTATION, 1)
    return value if value in range(1, 9) else 1
