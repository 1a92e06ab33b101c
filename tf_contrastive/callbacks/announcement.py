"""The lines that a run logs before its first step."""

import numpy as np

from tf_contrastive import datasets
from tf_contrastive.base import terminal
from tf_contrastive.config.encoder import ResNet
from tf_contrastive.config.pretrain import Pretrain


def announce(
    options: Pretrain,
    source: datasets.Source,
    replicas: int,
    steps_per_epoch: int,
    start_step: int,
) -> None:
    """Logs what is about to run, and what `auto` became.

    `options` are resolved; the run was resumed at `start_step`, if it is not 0.
    """
    info, sizes = source.info, source.class_sizes()
    views, encoder = options.views, options.encoder.label
    each = "" if sizes is None else f", {_range(sizes)} images each"
    if isinstance(options.encoder, ResNet):
        width, stem = options.encoder.width, options.encoder.stem
        encoder += f", width {width:g}, {stem} stem"
    resumed = f", resumed at step {start_step:,}" if start_step else ""
    lines = [
        f"data       {info.name} {info.split}: {info.num_examples:,} images,"
        f" {info.labelling}{each}",
        f"views      {views.views} x {views.policy.label} at"
        f" {views.side}x{views.side}",
        f"encoder    {encoder}, {options.runtime.precision}",
        f"loss       {options.loss.label}, {options.optimizer.label},"
        f" {options.schedule.epochs} epoch(s) of {steps_per_epoch} step(s)"
        f" of {options.schedule.batch_size} images on"
        f" {replicas} replica(s)",
        f"workdir    {options.runtime.workdir}{resumed}",
    ]
    terminal.info("\n".join(lines))


def _range(counts: np.ndarray) -> str:
    least, most = counts.min(), counts.max()
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
