"""The look at each image file, once, before anything is trained.

Pillow reads its header, and TensorFlow or Pillow decodes it, so that a damaged
one is found here. What is found decides how it is decoded from then on.
"""

import functools
import os
import warnings
from collections.abc import Sequence

import numpy as np
import PIL
import PIL.Image
import tensorflow as tf

from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import decoding, float_images, remembered
from tf_contrastive.datasets.paths import few

# Ways to decode an image: the first two by TensorFlow.
WAYS = JPEG, PNG, PILLOW = range(3)
# Bytes of an image file: 2**27 pixels of four colours with 16 bits.
_MAX_IMAGE = 1 << 30
# Tags of TIFF, and what some of their values mean.
_BITS, _COLORS, _PLANES, _NUMBERS_OF = 258, 262, 284, 339
_BLACK_IS_MOST, _SEPARATE, _SIGNED = 0, 2, 2
# Why an image is unreadable.
REASONS = (
    "damaged",
    "that cannot be opened",
    "that do not exist",
    f"of more than {decoding.MAX_PIXELS:,} pixels",
    "of floating-point, signed, 32-bit or unusual 16-bit numbers",
    "of more scans than encoders make, or of larger tiles than the image",
    "of a format that is not read",
    "of other channels or another type",
)
_DAMAGED, _CLOSED, ABSENT, _PIXELS, _NUMBERS, _BOMB, _FORMAT, _FORM = range(8)
# Formats of images, by their number in a `ROW`.
FORMATS = (*decoding.FORMATS, "NPY", "NPZ")
# What is found of an image: its height and width, 0 of an unreadable one; the
# place of its format in `FORMATS`, of an unreadable one in `REASONS`;
# one of `WAYS`; the orientation of one that TensorFlow decodes, 1 to 8; and a
# digest of its bytes.
ROW = np.dtype(
    [
        *(("height", "<i4"), ("width", "<i4"), ("format", "i1")),
        *(("way", "i1"), ("turn", "i1"), ("digest", "<i8")),
    ]
)


class _UnreadableError(Exception):
    """An image that is not read; its argument is one of the `REASONS`."""


# ---- One image ---------------------------------------------------------------


def look_at(contents: bytes) -> tuple[int, ...]:
    """Returns what is found of an image's bytes, of `ROW` without the digest.

    Raises:
      _UnreadableError: for one of the reasons; others for a damaged image.
    """
    with decoding.opened(contents) as image:
        # From the header: nothing is decoded yet.
        width, height = image.size
        if width * height > decoding.MAX_PIXELS:
            raise _UnreadableError(_PIXELS)
        # Phones write JPEGs of several images.
        name = "JPEG" if image.format == "MPO" else str(image.format)
        if name == "TIFF":
            _check_tiff(image)
        way, orientation = PILLOW, 1
        most = decoding.most_png_bytes(width, height)
        if name == "JPEG" and image.mode in ("L", "RGB"):
            way = JPEG
        elif name == "PNG" and len(contents) <= most:
            way = PNG
        if way != PILLOW:
            orientation = decoding.orientation_of(image, contents)
    if way == JPEG:
        if contents.count(decoding.SCAN) > decoding.MAX_SCANS:
            raise _UnreadableError(_BOMB)
        # An eighth of the size is cheap and still reads every byte, so that a
        # truncated file fails.
        tf.io.decode_jpeg(contents, channels=3, ratio=8)
    elif way == PNG:
        decoding.decode_png(contents)
    else:
        height, width, _ = decoding.by_pillow(contents, turn=True).shape
    if orientation >= 5:
        width, height = height, width
    return height, width, decoding.FORMATS.index(name), way, orientation


def _look_at_float(contents: bytes, reading: Reading) -> tuple[int, ...]:
    """Returns what is found of an image that is read whole, as `look_at`."""
    name, values = float_images.read(contents)
    height, width, _ = float_images.scaled(values, reading).shape
    return height, width, FORMATS.index(name), PILLOW, 1


