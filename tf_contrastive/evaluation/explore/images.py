"""Images to explore: embeddings, labels, names and pixels."""

import base64
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import PIL.Image
import tensorflow as tf

from tf_contrastive import classifiers, datasets
from tf_contrastive.base import terminal
from tf_contrastive.config.evaluate import Scoring
from tf_contrastive.evaluation.context import Data, EvaluationContext
from tf_contrastive.evaluation.explore import near_copies
from tf_contrastive.evaluation.subject import Subject

_BATCH = 256
# Of a thumbnail's file, and of one that the page magnifies, and its side.
_QUALITY, _FINE, _MAGNIFIED = 75, 95, 48


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """The images of a source, in order, with embeddings float32 [n, D]."""

    source: datasets.Source
    embeddings: np.ndarray

    @property
    def name(self) -> str:
        """The split's name."""
        return self.source.info.split

    @property
    def names(self) -> Sequence[str]:
        """The images' paths, or the split and the place in it."""
        if self.source.paths is not None:
            return list(self.source.paths)
        count = self.source.info.num_examples
        return [f"{self.name} {row}" for row in range(count)]

    @property
    def labels(self) -> np.ndarray:
        """Int64 [n], -1 where there are none."""
        if self.source.info.has_labels:
            return self.source.labels()
        return np.full([self.source.info.num_examples], -1)


def embed(
    encoder: Any, source: datasets.Source, batch_size: int, title: str
) -> Split:
    """Embeds all images of a source."""
    options = Scoring.of(embedding_batch_size=batch_size)
    data = Data(source, source)
    context = EvaluationContext(Subject(encoder), data, options)
    with terminal.elapsed(title):
        h, _ = context.subject.embed(context.images(source))
    return Split(source, classifiers.check_embeddings(title, h))


# ---- Pixels ------------------------------------------------------------------


def look(source: datasets.Source) -> tuple[np.ndarray, np.ndarray]:
    """Reads the pixels of all images once.

    Returns:
      (digests int64 [n], equal for equal pixels; pictures uint8 [n, SIDE,
      SIDE], see `near_copies`).
    """

    def digest(record: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        image, shown = _pixels(source, record)
        # 63 bits: a number of buckets is an int64.
        number = tf.strings.to_hash_bucket_fast(
            tf.io.serialize_tensor(image), 2**63 - 1
        )
        return number, near_copies.small_picture(shown)

    rows = source.records.map(digest, tf.data.AUTOTUNE, deterministic=True)
    with terminal.elapsed("reading pixels"):
        parts = [*rows.batch(_BATCH).prefetch(2).as_numpy_iterator()]
    digests, pictures = map(np.concatenate, zip(*parts, strict=True))
    return digests, pictures


def _pixels(
    source: datasets.Source, record: dict[str, tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns an image, and three of its channels, in 0..255, to look at."""
    image, info = source.decode(record)["image"], source.info
    if info.float_channels is None:
        return image, image
    return image, info.shown(image) * 255.0


def thumbnails(
    source: datasets.Source, rows: np.ndarray, side: int
) -> list[str]:
    """Returns images as data URIs, at most `side` pixels wide and high.

    `rows` are int [m], increasing.
    """
    chosen = source.select(rows)

    def shrink(record: dict[str, tf.Tensor]) -> tf.Tensor:
        _, image = _pixels(chosen, record)
        size = tf.shape(image)[:2]
        # Smaller images are magnified by the page, pixel by pixel.
        scale = tf.minimum(1.0, side / tf.cast(tf.reduce_max(size), tf.float32))
        new = tf.cast(tf.round(scale * tf.cast(size, tf.float32)), tf.int32)
        small = tf.image.resize(image, tf.maximum(new, 1), antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(small), 0.0, 255.0), tf.uint8)

    uris = []
    images = chosen.records.map(shrink, tf.data.AUTOTUNE, deterministic=True)
    for pixels in images.prefetch(_BATCH).as_numpy_iterator():
        # Headers of WebP have 30 bytes, those of JPEG 600.
        file = io.BytesIO()
        quality = _FINE if max(pixels.shape[:2]) <= _MAGNIFIED else _QUALITY
        PIL.Image.fromarray(pixels).save(file, "webp", quality=quality)
        text = base64.b64encode(file.getvalue()).decode()
        uris.append(f"data:image/webp;base64,{text}")
    return uris
