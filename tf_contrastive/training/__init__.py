"""The main job: every part of a run, built in data-flow order, and fitted.

Layer 7. `pretrain` is the table of contents of a run: strategy, dataset,
views, model, optimizers, checkpoints, callbacks, fit.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import (
    callbacks,
    checkpoints,
    datasets,
    distribution,
    tensorboard,
)
from tf_contrastive import model as models
from tf_contrastive.checkpoints import preemption
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import check_profile_steps
from tf_contrastive.training.feeding import (
    augment_on_device,
    batches,
    finishing,
    framing,
    make_policy,
    mixing,
    validate_on,
)
from tf_contrastive.training.preparation import (
    channel_statistics,
    check_scored,
    compile_model,
    metadata,
    open_dataset,
    open_test,
    prepare,
    resolve,
    shrink,
    standardize,
    start_from,
)
from tf_contrastive.training.showing import (
    EVENTS,
    announce,
    finish_showing,
    loss_of_a_guess,
    watch,
)

__all__ = [
    "EVENTS",
    "BatchesFrom",
    "Result",
    "augment_on_device",
    "batches",
    "build",
    "channel_statistics",
    "check_scored",
    "compile_model",
    "finish_showing",
    "finishing",
    "fit",
    "framing",
    "loss_of_a_guess",
    "make_policy",
    "metadata",
    "mixing",
    "open_dataset",
    "open_test",
    "prepare",
    "pretrain",
    "resolve",
    "saved_at_least",
    "shrink",
    "standardize",
    "start_from",
    "watch",
]

# step -> batches from that step on, as `fit` takes them.
BatchesFrom = Callable[[int], Any]


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
      config: the options, with what `auto` chose.
      start_step: the step it was resumed from, 0 for a new run.
      step: the last step.
      seconds: of fitting, in this process.
      metrics: means over the last epoch; accuracies in [0, 1].
      bad_images: names of the images that could not be read and were skipped.
      has_labels: whether the images had labels.
      is_chief: whether this process is the one that reports.
      strategy: on which it was trained.
    """

    config: Pretrain
    start_step: int
    step: int
    seconds: float
    metrics: dict[str, float]
    bad_images: tuple[str, ...]
    has_labels: bool
    is_chief: bool
    strategy: tf.distribute.Strategy


def pretrain(run: Pretrain) -> Result:
    """Trains an encoder, or goes on training it, as `run` says.

    Args:
      run: all options; what is written goes into `run.runtime.workdir`.

    Raises:
      UserError: for what cannot work, before the first step and before
        anything is written; its NonFiniteError, once the loss is no number;
        its InterruptedRunError, with status 42, if the run was told to end or
        lost what it needs, and goes on with the same command.
    """
    strategy, source, validation, run = prepare(run)
    steps_per_epoch = datasets.steps_per_epoch(
        source.info.num_examples, run.schedule.batch_size
    )
    check_profile_steps(
        run.runtime.profile_steps, steps_per_epoch * run.schedule.epochs
    )
    options = validate_on(validation, strategy, run) if validation else {}
    checkpoints.check_workdir(run)
    source = datasets.in_memory(
        source, "none" if run.data.data_service else run.data.cache
    )
    delivered = datasets.DeliveryCounter() if run.data.data_service else None

    is_chief = distribution.is_chief(strategy)
    copy = None
    if is_chief and (
        run.runtime.histograms_every_epochs or run.runtime.projector_examples
    ):
        copy = tensorboard.HostCopy(run, source.info.num_classes)
    model, rates = build(run, strategy, source.info, steps_per_epoch)

    kept = checkpoints.Checkpoints(model, run, metadata(source.info))
    start_step = kept.restore()
    announce(run, source.info, strategy, steps_per_epoch, start_step)

    with preemption.PreemptionListener(strategy) as heard:
        watchers = [callbacks.CheckpointCallback(kept, run.runtime, heard)]
        if not run.runtime.steps_per_execution:
            # First: what the others do is no time of the step.
            watchers.insert(
                0,
                callbacks.AdaptiveStepsPerExecution(
                    kept, run.runtime, strategy
                ),
            )
        if is_chief and start_step < steps_per_epoch * run.schedule.epochs:
            watchers += watch(
                run, model, copy, source, steps_per_epoch, rates, delivered
            )
        with saved_at_least(kept, strategy, delivered):
            seconds, metrics = fit(
                model,
                functools.partial(
                    batches, source, strategy, run, delivered=delivered
                ),
                start_step=start_step,
                steps_per_epoch=steps_per_epoch,
                epochs=run.schedule.epochs,
                callbacks=watchers,
                **options,
            )
        if is_chief:
            finish_showing(run, model, copy, validation or source, watchers)
    return Result(
        run,
        start_step,
        kept.step,
        seconds,
        metrics,
        source.info.bad_images,
        source.info.has_labels,
        is_chief,
        strategy,
    )


@contextlib.contextmanager
def saved_at_least(
    kept: checkpoints.Checkpoints,
    strategy: tf.distribute.Strategy,
    delivered: datasets.DeliveryCounter | None,
) -> Iterator[None]:
    """Saves what was trained before an error of TensorFlow ends the run.

    Raises:
      InterruptedRunError: for a lost data service, or a lost worker.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Saving needs all workers.
            raise preemption.lost_worker(error, kept.directory) from error
        kept.finish()
        if delivered and delivered.lost:
            raise preemption.LostServiceError(
                f"{delivered.lost}; saved at step {kept.step:,}"
            ) from error
        raise


def build(
    run: Pretrain,
    strategy: tf.distribute.Strategy,
    info: datasets.Info,
    steps_per_epoch: int,
) -> tuple[models.ContrastiveModel, dict[str, Callable[[int], Any]]]:
    """The compiled model of a resolved run, and its rates by TensorBoard tag.

    Raises:
      UserError: if `--init_from` has no such encoder.
    """
    with strategy.scope(), models.precision(run.runtime.precision):
        model = models.build(
            run,
            info.num_classes,
            augment_on_device(run),
            mixing(run, info.num_classes),
        )
        if run.encoder.init_from:
            start_from(run.encoder.init_from, model.encoder)
        return model, compile_model(model, run, steps_per_epoch)


def fit(
    model: models.ContrastiveModel,
    batches_from: BatchesFrom,
    *,
    start_step: int,
    steps_per_epoch: int,
    epochs: int,
    **options: Any,
) -> tuple[float, dict[str, float]]:
    """Fits from `start_step` to the end, and returns (seconds, metrics).

    An epoch that was interrupted is finished by a `fit` of its own, since
    Keras starts at the beginning of an epoch. The metrics are the last
    epoch's means; there are none if nothing was left to train.
    """
    started = time.perf_counter()
    epoch, done = divmod(start_step, steps_per_epoch)
    # (first step, first epoch, epoch to stop before, steps of an epoch)
    pieces = []
    if done:
        pieces.append((start_step, epoch, epoch + 1, steps_per_epoch - done))
        epoch += 1
    if epoch < epochs:
        pieces.append((epoch * steps_per_epoch, epoch, epochs, steps_per_epoch))
    metrics: dict[str, float] = {}
    for step, first, stop, steps in pieces:
        history = model.fit(
            batches_from(step),
            initial_epoch=first,
            epochs=stop,
            steps_per_epoch=steps,
            verbose=0,
            **options,
        )
        metrics = {k: float(v[-1]) for k, v in history.history.items()}
    return time.perf_counter() - started, metrics
