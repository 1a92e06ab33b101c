"""Decoding of images, and the check that they can be decoded.

JPEG, PNG, GIF (its first frame) and BMP; like TensorFlow's decoders, without
EXIF orientation. The result is uint8 RGB: grey is tiled, alpha is dropped,
16-bit PNG keeps its upper 8 bits.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from tf_contrastive import errors
from tf_contrastive.datasets.source import Record

EXTENSIONS = (".jpg", ".jpeg", ".png", ".gif", ".bmp")


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


def check(
    name: str, names: Sequence[str], sizes: np.ndarray, limit: int
) -> tuple[np.ndarray, tuple[int, int, int] | None, tuple[str, ...]]:
    """Checks that at most `limit` of a dataset's named images are unreadable.

    Returns:
      (indices of the readable images, their common shape or None, names of the
      unreadable ones).
    """
    readable, total = sizes[:, 0] > 0, len(sizes)
    bad = [names[i] for i in np.flatnonzero(~readable)]
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
    distinct = np.unique(sizes[readable], axis=0).tolist()
    shape = (*distinct[0], 3) if len(distinct) == 1 else None
    return np.flatnonzero(readable), shape, tuple(bad)


def read_sizes(
    records: tf.data.Dataset,
    contents: Callable[[Record], tf.Tensor],
    columns: tuple[str, ...] = (),
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Reads the image files, `contents` of encoded records, in parallel.

    Returns:
      (height and width, int32 [n, 2], zeros where unreadable; the records'
      `columns`, [n] each).
    """

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
        return np.zeros([0, 2], np.int32), {}
    sizes, kept = zip(*rows, strict=True)
    joined = {c: np.concatenate([part[c] for part in kept]) for c in columns}
    return np.concatenate(sizes), joined
