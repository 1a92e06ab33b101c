"""Embeddings for TensorBoard's projector: points, labels and thumbnails."""

import math
import os
import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorboard.plugins import projector

from tf_contrastive import datasets, views
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.tensorboard.local_copy import DEVICE, LocalCopy

# Where the files are, beside the events and what names them there.
FOLDER = "projector"
# Name of the points in TensorBoard.
_NAME = "features"
# Sides in pixels: of a thumbnail, and of all in one picture (browsers' limit).
_THUMBNAIL = 48
_SPRITE = 8192
# Pixels embedded at a time: 64 images of 224 x 224.
_PIXELS = 64 * 224**2


def write(
    events: str,
    copy: LocalCopy,
    source: datasets.Source,
    run: Pretrain,
) -> None:
    """Embeds images spread over a split, and leaves them to the projector.

    Args:
      events: folder of the run's events, in which TensorBoard looks.
      copy: whose encoder makes the features h.
      source: of the images.
      run: a resolved config, which says how many.
    """
    total = source.info.num_examples
    count = min(run.runtime.projector_examples, total)
    rows = np.linspace(0, total - 1, count).round().astype(int)
    batches = datasets.evaluation_batches(
        source.select(rows),
        views.evaluation(run.views.image_size),
        batch_size=max(_PIXELS // run.views.image_size**2, 1),
        extra_channels=run.data.extra_channels,
    )
    features, labels, thumbnails = [], [], []
    with tf.device(DEVICE):
        for images, of_images in batches:
            features.append(copy.encoder(images, training=False).numpy())
            labels.append(of_images.numpy())
            thumbnails.append(_thumbnails(images[..., :3], count).numpy())
    write_points(
        events,
        np.concatenate(features),
        np.concatenate(thumbnails),
        rows,
        np.concatenate(labels) if source.info.has_labels else None,
        source.info.label_names,
    )


def _thumbnails(images: tf.Tensor, count: int) -> tf.Tensor:
    """Images float32 [b, S, S, 3] to uint8 [b, s, s, 3]."""
    side = min(_THUMBNAIL, _SPRITE // _columns(count))
    if images.shape[1] > side:
        images = tf.image.resize(images, [side, side], antialias=True)
    return tf.image.convert_image_dtype(images, tf.uint8, saturate=True)


def _columns(count: int) -> int:
    return math.ceil(math.sqrt(count))


def write_points(
    events: str,
    features: np.ndarray,
    thumbnails: np.ndarray,
    rows: np.ndarray,
    labels: np.ndarray | None = None,
    label_names: Sequence[str] = (),
) -> None:
    """Writes points, what is known of each, and their pictures.

    Args:
      events: folder of the run's events.
      features: float32 [n, D].
      thumbnails: uint8 [n, s, s, 3].
      rows: int [n], the images' places in their split.
      labels: int [n] or None.
      label_names: a name per class, or ().
    """
    folder = os.path.join(events, FOLDER)
    tf.io.gfile.makedirs(folder)
    _write_lines(
        os.path.join(folder, "features.tsv"),
        ("\t".join(f"{x:.6g}" for x in point) for point in features),
    )
    # A table of one column has no heading, as TensorBoard reads it.
    lines = [str(row) for row in rows]
    if labels is not None:
        named = [
            _word(label_names[i]) if i < len(label_names) else str(i)
            for i in labels
        ]
        table = zip(named, lines, strict=True)
        lines = ["label\timage", *map("\t".join, table)]
    _write_lines(os.path.join(folder, "metadata.tsv"), lines)
    path = os.path.join(folder, "sprite.png")
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(tf.io.encode_png(sprite(thumbnails)).numpy())
    about = projector.ProjectorConfig()
    points = about.embeddings.add()
    points.tensor_name = _NAME
    points.tensor_path = f"{FOLDER}/features.tsv"
    points.metadata_path = f"{FOLDER}/metadata.tsv"
    points.sprite.image_path = f"{FOLDER}/sprite.png"
    points.sprite.single_image_dim.extend(thumbnails.shape[2:0:-1])
    # Last: TensorBoard reads the others once it is there.
    projector.visualize_embeddings(events, about)


def _word(name: str) -> str:
    """A label in one column of one line."""
    return re.sub(r"\s+", " ", name)


def _write_lines(path, lines) -> None:
    with tf.io.gfile.GFile(path, "w") as file:
        for line in lines:
            file.write(f"{line}\n")


def sprite(thumbnails: np.ndarray) -> np.ndarray:
    """Puts pictures [n, s, s, 3] in rows, as many of them as columns at most.

    Returns:
      uint8 [S, S, 3], S = s * ceil(sqrt(n)): the projector takes it as square.
    """
    count, side = thumbnails.shape[:2]
    columns = _columns(count)
    cells = np.zeros([columns**2, *thumbnails.shape[1:]], np.uint8)
    cells[:count] = thumbnails
    cells = cells.reshape(columns, columns, side, side, 3)
    return cells.transpose(0, 2, 1, 3, 4).reshape(
        columns * side, columns * side, 3
    )
