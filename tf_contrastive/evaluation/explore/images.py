"""Images to explore: embeddings, labels, names, and pixels if there are any."""

import base64
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import PIL.Image
import tensorflow as tf

from tf_contrastive import classifiers, datasets, embedding, exporting, views
from tf_contrastive.base import terminal
from tf_contrastive.config.data import check_encoder_channels
from tf_contrastive.evaluation.explore import near_copies

_BATCH = 256
# Of a thumbnail's file, and of one that the page magnifies, and its side.
_QUALITY, _FINE, _MAGNIFIED = 75, 95, 48


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """The images of a split, in order.

    Attributes:
      name: the split's.
      embeddings: float32 [n, D].
      names: the images' paths, or the split and the place in it.
      labels: int64 [n], -1 where there are none.
      label_names: a name per class, or ().
      source: the same images in the same order.
    """

    name: str
    embeddings: np.ndarray
    names: Sequence[str]
    labels: np.ndarray
    label_names: tuple[str, ...]
    source: datasets.Source


def embed(
    encoder: Any, source: datasets.Source, batch_size: int, title: str
) -> np.ndarray:
    """Returns the embeddings of all images of a source, float32 [n, D]."""
    side, _, channels = exporting.image_shape(encoder)
    info = source.info
    check_encoder_channels(channels - 3, info.name, info.extra_channels)
    size = min(batch_size, info.num_examples)
    batches = datasets.evaluation_batches(
        source,
        views.evaluation(side),
        batch_size=size,
        extra_channels=channels - 3,
    )
    with terminal.elapsed(title):
        embedder = embedding.Embedder(encoder)
        parts = [h for h, _ in embedder(batches, size)]
    return classifiers.check_embeddings(title, np.concatenate(parts))


def of_source(source: datasets.Source, embeddings: np.ndarray) -> Split:
    """Returns the images of a source with their embeddings."""
    info = source.info
    count = info.num_examples
    labels = source.labels() if info.has_labels else np.full([count], -1)
    if source.paths is None:
        names = [f"{info.split} {row}" for row in range(count)]
    else:
        names = list(source.paths)
    return Split(
        info.split, embeddings, names, labels, info.label_names, source
    )


# ---- Pixels ------------------------------------------------------------------


def look(source: datasets.Source) -> tuple[np.ndarray, np.ndarray]:
    """Reads the pixels of all images once.

    Returns:
      (digests int64 [n], equal for equal pixels; pictures uint8 [n, SIDE,
      SIDE], see `near_copies`).
    """

    def digest(record: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        image = source.decode(record)["image"]
        # 63 bits: a number of buckets is an int64.
        number = tf.strings.to_hash_bucket_fast(
            tf.io.serialize_tensor(image), 2**63 - 1
        )
        return number, near_copies.small_picture(image)

    rows = source.records.map(digest, tf.data.AUTOTUNE, deterministic=True)
    with terminal.elapsed("reading pixels"):
        parts = [*rows.batch(_BATCH).prefetch(2).as_numpy_iterator()]
    digests, pictures = map(np.concatenate, zip(*parts, strict=True))
    return digests, pictures


def thumbnails(
    source: datasets.Source, rows: np.ndarray, side: int
) -> list[str]:
    """Returns images as data URIs, at most `side` pixels wide and high.

    `rows` are int [m], increasing.
    """
    chosen = source.select(rows)

    def shrink(record: dict[str, tf.Tensor]) -> tf.Tensor:
        image = chosen.decode(record)["image"]
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
