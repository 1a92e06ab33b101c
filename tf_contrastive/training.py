"""The main job: every part of a run, built in data-flow order, and fitted.

Layer 7. `pretrain` is the table of contents of a run: strategy, dataset,
views, model, optimizers, checkpoints, callbacks, fit.
"""

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import (
    callbacks,
    checkpoints,
    config,
    datasets,
    distribution,
    optimizers,
    schedules,
    views,
)
from tf_contrastive import model as models

EVENTS = "events"

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
      is_chief: whether this process is the one that reports.
    """

    config: config.Pretrain
    start_step: int
    step: int
    seconds: float
    metrics: dict[str, float]
    bad_images: tuple[str, ...]
    is_chief: bool


def pretrain(run: config.Pretrain) -> Result:
    """Trains an encoder, or goes on training it, as `run` says.

    Args:
      run: all options; what is written goes into `run.runtime.workdir`.

    Raises:
      UserError: for what cannot work, before the first step and before
        anything is written; its NonFiniteLossError, once the loss is no number.
    """
    run.validate()
    strategy = distribution.strategy(
        run.runtime.strategy,
        virtual_devices=run.runtime.virtual_devices,
        tpu=run.runtime.tpu,
    )
    config.check_divisible(
        run.schedule.batch_size, strategy.num_replicas_in_sync
    )
    source, validation = open_dataset(run)
    run = resolve(run, source.info, strategy)
    steps_per_epoch = datasets.steps_per_epoch(
        source.info.num_examples, run.schedule.batch_size
    )
    options = validate_on(validation, strategy, run) if validation else {}
    checkpoints.check_workdir(run)
    source = datasets.in_memory_if_small(source)

    with strategy.scope(), models.precision(run.runtime.precision):
        model = models.build(run, source.info.num_classes)
        rates = compile_model(model, run, steps_per_epoch)

    kept = checkpoints.Checkpoints(model, run, metadata(source.info))
    start_step = kept.restore()
    announce(run, source.info, strategy, steps_per_epoch, start_step)

    watchers = [callbacks.Keeper(kept, run.runtime)]
    is_chief = distribution.is_chief(strategy)
    if is_chief:
        watchers += watch(run, source, steps_per_epoch, rates)
    seconds, metrics = fit(
        model,
        functools.partial(batches, source, strategy, run),
        start_step=start_step,
        steps_per_epoch=steps_per_epoch,
        epochs=run.schedule.epochs,
        callbacks=watchers,
        **options,
    )
    bad = source.info.bad_images
    return Result(run, start_step, kept.step, seconds, metrics, bad, is_chief)


def open_dataset(
    run: config.Pretrain,
) -> tuple[datasets.Source, datasets.Source | None]:
    """Opens the training split and, if one is cut off, its validation part."""
    source = datasets.source(
        run.data.dataset,
        run.data.split,
        data_dir=run.data.data_dir or None,
        max_bad_images=run.data.max_bad_images,
    )
    config.check_labels(run.loss.loss, run.data.dataset, source.info.has_labels)
    if not run.data.validation_fraction:
        return source, None
    return source.split_validation(
        run.data.validation_fraction, run.runtime.seed
    )


def resolve(
    run: config.Pretrain,
    info: datasets.Info,
    strategy: tf.distribute.Strategy,
) -> config.Pretrain:
    """Puts into the config what `auto` and 0 stand for on this data and host.

    Raises:
      UserError: if the views are too small for the stem.
    """
    size = run.views.image_size
    if not size:
        shape = info.image_shape or [config.DEFAULT_IMAGE_SIZE]
        size = min(shape[:2])
    stem = config.resolve_stem(run.encoder.stem, size)
    config.check_image_size(size, stem)
    precision = run.runtime.precision
    if precision == "auto":
        on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
        precision = "mixed_bfloat16" if on_tpu else "float32"
    return config.replace(
        run,
        image_size=size,
        stem=stem,
        precision=precision,
        warmup_epochs=schedules.resolve_warmup(
            run.schedule.warmup_epochs, run.schedule.epochs
        ),
    )


def compile_model(
    model: models.ContrastiveModel, run: config.Pretrain, steps_per_epoch: int
) -> dict[str, tf.keras.optimizers.schedules.LearningRateSchedule]:
    """Gives the model its optimizers.

    Returns:
      TensorBoard tag -> schedule of each learning rate.
    """
    schedule = functools.partial(
        schedules.build,
        run.schedule.schedule,
        batch_size=run.schedule.batch_size,
        steps_per_epoch=steps_per_epoch,
        epochs=run.schedule.epochs,
    )
    rate = schedule(
        base_learning_rate=run.schedule.learning_rate,
        warmup_epochs=run.schedule.warmup_epochs,
        scaling=run.schedule.learning_rate_scaling,
        floor=run.schedule.learning_rate_floor,
    )
    probe_rate = schedule(base_learning_rate=run.probe.probe_learning_rate)
    model.compile(
        optimizer=optimizers.build(
            run.optimizer.optimizer,
            learning_rate=rate,
            momentum=run.optimizer.momentum,
            nesterov=run.optimizer.nesterov,
            weight_decay=run.optimizer.weight_decay,
            trust_coefficient=run.optimizer.trust_coefficient,
        ),
        probe_optimizer=optimizers.build(
            "sgd",
            learning_rate=probe_rate,
            momentum=0.9,
            nesterov=True,
            weight_decay=0.0,
        ),
        steps_per_execution=run.runtime.steps_per_execution,
    )
    rates = {"optimizer/learning_rate": rate}
    return rates | ({"probe/learning_rate": probe_rate} if model.probe else {})


def metadata(info: datasets.Info) -> dict[str, Any]:
    """What later commands must know of the data, for the run's folder."""
    return {
        "dataset": info.name,
        "split": info.split,
        "num_examples": info.num_examples,
        "num_classes": info.num_classes,
        "image_shape": info.image_shape,
        "label_names": list(info.label_names),
        "tensorflow": tf.__version__,
    }