def _check_tiff(image: PIL.Image.Image) -> None:
    """Raises for a TIFF that Pillow reads wrongly, or in too much memory."""
    decoding.check_tiles(image)
    tags = image.tag_v2  # type: ignore[attr-defined]
    inverted = tags.get(_COLORS) == _BLACK_IS_MOST
    separate = tags.get(_PLANES) == _SEPARATE
    is_unusual = 16 in tags.get(_BITS, ()) and (inverted or separate)
    if is_unusual or _SIGNED in tags.get(_NUMBERS_OF, ()):
        raise _UnreadableError(_NUMBERS)


def _row(path: str, reading: Reading) -> tuple[int, ...]:
    """Returns what is found of an image, of `ROW`."""
    try:
        contents = files.read(path, _MAX_IMAGE)
    except (FileNotFoundError, NotADirectoryError, tf.errors.NotFoundError):
        reason = ABSENT
    except (errors.UserError, OSError, tf.errors.OpError):
        reason = _CLOSED
    else:
        try:
            if reading.float_channels is None:
                found = look_at(contents)
            else:
                found = _look_at_float(contents, reading)
            return *found, remembered.digest(contents)
        except float_images.FormError:
            reason = _FORM
        except _UnreadableError as error:
            (reason,) = error.args
        except decoding.UnsupportedError:
            reason = _NUMBERS
        except decoding.TileError:
            reason = _BOMB
        except PIL.Image.DecompressionBombError:
            reason = _PIXELS
        except PIL.UnidentifiedImageError:
            reason = _FORMAT
        except Exception:  # Decoders raise errors of any type.
            reason = _DAMAGED
    return 0, 0, reason, PILLOW, 1, 0


# ---- All images --------------------------------------------------------------


def look(paths: Sequence[str], place: str, reading: Reading) -> np.ndarray:
    """Looks at image files of a folder or a list: a `ROW` of each."""
    is_float = reading.float_channels is not None
    options = (reading.channels, reading.value_range) if is_float else ()
    # As many local files as Python's lock lets decode.
    threads = min(max(4, os.cpu_count() or 1), 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of broken metadata.
        return remembered.find(
            paths,
            place,
            functools.partial(_row, reading=reading),
            ROW,
            what="image files",
            threads=threads,
            options=options,
        )


def check(
    name: str, paths: Sequence[str], rows: np.ndarray, reading: Reading
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Checks that few enough of a dataset's images are unreadable.

    Returns:
      (indices of the readable images, paths of the unreadable ones).

    Raises:
      UserError: for more than `max_bad_images`, if none can be read, or for an
        image of another form than is asked for.
    """
    is_bad, total = rows["height"] == 0, len(rows)
    max_bad_images = reading.max_bad_images
    others = np.flatnonzero(is_bad & (rows["format"] == _FORM))
    if others.size:
        path = paths[int(others[0])]
        try:
            _look_at_float(files.read(path, _MAX_IMAGE), reading)
        except float_images.FormError as error:
            raise errors.UserError(
                f"{name}: {others.size:,} of {total:,} images have another"
                f" form, such as {path}, {error}"
            ) from error
    bad = [paths[i] for i in np.flatnonzero(is_bad).tolist()]
    parts = []
    for number, reason in enumerate(REASONS):
        some = np.flatnonzero(is_bad & (rows["format"] == number)).tolist()
        if some:
            named = few([paths[i] for i in some[:4]])
            parts.append(f"{len(some)} {reason} ({named})")
    what = ", ".join(parts) + decoding.lacking(bad)
    if len(bad) > max_bad_images or len(bad) == total:
        raise errors.UserError(
            f"{name}: {len(bad)} of {total} images cannot be read, more than"
            f" {errors.arg('max_bad_images', max_bad_images)}, or all: {what}:"
            f" use {', '.join(decoding.formats())} files; repair or remove"
            f" others, or set {errors.arg('max_bad_images', len(bad))} to leave"
            " them out"
        )
    if bad:
        terminal.warning(f"{name}: leaving out {len(bad)} unreadable: {what}")
    return np.flatnonzero(~is_bad), tuple(bad)
