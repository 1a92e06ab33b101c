"""The images of a run's training split, as an export of it needs them."""

import numpy as np
import tensorflow as tf

from tf_contrastive import checkpoints, datasets, exporting, views
from tf_contrastive.base import errors, terminal
from tf_contrastive.config.embed import Embedding
from tf_contrastive.embedding.embedder import embed

# Images that calibrate and check other formats.
_SAMPLE = 128


def prototypes(
    run: checkpoints.Run, encoder: tf.keras.Model, data_dir: str
) -> exporting.PrototypeHead:
    """Returns the classifier of the mean embedding of each class.

    Raises:
      UserError: for data that are absent, or have no labels.
    """
    source = _source(run, data_dir).labelled()
    if not source.info.has_labels:
        raise errors.UserError(
            f"{errors.arg('head', 'prototype')} needs labels, and"
            f" {source.info.name} has none: use {errors.arg('head', 'none')}"
        )
    terminal.info(
        f"embedding {source.info.num_examples:,} images of {source.info.name}"
    )
    return exporting.PrototypeHead(
        *embed(encoder, _batches(source, encoder)), source.info.num_classes
    )


def sample(
    run: checkpoints.Run, encoder: tf.keras.Model, data_dir: str
) -> np.ndarray:
    """Returns a few images, or photographs if the run's data are absent.

    They are float32 [n, S, S, K] in [0, 1].
    """
    try:
        source = _source(run, data_dir)
    except errors.UserError as error:
        terminal.info(
            f"checking with photographs instead of the run's data: {error}"
        )
        return exporting.photographs(
            _SAMPLE, *exporting.image_shape(encoder)[1:]
        )
    # From the whole split, which may be sorted by class.
    total = source.info.num_examples
    rows = np.linspace(0, total - 1, min(_SAMPLE, total)).astype(int)
    batches = _batches(source.select(np.unique(rows)), encoder)
    return np.concatenate([images.numpy() for images, _ in batches])


def _source(run: checkpoints.Run, data_dir: str) -> datasets.Source:
    data = run.config.data
    return datasets.source(
        data.dataset,
        data.split,
        data_dir=data_dir or data.data_dir or None,
        reading=run.config.reading,
    )


def _batches(
    source: datasets.Source, encoder: tf.keras.Model
) -> tf.data.Dataset:
    _, size, channels = exporting.image_shape(encoder)
    return datasets.evaluation_batches(
        source,
        views.evaluation(size),
        batch_size=Embedding.embedding_batch_size,
        extra_channels=channels - 3,
    )
