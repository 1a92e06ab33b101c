"""Decoding of images, and the check that they can be decoded.

JPEG, PNG, GIF (its first frame) and BMP; like TensorFlow's decoders, without
EXIF orientation. The result is uint8 RGB: grey is tiled, alpha is dropped,
16-bit PNG keeps its upper 8 bits.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from tf_contrastive import errors
from tf_contrastive.datasets.source import Record

EXTENSIONS = (".jpg", ".jpeg", ".png", ".gif", ".bmp")
# Number of images from which the start of the check is logged.
_MANY = 10_000


def decode(contents: tf.Tensor) -> tf.Tensor:
    """Decodes an image file's bytes, string [], to uint8 [h, w, 3]."""
    image = tf.io.decode_image(contents, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    return image


def decode_record(record: Record) -> Record:
    """Decodes the `image` of a record, string []."""
    return record | {"image": decode(record["image"])}


def _shape(contents: tf.Tensor) -> tf.Tensor:
    """Decodes cheaply, failing where `decode` would; int32 [2], the size."""

    def of_jpeg() -> tf.Tensor:
        # An eighth of the size is cheap and still reads every byte, so that a
        # truncated file fails. The result must depend on its pixels: a control
        # dependency on a stateless op is optimized away.
        small = tf.io.decode_jpeg(contents, channels=3, ratio=8)
        size = tf.io.extract_jpeg_shape(contents)[:2]
        return tf.where(tf.size(small) > 0, size, 0)

    is_jpeg = tf.strings.substr(contents, 0, 3) == b"\xff\xd8\xff"
    return tf.cond(is_jpeg, of_jpeg, lambda: tf.shape(decode(contents))[:2])


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of images, in order, with other columns of their records.

    Attributes:
      sizes: int32 [n, 2], height and width; zeros where unreadable.
      columns: columns of the records, [n] each, by name.
    """

    sizes: np.ndarray
    columns: dict[str, np.ndarray]

    @property
    def good(self) -> np.ndarray:
        """Indices of the readable images, int [m]."""
        return np.flatnonzero(self.sizes[:, 0])

    @property
    def bad(self) -> np.ndarray:
        """Indices of the unreadable images, int [n - m]."""
        return np.flatnonzero(self.sizes[:, 0] == 0)

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """The common shape of all readable images, or None."""
        sizes = np.unique(self.sizes[self.good], axis=0)
        if len(sizes) != 1:
            return None
        return int(sizes[0, 0]), int(sizes[0, 1]), 3

    def within(self, start: int, stop: int) -> "Sizes":
        """Returns only the rows from `start` to `stop`."""
        columns = {k: v[start:stop] for k, v in self.columns.items()}
        return Sizes(self.sizes[start:stop], columns)

    def check(
        self, name: str, names: Sequence[str], limit: int
    ) -> tuple[str, ...]:
        """Returns the names of the unreadable images.

        Args:
          name: name of the dataset.
          names: a name per image.
          limit: number of unreadable images that is accepted.

        Raises:
          UserError: if more than `limit`, or all, are unreadable.
        """
        bad, total = [names[i] for i in self.bad], len(self.sizes)
        first = ", ".join(bad[:3]) + (", ..." if len(bad) > 3 else "")
        if len(bad) == total:
            raise errors.UserError(
                f"{name}: none of the {total} images can be read ({first}): use"
                " JPEG, PNG, GIF or BMP files"
            )
        if len(bad) > limit:
            raise errors.UserError(
                f"{name}: {len(bad)} of {total} images cannot be read"
                f" ({first}), more than max_bad_images={limit}: repair or"
                f" remove them, or set max_bad_images={len(bad)} to leave them"
                " out"
            )
        if bad:
            logging.warning(
                "%s: leaving out %d unreadable: %s", name, len(bad), first
            )
        return tuple(bad)


def read_sizes(
    records: tf.data.Dataset,
    contents: Callable[[Record], tf.Tensor],
    expected: int = 0,
    columns: tuple[str, ...] = (),
) -> Sizes:
    """Reads every image once, in parallel.

    Args:
      records: encoded records.
      contents: record -> the image file's bytes, string [].
      expected: approximate number of images, to announce a long check.
      columns: names of the records' columns to keep.
    """
    if expected >= _MANY:
        logging.info("checking that %d images can be read", expected)

    def size(record: Record) -> tuple[tf.Tensor, Record]:
        # TensorFlow catches an error only between the elements of a dataset, so
        # the record becomes a dataset of one, followed by a fallback.
        read = tf.data.Dataset.from_tensors(record).map(
            lambda record: _shape(contents(record))
        )
        zeros = tf.data.Dataset.from_tensors(tf.zeros([2], tf.int32))
        both = read.ignore_errors().concatenate(zeros)
        kept = {name: record[name] for name in columns}
        return both.take(1).get_single_element(), kept

    rows = list(
        records.map(size, tf.data.AUTOTUNE, deterministic=True)
        .batch(1024)
        .as_numpy_iterator()
    )
    if not rows:
        return Sizes(np.zeros([0, 2], np.int32), {})
    sizes, kept = zip(*rows, strict=True)
    return Sizes(
        np.concatenate(sizes),
        {name: np.concatenate([k[name] for k in kept]) for name in columns},
    )