def make_views_of(run: config.Pretrain) -> Callable[..., tf.Tensor]:
    """Returns images uint8 [n,h,w,3], seeds int32 [n,2] -> [n,V,S,S,3]."""
    policy = views.build(
        run.views.augmentation,
        image_size=run.views.image_size,
        min_crop_area=run.views.min_crop_area,
        flip=run.views.flip,
        color_jitter_strength=run.views.color_jitter_strength,
        blur=run.views.blur,
    )
    return views.views(policy, run.views.views)


def batches(
    source: datasets.Source,
    strategy: tf.distribute.Strategy,
    run: config.Pretrain,
    start_step: int,
) -> Any:
    """The batches of a run from a step on, a share for every replica."""

    def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return datasets.training_batches(
            source,
            make_views_of(run),
            batch_size=run.schedule.batch_size,
            replica_batch_size=context.get_per_replica_batch_size(
                run.schedule.batch_size
            ),
            seed=run.runtime.seed,
            start_step=start_step,
            sampler=run.data.sampler,
            shuffle_buffer=run.data.shuffle_buffer,
            num_pipelines=context.num_input_pipelines,
            pipeline_id=context.input_pipeline_id,
        )

    return strategy.distribute_datasets_from_function(of_host)


def validate_on(
    validation: datasets.Source,
    strategy: tf.distribute.Strategy,
    run: config.Pretrain,
) -> dict[str, Any]:
    """Options that make `fit` measure the loss on the validation cut.

    Every epoch the same batches in the same views, so that epochs compare.
    """
    replicas = strategy.num_replicas_in_sync
    size = min(run.schedule.batch_size, validation.info.num_examples)
    if size < 2 * replicas:
        raise config.UserError(
            f"--validation_fraction={run.data.validation_fraction:g} cuts"
            f" {validation.info.num_examples} examples, fewer than 2 for each"
            f" of {replicas} replicas: give a larger one, or 0"
        )
    run = config.replace(
        run, batch_size=size - size % replicas, sampler="shuffle"
    )
    return {
        "validation_data": batches(validation, strategy, run, start_step=0),
        "validation_steps": datasets.steps_per_epoch(
            validation.info.num_examples, run.schedule.batch_size
        ),
    }


def watch(
    run: config.Pretrain,
    source: datasets.Source,
    steps_per_epoch: int,
    rates: dict[str, Callable[[int], Any]],
) -> list[tf.keras.callbacks.Callback]:
    """The callbacks that show the run: TensorBoard and the progress line."""
    shown = datasets.training_batches(
        source,
        make_views_of(run),
        batch_size=min(8, source.info.num_examples),
        seed=run.runtime.seed,
    )
    first = next(iter(shown.take(1)))
    return [
        callbacks.Summaries(
            os.path.join(run.runtime.workdir, EVENTS),
            every_steps=run.runtime.log_every_steps,
            batch_size=run.schedule.batch_size,
            schedules=rates,
            views=first[0] if isinstance(first, tuple) else first,
        ),
        callbacks.Progress(
            epochs=run.schedule.epochs,
            steps_per_epoch=steps_per_epoch,
            batch_size=run.schedule.batch_size,
        ),
    ]


def announce(
    run: config.Pretrain,
    info: datasets.Info,
    strategy: tf.distribute.Strategy,
    steps_per_epoch: int,
    start_step: int,
) -> None:
    """Says on stderr what is about to run, and what `auto` chose."""
    if not distribution.is_chief(strategy):
        return
    size = run.views.image_size
    classes = f"{info.num_classes} classes" if info.has_labels else "unlabelled"
    lines = [
        f"data       {info.name} {info.split}: {info.num_examples:,} images,"
        f" {classes}",
        f"views      {run.views.views} x {run.views.augmentation} at"
        f" {size}x{size}",
        f"encoder    {run.encoder.encoder}, width {run.encoder.width:g},"
        f" {run.encoder.stem} stem, {run.runtime.precision}",
        f"loss       {run.loss.loss}, {run.optimizer.optimizer},"
        f" {run.schedule.epochs} epochs of {steps_per_epoch} steps of"
        f" {run.schedule.batch_size} images on"
        f" {strategy.num_replicas_in_sync} replica(s)",
        f"workdir    {run.runtime.workdir}"
        + (f", resumed at step {start_step:,}" if start_step else ""),
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


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
