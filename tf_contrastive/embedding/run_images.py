"""The classifier that an export makes of a run's training split."""

import tensorflow as tf

from tf_contrastive import checkpoints, datasets, exporting, views
from tf_contrastive.base import errors, terminal
from tf_contrastive.config.embed import Embedding
from tf_contrastive.embedding.embedder import embed


def prototypes(
    run: checkpoints.Run, encoder: tf.keras.Model, data_dir: str
) -> exporting.PrototypeHead:
    """Returns the classifier of the mean embedding of each class.

    Raises:
      UserError: for data that are absent, or have no labels.
    """
    data = run.config.data
    source = datasets.source(
        data.dataset,
        data.split,
        data_dir=data_dir or data.data_dir or None,
        reading=run.config.reading,
    ).labelled()
    if not source.info.has_labels:
        raise errors.UserError(
            f"{errors.arg('head', 'prototype')} needs labels, and"
            f" {source.info.name} has none: use {errors.arg('head', 'none')}"
        )
    terminal.info(
        f"embedding {source.info.num_examples:,} images of {source.info.name}"
    )
    _, size, channels = exporting.image_shape(encoder)
    batches = datasets.evaluation_batches(
        source,
        views.evaluation(size, channels=source.info.float_channels),
        batch_size=Embedding.embedding_batch_size,
        extra_channels=channels - source.info.channels,
    )
    return exporting.PrototypeHead(
        *embed(encoder, batches), source.info.num_classes
    )
