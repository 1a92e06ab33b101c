"""What reports on a run: on the terminal, by its curves, by a profile."""

from collections.abc import Iterator

import tensorflow as tf

from tf_contrastive import tensorboard
from tf_contrastive.base import terminal
from tf_contrastive.callbacks.progress import (
    CollapseWarning,
    Progress,
)
from tf_contrastive.config.pretrain import Pretrain


def reports(
    options: Pretrain,
    steps_per_epoch: int,
    summaries: tensorboard.TensorBoard,
    events: str,
) -> Iterator[tf.keras.callbacks.Callback]:
    """Yields the callbacks that report on the terminal, and the profile."""
    if terminal.shows_progress():
        yield Progress(
            epochs=options.schedule.epochs,
            steps_per_epoch=steps_per_epoch,
            batch_size=options.schedule.batch_size,
            excluded_seconds=summaries.histogram_seconds,
        )
    candidates = options.views.views * options.schedule.batch_size - 1
    yield CollapseWarning(
        options.loss.chance_level(candidates),
        options.schedule.warmup_epochs or 0.0,
        one_network=not options.loss.takes_keys,
    )
    if window := options.runtime.profile_steps:
        yield tensorboard.Profile(events, *window)
