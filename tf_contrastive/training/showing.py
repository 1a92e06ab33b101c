"""What a run tells while it trains, and what it leaves for TensorBoard."""

import math
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import (
    callbacks,
    datasets,
    distribution,
    tensorboard,
    terminal,
)
from tf_contrastive import model as models
from tf_contrastive.config import fields
from tf_contrastive.config.encoder import ENCODERS, Encoder
from tf_contrastive.config.loss import OTHER_SOFTMAX, SOFTMAX_OVER_VIEWS
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import read_step_window
from tf_contrastive.tensorboard import projector, run_summary, scalars
from tf_contrastive.training.feeding import finishing, framing

EVENTS = "events"


# Encoded examples to choose those from whose views TensorBoard shows.
_SHOWN_AMONG = 1024


def announce(
    run: Pretrain,
    info: datasets.Info,
    strategy: tf.distribute.Strategy,
    steps_per_epoch: int,
    start_step: int,
) -> None:
    """Says on stderr what is about to run, and what `auto` chose."""
    if not distribution.is_chief(strategy):
        return
    size = run.views.image_size
    mixed = "".join(
        f", {name} of alpha {alpha:g}"
        for name, alpha in (
            ("MixUp", run.views.mixup_alpha),
            ("CutMix", run.views.cutmix_alpha),
        )
        if alpha
    )
    lines = [
        f"data       {info.name} {info.split}: {info.num_examples:,} images,"
        f" {info.labelling}",
        f"views      {run.views.views} x {run.views.augmentation} at"
        f" {size}x{size}{mixed}",
        f"encoder    {_network(run.encoder)}, {run.runtime.precision}",
        f"loss       {run.loss.loss}, {run.optimizer.optimizer},"
        f" {run.schedule.epochs} epochs of {steps_per_epoch} steps of"
        f" {run.schedule.batch_size} images on"
        f" {strategy.num_replicas_in_sync} replica(s)",
        f"workdir    {run.runtime.workdir}"
        + (f", resumed at step {start_step:,}" if start_step else ""),
    ]
    terminal.info("\n".join(lines))


def _network(chosen: Encoder) -> str:
    if chosen.encoder not in ENCODERS:
        return chosen.encoder
    return f"{chosen.encoder}, width {chosen.width:g}, {chosen.stem} stem"


def watch(
    run: Pretrain,
    model: models.ContrastiveModel,
    copy: tensorboard.HostCopy | None,
    source: datasets.Source,
    steps_per_epoch: int,
    rates: dict[str, Callable[[int], Any]],
    delivered: datasets.DeliveryCounter | None = None,
) -> list[tf.keras.callbacks.Callback]:
    """The callbacks that show the run: TensorBoard and the progress line.

    Args:
      run: a resolved config.
      model: what is trained.
      copy: with which histograms are made, if they are.
      source: what is trained on.
      steps_per_epoch: of a whole epoch.
      rates: TensorBoard tag -> what to show there, as a function of the step.
      delivered: what comes from a data service, to be shown too.
    """
    served = []
    if delivered:
        served = [FromService(delivered)]
        rates = rates | {
            "input/examples_of_epoch": lambda step: delivered.examples(
                step // steps_per_epoch
            )
        }
    events = os.path.join(run.runtime.workdir, EVENTS)
    every_epochs = run.runtime.histograms_every_epochs
    shown, labels = some_views(run, source)
    summaries = callbacks.TensorBoard(
        events,
        every_steps=run.runtime.log_every_steps,
        batch_size=run.schedule.batch_size,
        schedules=rates,
        first_summaries=[
            lambda: tf.summary.image("views", callbacks.view_grid(shown)),
            lambda: scalars.write_layout(
                probe=model.probe is not None, ranks=bool(every_epochs)
            ),
            lambda: run_summary.write_texts(run, model),
            lambda: run_summary.write_hparams(run),
        ],
        histograms=(
            tensorboard.Histograms(copy, model, shown, labels)
            if every_epochs
            else None
        ),
        histograms_every_epochs=every_epochs,
    )
    profiled = read_step_window(run.runtime.profile_steps)
    return [
        summaries,
        *(
            []
            if not terminal.shows_progress()
            else [
                callbacks.Progress(
                    epochs=run.schedule.epochs,
                    steps_per_epoch=steps_per_epoch,
                    batch_size=run.schedule.batch_size,
                    excluded_seconds=summaries.histogram_seconds,
                )
            ]
        ),
        callbacks.CollapseWarning(loss_of_a_guess(run)),
        *([callbacks.Profile(events, *profiled)] if profiled else []),
        *served,
    ]


def some_views(
    run: Pretrain, source: datasets.Source
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """A small batch for TensorBoard: finished views, before they are mixed.

    Returns:
      (views float32 [B, V, S, S, K], labels as `fit` takes them, or None).
    """
    run = fields.replace(
        run, augment_on="host", mixup_alpha=0.0, cutmix_alpha=0.0
    )
    images = callbacks.GRID_IMAGES
    if run.runtime.histograms_every_epochs:
        images = tensorboard.images_per_batch(
            run.views.image_size, run.views.views
        )
    stream = datasets.training_batches(
        source,
        framing(run),
        finish=finishing(run),
        batch_size=min(images, source.info.num_examples),
        seed=run.runtime.seed,
        shuffle_buffer=min(run.data.shuffle_buffer, _SHOWN_AMONG),
        cache="none",
        extra_channels=run.data.extra_channels,
    )
    first = next(iter(stream.take(1)))
    return first if isinstance(first, tuple) else (first, None)


def finish_showing(
    run: Pretrain,
    model: models.ContrastiveModel,
    copy: tensorboard.HostCopy | None,
    source: datasets.Source,
    watchers: list[tf.keras.callbacks.Callback],
) -> None:
    """Leaves to TensorBoard what there is of a run that is finished.

    Args:
      run: a resolved config.
      model: trained.
      copy: what makes the features for the projector, if there are to be some.
      source: of the images that it embeds.
      watchers: those of the run; without `TensorBoard` nothing was trained.
    """
    for watcher in watchers:
        if isinstance(watcher, callbacks.TensorBoard):
            if run.runtime.projector_examples:
                copy.update(model)
                events = os.path.join(run.runtime.workdir, EVENTS)
                projector.write(events, copy, source, run)
            watcher.close(run_summary.write_end)


def loss_of_a_guess(run: Pretrain) -> float | None:
    """The loss where all candidates look alike, nats, if it is known."""
    altered = set(run.loss.options()) & {*OTHER_SOFTMAX}
    if run.loss.loss not in SOFTMAX_OVER_VIEWS or altered:
        return None
    return math.log(run.views.views * run.schedule.batch_size - 1)


class FromService(tf.keras.callbacks.Callback):
    """Says on stderr how many examples of an epoch the data service gave."""

    def __init__(self, delivered: datasets.DeliveryCounter) -> None:
        super().__init__()
        self._delivered = delivered

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Leaves a line for the epoch."""
        seen = self._delivered.examples(epoch)
        expected = self._delivered.expected(epoch)
        lost = "; a worker took the others with it" if seen < expected else ""
        (terminal.warning if lost else terminal.info)(
            f"epoch {epoch + 1}: {seen:,} of {expected:,} examples came from"
            f" the data service{lost}"
        )
