"""Images to explore: embeddings, labels, names, and pixels if there are any."""

import base64
import dataclasses
import hashlib
import io
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import PIL.features
import PIL.Image
import tensorflow as tf

from tf_contrastive import datasets, embedding, exporting, views
from tf_contrastive.base import errors, terminal
from tf_contrastive.config.data import Reading, check_encoder_channels
from tf_contrastive.embedding import output_files
from tf_contrastive.evaluation.explore import near_copies

# Seconds between two lines of progress.
_LOG_SECONDS = 10.0
_BATCH = 256
# Of a thumbnail's file, and of one that the page magnifies, and its side.
_QUALITY, _FINE, _MAGNIFIED = 75, 95, 48


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """The images of a split, in order.

    Attributes:
      name: of the split, or of the file of embeddings.
      embeddings: float32 [n, D].
      names: of the images: paths, or the split and the place in it.
      indices: places in the split, int64 [n].
      labels: int64 [n], -1 where there are none.
      label_names: a name per class, or ().
      source: of the same images in the same order; None: they are not there.
    """

    name: str
    embeddings: np.ndarray
    names: Sequence[str]
    indices: np.ndarray
    labels: np.ndarray
    label_names: tuple[str, ...]
    source: datasets.Source | None


class Pixels(NamedTuple):
    """What is kept of the pixels of n images.

    Attributes:
      digests: int64 [n], equal for equal pixels.
      pictures: uint8 [n, SIDE, SIDE]; see `near_copies`.
    """

    digests: np.ndarray
    pictures: np.ndarray


def progress(title: str) -> Callable[[int, int], None]:
    """Returns what logs the progress of a pass, and when it will end."""
    start = last = time.monotonic()

    def log(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _LOG_SECONDS and done < total:
            return
        last = now
        left = (now - start) * (total - done) / max(done, 1)
        until = (
            f"{left:,.0f} s left" if done < total else f"{now - start:.0f} s"
        )
        terminal.info(f"{title}: {done:,} of {total:,}, {until}")

    return log


# ---- Embeddings --------------------------------------------------------------


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
    log, parts, done = progress(title), [], 0
    for h, _ in embedding.Embedder(encoder)(batches, size):
        parts.append(h)
        done += len(h)
        log(done, info.num_examples)
    return np.concatenate(parts)


def of_source(source: datasets.Source, embeddings: np.ndarray) -> Split:
    """Returns the images of a source with their embeddings."""
    info = source.info
    count = info.num_examples
    labels = source.labels() if info.has_labels else np.full([count], -1)
    if source.paths is None:
        names = [f"{info.split} {row}" for row in range(count)]
    else:
        names = list(source.paths)
    rows = np.arange(count)
    return Split(
        info.split, embeddings, names, rows, labels, info.label_names, source
    )


def of_file(
    path: str,
    reading: Reading,
    name: str,
    opened: datasets.Source | None = None,
) -> Split:
    """Reads embeddings; their images are `opened`, or those of their paths.

    Images that are gone, or can no longer be read, are left out, unless all
    are.

    Args:
      path: a file of `embed`, or its shards.
      reading: how images of paths are read.
      name: of the split.
      opened: the split that was embedded.
    """
    found = output_files.read(path)
    h, labels = found.embeddings, found.labels
    count = len(h)
    if h.ndim != 2 or not h.size:
        raise errors.UserError(
            f"{path} has embeddings of shape {list(h.shape)}: must be [images,"
            " features], at least one of each"
        )
    labels = np.full([count], -1) if labels is None else labels
    indices = np.arange(count) if found.indices is None else found.indices
    names: Sequence[str] = [f"{name} {i}" for i in indices]
    rows, source = np.arange(count), None
    if found.paths is not None:
        names = found.paths.tolist()
    label_names = found.label_names
    if opened is not None:
        total = opened.info.num_examples
        rising = (np.diff(indices) > 0).all()
        if not (rising and indices[0] >= 0 and indices[-1] < total):
            raise errors.UserError(
                f"{path} has {count:,} images with indices up to"
                f" {indices.max():,}, and {opened.info.name}"
                f" {opened.info.split} has {total:,}: set"
                f" {errors.arg('dataset')} and {errors.arg('split')} that were"
                " embedded"
            )
        source = opened.select(indices)
        label_names = label_names or opened.info.label_names
    elif found.paths is not None:
        try:
            source = datasets.from_paths([*names], reading)
        except errors.UserError as error:
            terminal.warning(f"{path}: its images are not shown: {error}")
        else:
            assert source.paths is not None
            there = {*source.paths}
            rows = np.flatnonzero([one in there for one in names])
    return Split(
        name,
        h[rows],
        [names[i] for i in rows.tolist()],
        indices[rows],
        labels[rows].astype(np.int64),
        label_names,
        source,
    )


# ---- Pixels ------------------------------------------------------------------


def look(source: datasets.Source) -> Pixels:
    """Reads the pixels of all images once."""

    def keep(record: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        image = source.decode(record)["image"]
        # 63 bits: a number of buckets is an int64.
        digest = tf.strings.to_hash_bucket_fast(
            tf.io.serialize_tensor(image), 2**63 - 1
        )
        return digest, near_copies.small_picture(image)

    kept = source.records.map(keep, tf.data.AUTOTUNE, deterministic=True)
    log, total, done = progress("reading pixels"), source.info.num_examples, 0
    digests = np.empty([total], np.int64)
    pictures = np.empty([total, *[near_copies.SIDE] * 2], np.uint8)
    for few, small in kept.batch(_BATCH).prefetch(2).as_numpy_iterator():
        digests[done : done + len(few)] = few
        pictures[done : done + len(few)] = small
        done += len(few)
        log(done, total)
    return Pixels(digests, pictures)


def equal_rows(embeddings: np.ndarray) -> np.ndarray:
    """Returns int64 [n], equal for equal rows."""
    digests = (
        hashlib.blake2b(row.tobytes(), digest_size=8, usedforsecurity=False)
        for row in np.ascontiguousarray(embeddings)
    )
    numbers = (
        int.from_bytes(x.digest(), "little", signed=True) for x in digests
    )
    return np.fromiter(numbers, np.int64, len(embeddings))


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

    # Headers of WebP have 30 bytes, those of JPEG 600.
    kind = "webp" if PIL.features.check("webp") else "jpeg"
    log, uris = progress("thumbnails"), []
    images = chosen.records.map(shrink, tf.data.AUTOTUNE, deterministic=True)
    for pixels in images.prefetch(_BATCH).as_numpy_iterator():
        file = io.BytesIO()
        quality = _FINE if max(pixels.shape[:2]) <= _MAGNIFIED else _QUALITY
        PIL.Image.fromarray(pixels).save(file, kind, quality=quality)
        text = base64.b64encode(file.getvalue()).decode()
        uris.append(f"data:image/{kind};base64,{text}")
        log(len(uris), len(rows))
    return uris
