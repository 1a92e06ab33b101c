"""Embeddings for TensorBoard's projector: points, labels and thumbnails."""

import math
import os
import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorboard.plugins import projector

from tf_contrastive import datasets, views
from tf_contrastive.base import files
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.tensorboard.histograms import DEVICE, HostCopy

# The folder's name, below the events.
FOLDER = "projector"
# Side of a thumbnail in pixels, at most: browsers take an image of 10,000.
_THUMBNAIL = 48
# Pixels embedded at a time: 64 images of 224 x 224.
_BATCH_PIXELS = 64 * 224**2


def write(
    events: str, copy: HostCopy, source: datasets.Source, run: Pretrain
) -> None:
    """Embeds images spread over a split, and writes them for the projector."""
    total = source.info.num_examples
    count = min(run.runtime.projector_examples, total)
    rows = np.linspace(0, total - 1, count).round().astype(int)
    batches = datasets.evaluation_batches(
        source.select(rows),
        views.evaluation(run.views.side, channels=source.info.float_channels),
        batch_size=max(_BATCH_PIXELS // run.views.side**2, 1),
        extra_channels=run.data.extra_channels,
    )
    features, labels, thumbnails = [], [], []
    with tf.device(DEVICE):
        for images, batch_labels in batches:
            features.append(copy.encoder(images, training=False).numpy())
            labels.append(batch_labels.numpy())
            images = source.info.shown(images)
            if images.shape[1] > _THUMBNAIL:
                size = [_THUMBNAIL, _THUMBNAIL]
                images = tf.image.resize(images, size, antialias=True)
            pixels = tf.image.convert_image_dtype(images, tf.uint8, True)
            thumbnails.append(pixels.numpy())
    write_points(
        events,
        np.concatenate(features),
        np.concatenate(thumbnails),
        rows,
        np.concatenate(labels) if source.info.has_labels else None,
        source.info.label_names,
    )


def write_points(
    events: str,
    features: np.ndarray,
    thumbnails: np.ndarray,
    rows: np.ndarray,
    labels: np.ndarray | None = None,
    label_names: Sequence[str] = (),
) -> None:
    """Writes points, float32 [n, D], and thumbnails, uint8 [n, s, s, 3].

    `rows`, int [n], are positions of the images in their split; labels, int
    [n], may have names.
    """
    tf.io.gfile.makedirs(os.path.join(events, FOLDER))
    config = projector.ProjectorConfig()
    points = config.embeddings.add()
    points.tensor_name = "features"
    points.tensor_path = f"{FOLDER}/features.tsv"
    points.metadata_path = f"{FOLDER}/metadata.tsv"
    points.sprite.image_path = f"{FOLDER}/sprite.png"
    points.sprite.single_image_dim.extend(thumbnails.shape[2:0:-1])

    lines = [str(row) for row in rows]
    if labels is not None:
        names = [
            # A label must stay in its column and line.
            re.sub(r"\s+", " ", label_names[i])
            if 0 <= i < len(label_names)
            else str(i)
            for i in labels
        ]
        # TensorBoard expects a heading only above several columns.
        columns = zip(names, lines, strict=True)
        lines = ["label\timage", *map("\t".join, columns)]
    table = ["\t".join(f"{x:.6g}" for x in point) for point in features]
    for path, content in (
        (points.tensor_path, table),
        (points.metadata_path, lines),
    ):
        text = "".join(f"{line}\n" for line in content)
        files.write(os.path.join(events, path), text)
    files.write(
        os.path.join(events, points.sprite.image_path),
        tf.io.encode_png(sprite(thumbnails)).numpy(),
    )
    # Last, since TensorBoard reads the other files once this one exists.
    projector.visualize_embeddings(events, config)


def sprite(thumbnails: np.ndarray) -> np.ndarray:
    """Tiles images [n, s, s, 3] row by row to a square, uint8 [S, S, 3]."""
    count, side = thumbnails.shape[:2]
    columns = math.ceil(math.sqrt(count))
    cells = np.zeros([columns**2, side, side, 3], np.uint8)
    cells[:count] = thumbnails
    rows = cells.reshape(columns, columns, side, side, 3).swapaxes(1, 2)
    return rows.reshape(columns * side, columns * side, 3)
