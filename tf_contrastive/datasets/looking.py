"""The look at each image, once, before anything is trained.

Pillow reads its header, and TensorFlow or Pillow decodes it, so that a damaged
one is found here. What is found decides how it is decoded from then on.
"""

import concurrent.futures
import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import PIL
import PIL.Image
import tensorflow as tf

from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import decoding, remembered

# Ways to decode an image: the first two by TensorFlow.
WAYS = JPEG, PNG, PILLOW = range(3)
# Bytes of an image file: 2**27 pixels of four colours with 16 bits.
_MAX_IMAGE = 1 << 30
# Images between two looks at the clock.
_BATCH = 256
# Scans of a JPEG, each of which takes as long as the whole image. Encoders
# write at most about a dozen; a thumbnail in the metadata has its own.
_MAX_SCANS = 20
_SCAN = b"\xff\xda"  # Starts a scan; it cannot occur within one.
# Bytes of a PNG beyond those of its pixels, which TensorFlow would inflate.
_MAX_MORE = 1 << 18
# Pixels of a tile of a TIFF, which Pillow allocates, unless the image is large.
_MAX_TILE = 1 << 22
_ORIENTATION = 0x0112
# What a JPEG or PNG that may be turned holds; Pillow would decode others, too.
_MARKS = (
    *(b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0", b"eXIf"),
    *(b"Raw profile type exif\0", b"XML:com.adobe.xmp\0"),
)
# Tags of TIFF, and what some of their values mean.
_BITS, _COLORS, _PLANES, _NUMBERS_OF = 258, 262, 284, 339
_TILE_SIDES = (322, 323)
_BLACK_IS_MOST, _SEPARATE, _SIGNED = 0, 2, 2
# Why an image is unreadable.
REASONS = (
    "damaged",
    "that cannot be opened",
    "that do not exist",
    "of more than {} pixels",
    "of floating-point, signed, 32-bit or unusual 16-bit numbers",
    "of more scans than encoders make",
    "without content",
    "of a format that is not read",
    "of larger tiles than the image",
)
_DAMAGED, _CLOSED, ABSENT, _PIXELS, _NUMBERS = range(5)
_SCANS, _EMPTY, _FORMAT, _TILES = range(5, len(REASONS))
_NAMED = 3  # Files that a message names.
# What is found of an image; `format` of an unreadable one is in `REASONS`.
_ROW = np.dtype(
    [
        *(("height", "<i4"), ("width", "<i4"), ("format", "i1")),
        *(("way", "i1"), ("turn", "i1"), ("digest", "<i8"), ("label", "<i8")),
    ]
)


class _UnreadableError(Exception):
    """An image that is not read, for one of the `REASONS`."""

    def __init__(self, reason: int) -> None:
        super().__init__(REASONS[reason])
        self.reason = reason


class Found(NamedTuple):
    """What is found of n images.

    Attributes:
      sizes: heights and widths, int32 [n, 2]; 0 of an unreadable one.
      formats: places in `decoding.FORMATS`; of unreadable ones in `REASONS`.
      ways: of `WAYS`.
      turns: orientations, 1 to 8, of those that TensorFlow decodes.
      digests: of their bytes, int64 [n]; 0 if unreadable.
      labels: of records, int64 [n].
    """

    sizes: np.ndarray
    formats: np.ndarray
    ways: np.ndarray
    turns: np.ndarray
    digests: np.ndarray
    labels: np.ndarray

    @property
    def readable(self) -> np.ndarray:
        """Which of them can be read, bool [n]."""
        return self.sizes[:, 0] > 0

    @property
    def by_pillow(self) -> bool:
        """Whether Pillow decodes some of them."""
        return bool(np.any(self.ways[self.readable] == PILLOW))

    def counts(self) -> str:
        """Returns the number of readable images of each format, in words."""
        numbers = np.bincount(self.formats[self.readable]).tolist()
        named = zip(decoding.FORMATS, numbers, strict=False)
        return ", ".join(f"{n:,} {name}" for name, n in named if n)

    def select(self, rows: np.ndarray | slice) -> "Found":
        """Returns what is found of some of them."""
        return Found(*(column[rows] for column in self))


# ---- One image ---------------------------------------------------------------


def _look(contents: bytes, max_pixels: int, turn: bool) -> tuple[int, ...]:
    """Returns what is found of an image, of `_ROW` without the last two.

    Args:
      contents: its bytes.
      max_pixels: an image with more is unreadable.
      turn: whether it is turned as its EXIF data say.

    Raises:
      _UnreadableError: for one of the reasons; others for a damaged image.
    """
    if not contents:
        raise _UnreadableError(_EMPTY)
    with decoding.opened(contents) as image:
        # From the header: nothing is decoded yet.
        width, height = image.size
        if width * height > max_pixels:
            raise _UnreadableError(_PIXELS)
        # Phones write JPEGs of several images.
        name = "JPEG" if image.format == "MPO" else str(image.format)
        _check_kind(image, contents)
        way = _way(name, image, contents)
        orientation = 1
        may_be_turned = any(mark in contents for mark in _MARKS)
        if turn and way != PILLOW and may_be_turned:
            value = image.getexif().get(_ORIENTATION, 1)
            orientation = value if value in range(1, 9) else 1
    number = decoding.FORMATS.index(name)
    if way == JPEG:
        if contents.count(_SCAN) > _MAX_SCANS:
            raise _UnreadableError(_SCANS)
        # An eighth of the size is cheap and still reads every byte, so that a
        # truncated file fails.
        tf.io.decode_jpeg(contents, channels=3, ratio=8)
    elif way == PNG:
        decoding.decode_png(contents)
    else:
        try:
            height, width, _ = decoding.by_pillow(contents, turn).shape
        except decoding.UnsupportedError as error:
            raise _UnreadableError(_NUMBERS) from error
    if orientation >= 5:
        width, height = height, width
    return height, width, number, way, orientation


def _way(name: str, image: PIL.Image.Image, contents: bytes) -> int:
    """Returns how an image is decoded."""
    if name == "JPEG" and image.mode in ("L", "RGB"):
        return JPEG
    width, height = image.size
    # At most four channels of 16 bits, and a byte for each row.
    if name == "PNG" and len(contents) <= _MAX_MORE + (8 * width + 1) * height:
        return PNG
    return PILLOW


def _check_kind(image: PIL.Image.Image, contents: bytes) -> None:
    """Raises for an image that Pillow reads wrongly, or in too much memory."""
    if image.format == "TIFF":
        tags = image.tag_v2  # type: ignore[attr-defined]
        sides = [int(tags.get(tag, 0)) for tag in _TILE_SIDES]
        limit = max(_MAX_TILE, 4 * image.size[0] * image.size[1])
        if sides[0] * sides[1] > limit:
            raise _UnreadableError(_TILES)
        if _SIGNED in tags.get(_NUMBERS_OF, ()):
            raise _UnreadableError(_NUMBERS)
        inverted = tags.get(_COLORS) == _BLACK_IS_MOST
        separate = tags.get(_PLANES) == _SEPARATE
        if 16 in tags.get(_BITS, ()) and (inverted or separate):
            raise _UnreadableError(_NUMBERS)


def _row(
    read: Callable[[], bytes], max_pixels: int, turn: bool
) -> tuple[int, ...]:
    """Returns what is found of an image, of `_ROW` without the label."""
    reason = _DAMAGED
    try:
        contents = read()
    except (FileNotFoundError, NotADirectoryError, tf.errors.NotFoundError):
        reason = ABSENT
    except (errors.UserError, OSError, tf.errors.OpError):
        reason = _CLOSED
    else:
        try:
            found = _look(contents, max_pixels, turn)
            return *found, remembered.digest(contents)
        except _UnreadableError as error:
            reason = error.reason
        except PIL.UnidentifiedImageError:
            reason = _FORMAT
        except Exception:  # Decoders raise errors of any type.
            pass
    return 0, 0, reason, PILLOW, 1, 0


# ---- All images --------------------------------------------------------------


def at_files(paths: Sequence[str], place: str, reading: Reading) -> Found:
    """Looks at image files.

    Args:
      paths: of the files.
      place: the folder, or the list, that they are from.
      reading: how they are read.
    """
    max_pixels, turn = reading.max_image_pixels, reading.exif == "apply"

    def read(some: Sequence[str], counts: np.ndarray) -> np.ndarray:
        rows = np.zeros([counts.sum()], _ROW)
        # Of local files, as many as Python's lock lets decode.
        threads = remembered.threads(some, min(max(4, os.cpu_count() or 1), 16))
        size = min(_BATCH, -(-len(some) // threads))

        def look_at_block(first: int) -> None:
            for row, path in enumerate(some[first : first + size], first):
                contents = functools.partial(files.read, path, _MAX_IMAGE)
                rows[row] = *_row(contents, max_pixels, turn), 0

        starts = range(0, len(some), size)
        what = f"of {len(some):,} image files"
        with (
            warnings.catch_warnings(),
            concurrent.futures.ThreadPoolExecutor(threads) as pool,
        ):
            warnings.simplefilter("ignore")  # Of broken metadata.
            blocks = pool.map(look_at_block, starts)
            for _ in remembered.logged(blocks, what, size):
                pass
        return rows

    store = remembered.place(place, max_pixels, turn)
    each = np.ones([len(paths)], np.int64)
    return _found(remembered.find(paths, each, store, read, _ROW))


def at_records(
    paths: list[str],
    counts: np.ndarray,
    parse: Callable[[bytes], tuple[bytes, int]],
    place: str,
    reading: Reading,
) -> Found:
    """Looks at the images in files of records, which are never turned.

    Args:
      paths: of the files.
      counts: of their records, int64 [n].
      parse: a serialized record -> its encoded image, and its label.
      place: the pattern that the files match, and how they are parsed.
      reading: how images are read.

    Raises:
      UserError: for files of other numbers of records.
    """

    def look(serialized: bytes) -> tuple[int, ...]:
        image, label = parse(serialized)
        row = _row(lambda: image, reading.max_image_pixels, turn=False)
        return *row, label

    def read(some: Sequence[str], counts: np.ndarray) -> np.ndarray:
        batches = tf.data.TFRecordDataset(list(some)).batch(_BATCH).prefetch(2)
        what = f"images of {len(some):,} TFRecord files"
        rows: list[tuple[int, ...]] = []
        with concurrent.futures.ThreadPoolExecutor() as pool:
            numbered = remembered.logged(
                batches.as_numpy_iterator(), what, _BATCH
            )
            for batch in numbered:
                rows += pool.map(look, batch.tolist())
        if len(rows) != counts.sum():
            raise errors.UserError(
                f"{what}: they have changed since they were counted: repeat"
                " the command"
            )
        return np.array(rows, _ROW)

    store = remembered.place(place, reading.max_image_pixels, "records")
    return _found(remembered.find(paths, counts, store, read, _ROW))


def _found(rows: np.ndarray) -> Found:
    sizes = np.stack([rows["height"], rows["width"]], axis=1)
    others = (np.array(rows[name]) for name in (_ROW.names or ())[2:])
    return Found(sizes, *others)


# ---- Reports -----------------------------------------------------------------


def check(
    name: str, names: Sequence[str], found: Found, reading: Reading
) -> tuple[np.ndarray, tuple[int, int, int] | None, tuple[str, ...]]:
    """Checks that few enough of a dataset's named images are unreadable.

    Returns:
      (indices of the readable images, their common shape or None, names of the
      unreadable ones).

    Raises:
      UserError: for more than `reading.max_bad_images`, or if none can be read.
    """
    readable, total = found.readable, len(names)
    bad = [names[i] for i in np.flatnonzero(~readable).tolist()]
    what = _unreadable(names, found, reading) + decoding.lacking(bad)
    if len(bad) == total:
        raise errors.UserError(
            f"{name}: none of the {total} images can be read: {what}: use"
            f" {', '.join(decoding.formats())} files"
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
    distinct = np.unique(found.sizes[readable], axis=0).tolist()
    shape = (*distinct[0], 3) if len(distinct) == 1 else None
    return np.flatnonzero(readable), shape, tuple(bad)


def _named(names: Sequence[str], rows: np.ndarray) -> str:
    first = ", ".join(names[i] for i in rows[:_NAMED].tolist())
    return first + ", ..." * (len(rows) > _NAMED)


def _unreadable(names: Sequence[str], found: Found, reading: Reading) -> str:
    """Describes the unreadable images, by reason."""
    parts = []
    for number, reason in enumerate(REASONS):
        rows = np.flatnonzero(~found.readable & (found.formats == number))
        if len(rows):
            limit = errors.arg("max_image_pixels", reading.max_image_pixels)
            text = reason.format(limit)
            parts.append(f"{len(rows)} {text} ({_named(names, rows)})")
    return ", ".join(parts)
