"""What reports on a run: on the terminal, by its curves, by a profile."""

from collections.abc import Iterator

import tensorflow as tf

from tf_contrastive import datasets, tensorboard
from tf_contrastive.base import terminal
from tf_contrastive.callbacks.progress import (
    NARROW_STD,
    CollapseWarning,
    Progress,
)
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import read_step_window


def references(options: Pretrain, source: datasets.Source) -> dict[str, float]:
    """Returns metric -> the value by which to read its curve.

    That of the loss and of accuracies is chance; embeddings of less spread may
    have collapsed.
    """
    loss = options.loss
    candidates = options.views.views * options.schedule.batch_size - 1
    levels = {"embedding_std": NARROW_STD}
    if (level := loss.chance_level(candidates)) is not None:
        levels["loss"] = level
        if not loss.needs_labels:
            levels["contrastive_accuracy"] = 1 / candidates
    if options.probe.probe and (sizes := source.class_sizes()) is not None:
        levels["probe_accuracy"] = float(sizes.max() / sizes.sum())
    return levels


def reports(
    options: Pretrain,
    source: datasets.Source,
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
    yield CollapseWarning(
        references(options, source).get("loss"),
        options.schedule.warmup_epochs or 0.0,
        one_network=not options.loss.takes_keys,
    )
    if window := read_step_window(options.runtime.profile_steps):
        yield tensorboard.Profile(events, *window)
