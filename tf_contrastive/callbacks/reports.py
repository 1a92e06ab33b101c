"""What reports on a run: the lines before its first step, and callbacks."""

import logging
from collections.abc import Iterator

import tensorflow as tf

from tf_contrastive import datasets, tensorboard
from tf_contrastive.base import terminal
from tf_contrastive.callbacks.progress import CollapseWarning, Progress
from tf_contrastive.config.encoder import ResNet
from tf_contrastive.config.pretrain import Pretrain


def announce(
    options: Pretrain,
    info: datasets.Info,
    replicas: int,
    steps_per_epoch: int,
    start_step: int,
) -> None:
    """Logs what is about to run, and what `auto` became."""
    views, encoder = options.views, options.encoder.label
    if isinstance(options.encoder, ResNet):
        width, stem = options.encoder.width, options.encoder.stem
        encoder += f", width {width:g}, {stem} stem"
    resumed = f", resumed at step {start_step:,}" if start_step else ""
    lines = [
        f"data       {info.name} {info.split}: {info.num_examples:,} images,"
        f" {info.labelling}",
        f"views      {views.summary}",
        f"encoder    {encoder}, {options.runtime.precision}",
        f"loss       {options.loss.label}, {options.optimizer.label},"
        f" {options.schedule.epochs} epoch(s) of {steps_per_epoch} step(s) of"
        f" {options.schedule.batch_size} images on {replicas} replica(s)",
        f"workdir    {options.runtime.workdir}{resumed}",
    ]
    terminal.info("\n".join(lines))


def reports(
    options: Pretrain, steps_per_epoch: int, events: str
) -> Iterator[tf.keras.callbacks.Callback]:
    """Yields the callbacks that report on the terminal, and the profile."""
    if logging.getLogger("tf_contrastive").isEnabledFor(logging.INFO):
        yield Progress(
            epochs=options.schedule.epochs,
            steps_per_epoch=steps_per_epoch,
            batch_size=options.schedule.batch_size,
        )
    candidates = options.views.views * options.schedule.batch_size - 1
    yield CollapseWarning(
        options.loss.chance_level(candidates),
        options.schedule.warmup_epochs or 0.0,
    )
    if window := options.runtime.profile_steps:
        yield tensorboard.Profile(events, *window)
