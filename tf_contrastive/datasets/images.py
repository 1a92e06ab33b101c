"""Encoded images: decoding, and the check that they can be decoded.

JPEG, PNG, GIF (its first frame) and BMP; EXIF orientation is not applied, as
TensorFlow's decoders do not. Everything becomes uint8 RGB: grey is tiled,
alpha is dropped, 16-bit PNG keeps its upper 8 bits.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import logging

from tf_contrastive import errors
from tf_contrastive.datasets.source import Record

EXTENSIONS = (".jpg", ".jpeg", ".png", ".gif", ".bmp")
# From so many images on, the check says that it runs.
_MANY = 10_000


def decode(contents: tf.Tensor) -> tf.Tensor:
    """Decodes an image file's bytes, string [], to uint8 [h, w, 3]."""
    image = tf.io.decode_image(contents, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    return image


def _shape(contents: tf.Tensor) -> tf.Tensor:
    """Decodes cheaply, failing where `decode` would; int32 [2], the size."""

    def of_jpeg():
        # An eighth of the size costs little and still reads every byte, so
        # that a truncated file fails. The result must depend on its pixels: a
        # mere control dependency on an op without state is optimized away.
        small = tf.io.decode_jpeg(contents, channels=3, ratio=8)
        size = tf.io.extract_jpeg_shape(contents)[:2]
        return tf.where(tf.size(small) > 0, size, 0)

    is_jpeg = tf.strings.substr(contents, 0, 3) == b"\xff\xd8\xff"
    return tf.cond(is_jpeg, of_jpeg, lambda: tf.shape(decode(contents))[:2])


def _shape_or_zero(
    record: Record, contents: Callable[[Record], tf.Tensor]
) -> tf.Tensor:
    """Returns the image's size, int32 [2], or zeros if it cannot be read.

    TensorFlow can catch an error only between elements of a dataset, so the
    record becomes a dataset of one, followed by what stands in for it.
    """
    read = tf.data.Dataset.from_tensors(record).map(
        lambda record: _shape(contents(record))
    )
    otherwise = tf.data.Dataset.from_tensors(tf.zeros([2], tf.int32))
    return (
        read.ignore_errors().concatenate(otherwise).take(1).get_single_element()
    )


@dataclasses.dataclass(frozen=True)
class Checked:
    """The result of a check: rows of records, in order.

    Attributes:
      sizes: int32 [n, 2], height and width; zeros where unreadable.
      columns: what else was kept of the records, [n] each, by name.
    """

    sizes: np.ndarray
    columns: dict[str, np.ndarray]

    @property
    def good(self) -> np.ndarray:
        """Indices of the readable images, int [m]."""
        return np.flatnonzero(self.sizes[:, 0])

    @property
    def bad(self) -> np.ndarray:
        """Indices of the unreadable ones, int [n - m]."""
        return np.flatnonzero(self.sizes[:, 0] == 0)

    def within(self, start: int, stop: int) -> "Checked":
        """Returns the rows from `start` to `stop` alone."""
        columns = {k: v[start:stop] for k, v in self.columns.items()}
        return Checked(self.sizes[start:stop], columns)

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """The shape that all readable images share, or None."""
        sizes = np.unique(self.sizes[self.good], axis=0)
        return (*map(int, sizes[0]), 3) if len(sizes) == 1 else None


def check(
    records: tf.data.Dataset,
    contents: Callable[[Record], tf.Tensor],
    expected: int = 0,
    columns: tuple[str, ...] = (),
) -> Checked:
    """Reads every image once, in parallel, and keeps one per thread at a time.

    Args:
      records: of encoded records.
      contents: record -> the image file's bytes, string [].
      expected: about how many there are, to announce a long check.
      columns: names of what to keep of the records.
    """
    if expected >= _MANY:
        logging.info("checking that %d images can be read", expected)

    def look(record):
        kept = {name: record[name] for name in columns}
        return _shape_or_zero(record, contents), kept

    rows = list(
        records.map(look, tf.data.AUTOTUNE, deterministic=True)
        .batch(1024)
        .as_numpy_iterator()
    )
    if not rows:
        return Checked(np.zeros([0, 2], np.int32), {})
    sizes, kept = zip(*rows, strict=True)
    return Checked(
        np.concatenate(sizes),
        {name: np.concatenate([k[name] for k in kept]) for name in columns},
    )


def check_bad(
    name: str, bad: list[str], total: int, limit: int
) -> tuple[str, ...]:
    """Returns the names of unreadable images, if there are not too many.

    Raises:
      UserError: if more than `limit` of `total` cannot be read, or all.
    """
    first = ", ".join(bad[:3]) + (", ..." if len(bad) > 3 else "")
    if len(bad) == total:
        raise errors.UserError(
            f"{name}: none of the {total} images can be read ({first}): give"
            " JPEG, PNG, GIF or BMP files"
        )
    if len(bad) > limit:
        raise errors.UserError(
            f"{name}: {len(bad)} of {total} images cannot be read ({first}),"
            f" and {limit} are allowed: mend or remove them, or give"
            f" max_bad_images={len(bad)} to leave them out"
        )
    if bad:
        logging.warning(
            "%s: leaving out %d unreadable: %s", name, len(bad), first
        )
    return tuple(bad)
