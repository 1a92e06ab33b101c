"""A small batch of a run's views, and its images, for TensorBoard.

A `run` is a `train.PreparedRun`.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from tf_contrastive.config.views import NoAugmentation, Views, resolve_views
from tf_contrastive.tensorboard.callback import GRID_IMAGES
from tf_contrastive.tensorboard.histograms import images_per_batch

# Encoded examples among which those that are shown are chosen.
_SHUFFLED_EXAMPLES = 1024


def views_of(run: Any) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Returns a small batch (views [B, V, S, S, K], labels or None).

    They are not mixed.
    """
    first = _batch(run)
    return first if isinstance(first, tuple) else (first, None)


def originals_of(run: Any) -> tf.Tensor:
    """Returns the images of `views_of`, not augmented, [B, 1, S, S, K]."""
    plain = Views(policy=NoAugmentation(), views=1)
    side = run.options.views.side
    views = resolve_views(plain, run.source.info.name, side)
    options = dataclasses.replace(run.options, views=views)
    first = _batch(dataclasses.replace(run, options=options))
    return first[0] if isinstance(first, tuple) else first


def _batch(run: Any) -> Any:
    views, images = run.options.views, GRID_IMAGES
    if run.options.runtime.histograms_every_epochs:
        images = images_per_batch(views.side, views.views)
    buffer = run.options.data.shuffle_buffer
    few = run.with_options(
        augment_on="host",
        wire_dtype="float32",
        mixup_alpha=0.0,
        cutmix_alpha=0.0,
        batch_size=min(images, run.source.info.num_examples),
        sampler="shuffle",
        shuffle_buffer=min(buffer, _SHUFFLED_EXAMPLES),
        cache="none",
    )
    # In this process alone.
    local = tf.distribute.get_strategy()
    few = dataclasses.replace(few, strategy=local)
    return next(iter(few.batches()))
