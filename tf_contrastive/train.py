"""A run, from top to bottom: options in, a trained encoder out.

`pretrain` is the run. Below it, in the order in which it calls them, are the
parts that other commands use, too.
"""

import contextlib
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import (
    callbacks,
    checkpoints,
    datasets,
    distribution,
    errors,
    exporting,
    losses,
    optimizers,
    schedules,
    tensorboard,
    terminal,
)
from tf_contrastive.checkpoints import preemption
from tf_contrastive.config import allocations, fields
from tf_contrastive.config import pretrain as configs
from tf_contrastive.config.data import (
    check_pillow,
    check_pod,
    check_sampler,
    without_slice,
    write_statistics,
)
from tf_contrastive.config.encoder import ENCODERS
from tf_contrastive.config.loss import check_chunks, check_labels
from tf_contrastive.config.pretrain import Pretrain, check_multi_label
from tf_contrastive.config.runtime import (
    check_divisible,
    check_profile_steps,
    read_step_window,
    skipped_steps,
)
from tf_contrastive.config.smoke import smoke, substitute
from tf_contrastive.model import ContrastiveModel
from tf_contrastive.model.networks import build_model, precision
from tf_contrastive.tensorboard import projector, run_summary, scalars
from tf_contrastive.views import from_config

# Encoded examples among which those are chosen whose views TensorBoard shows.
_SHUFFLED_EXAMPLES = 1024

Schedules = dict[str, tf.keras.optimizers.schedules.LearningRateSchedule]


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
      config: the options, with `auto` resolved.
      start_step: the step that it was resumed from, 0 for a new run.
      seconds: of fitting, in this process.
      metrics: means over the last epoch; accuracies in [0, 1].
      bad_images: names of the images that could not be read and were skipped.
      is_chief: whether this process is the one that reports.
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


@distribution.failures.reported()
def pretrain(run: Pretrain) -> Result:
    """Trains an encoder, or resumes its training.

    Args:
      run: all options; results go to `run.runtime.workdir`.

    Raises:
      UserError: for invalid input, before the first step and before anything
        is written; its subclasses NonFiniteError, if what is trained is not
        finite,
        and InterruptedRunError, if the run was interrupted or lost a worker:
        the same command resumes it.
    """
    # ---- Strategy, data, and the options that follow from them
    strategy, source, validation, run, steps_per_epoch = prepare(run)
    total_steps = steps_per_epoch * run.schedule.epochs
    check_profile_steps(run.runtime.profile_steps, total_steps)
    allocations.check_batch(
        run, distribution.num_hosts(strategy), _on_cpu(strategy)
    )
    shape = source.info.image_shape
    if shape:
        images = source.info.num_examples * math.prod(shape)
        allocations.check_cache(run.data.cache, images)
    validation_options = {}
    if validation:
        validation_options = validation_batches(validation, strategy, run)
    checkpoints.check_workdir(run)
    is_chief = distribution.is_chief(strategy)
    lock = checkpoints.FolderLock(run.runtime.workdir)
    if is_chief:
        lock.check()
    source = datasets.in_memory(
        source, "none" if run.data.data_service else run.data.cache
    )
    delivered = (
        datasets.DataService(run.data.data_service)
        if run.data.data_service
        else None
    )

    # ---- Model and optimizers
    host_copy = None
    if is_chief and (
        run.runtime.histograms_every_epochs or run.runtime.projector_examples
    ):
        host_copy = tensorboard.HostCopy(run, source.info.num_classes)
    model, rates = build(run, strategy, source.info, steps_per_epoch)

    with contextlib.ExitStack() as resources:
        # ---- Checkpoints
        if is_chief:
            resources.enter_context(lock)
        _check_shared(strategy, lock, run.runtime.workdir)
        saved = checkpoints.Checkpoints(model, run, metadata(source.info), lock)
        start_step = saved.restore()
        if is_chief:
            _announce(run, source, strategy, steps_per_epoch, start_step)

        # ---- Callbacks, fit
        listener = preemption.PreemptionListener(strategy)
        resources.enter_context(listener)
        keeper = callbacks.CheckpointCallback(saved, run.runtime, listener)
        watchers: list[tf.keras.callbacks.Callback] = [keeper]
        if not run.runtime.steps_per_execution:
            # First, so that it times the step without the other callbacks.
            adaptive = callbacks.AdaptiveStepsPerExecution(
                saved, run.runtime, strategy
            )
            watchers.insert(0, adaptive)
        summaries = None
        if is_chief and start_step < total_steps:
            summaries = _summaries(
                run,
                model,
                host_copy,
                source,
                steps_per_epoch,
                rates,
                delivered,
            )
            watchers += [
                summaries,
                *_reports(run, steps_per_epoch, summaries, delivered),
            ]
        with _saving_on_error(saved, strategy, delivered):
            seconds, metrics = fit(
                model,
                functools.partial(
                    batches, source, strategy, run, delivered=delivered
                ),
                start_step=start_step,
                steps_per_epoch=steps_per_epoch,
                epochs=run.schedule.epochs,
                callbacks=watchers,
                **validation_options,
            )
        keeper.check_trained()
        if summaries:
            if host_copy and run.runtime.projector_examples:
                host_copy.update(model)
                events = _events(run)
                projector.write(events, host_copy, validation or source, run)
            summaries.close(run_summary.write_end)
    return Result(
        config=run,
        start_step=start_step,
        step=saved.step,
        seconds=seconds,
        metrics=metrics,
        bad_images=source.info.bad_images,
        has_labels=source.info.has_labels,
        is_chief=is_chief,
        strategy=strategy,
    )


# ---- Strategy, data, and the options that follow from them -------------------


class Prepared(NamedTuple):
    """A run whose strategy and data are known; `run` is resolved."""

    strategy: tf.distribute.Strategy
    source: datasets.Source
    validation: datasets.Source | None
    run: Pretrain
    steps_per_epoch: int


def prepare(run: Pretrain) -> Prepared:
    """Creates the strategy, opens the data, and resolves the options.

    Raises:
      UserError: for options that cannot work.
    """
    run.validate()
    if run.runtime.smoke:
        run = shrink(run)
        run.validate()
    strategy = distribution.strategy(
        run.runtime.strategy,
        virtual_devices=run.runtime.virtual_devices,
        tpu=run.runtime.tpu,
    )
    replicas, batch_size = (
        strategy.num_replicas_in_sync,
        run.schedule.batch_size,
    )
    check_divisible(batch_size, replicas)
    check_chunks(run.loss.grad_cache_chunks, batch_size, replicas)
    on_pod = distribution.is_pod(strategy)
    if on_pod:
        check_pod(run.runtime.workdir, run.data)
    if run.data.data_service:
        datasets.DataService(run.data.data_service).check()
    source, validation = open_data(run)
    if source.info.by_pillow:
        check_pillow(run.data, on_pod)
    run = resolve(run, source, strategy)
    hosts = distribution.num_hosts(strategy)
    allocations.check_model(run, replicas // hosts if _on_cpu(strategy) else 1)
    steps = datasets.steps_per_epoch(source.info.num_examples, batch_size)
    return Prepared(strategy, source, validation, run, steps)


def _on_cpu(strategy: tf.distribute.Strategy) -> bool:
    on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    return not (on_tpu or tf.config.list_logical_devices("GPU"))


def open_data(run: Pretrain) -> tuple[datasets.Source, datasets.Source | None]:
    """Opens the training split and, if one is cut off, its validation part.

    Raises:
      UserError: for data that are absent, or lack the labels that they need.
    """
    name, source = run.data.dataset, open_train(run)
    if source.info.multi_label:
        check_multi_label(run, name)
    else:
        check_labels(run.loss.loss, name, source.info.has_labels)
        check_sampler(run.data.sampler, name, source.info.has_labels)
    if run.linear.schedule.epochs:
        # Checked now, so that a run does not end in an error at its end.
        datasets.check_scorable(source.info, open_test(run).info)
    if not run.data.validation_fraction:
        return source, None
    return source.split_validation(
        run.data.validation_fraction, run.runtime.seed
    )


def open_train(run: Pretrain) -> datasets.Source:
    """Opens the whole training split."""
    return datasets.source(
        run.data.dataset,
        run.data.split,
        data_dir=run.data.data_dir or None,
        reading=run.reading,
    )


def open_test(run: Pretrain) -> datasets.Source:
    """Opens the split on which the linear stage is scored."""
    return datasets.source(
        run.data.dataset,
        run.data.test_split,
        data_dir=run.data.data_dir or None,
        reading=run.reading,
    )


def resolve(
    run: Pretrain, source: datasets.Source, strategy: tf.distribute.Strategy
) -> Pretrain:
    """Replaces `auto` and 0 in the options by their values on these data."""
    run = configs.resolve(
        run,
        dataset=source.info.name,
        image_shape=source.info.image_shape,
        extra_channels=source.info.extra_channels,
        multi_label=source.info.multi_label,
        replicas=strategy.num_replicas_in_sync,
        on_tpu=isinstance(strategy, tf.distribute.TPUStrategy),
        gpu_capability=distribution.gpu_capability(strategy),
        rounded_products=losses.matrix_products.rounded_by_device(strategy),
    )
    if run.encoder.standardize == "dataset":
        statistics = write_statistics(datasets.channel_statistics(source))
        run = fields.replace(run, standardize=statistics)
    return run


def shrink(run: Pretrain) -> Pretrain:
    """Returns a run of two small steps (`smoke`), and logs the changes."""
    name = run.data.dataset
    full = fields.replace(
        run,
        split=without_slice(run.data.split),
        test_split=without_slice(run.data.test_split),
    )
    try:
        info = open_train(full).info
        side = configs.image_side(info.image_shape)
    except errors.AbsentDataError:
        name, side, message = substitute(name)
        terminal.info(f"smoke      {message}")
        full = fields.replace(
            full, dataset=name, split="train", test_split="test"
        )
        info = open_train(full).info
    test_examples = 0
    if run.linear.schedule.epochs:
        test_examples = open_test(full).info.num_examples
    small = smoke(
        run,
        dataset=name,
        side=side,
        examples=info.num_examples,
        test_examples=test_examples,
    )
    changes = fields.differences(fields.replace(run, smoke=False), small)
    terminal.info(f"smoke      {', '.join(changes)}")
    return small


# ---- Views and batches -------------------------------------------------------


def batches(
    source: datasets.Source,
    strategy: tf.distribute.Strategy,
    run: Pretrain,
    start_step: int,
    delivered: datasets.DataService | None = None,
) -> Any:
    """Returns the distributed batches of a resolved run, from a step on.

    `delivered` counts the examples that come from a data service.
    """
    maker = datasets.ViewMaker(
        *from_config.on_host(run.views),
        from_config.halvings(run.views, run.data.decode_scale),
        run.data.extra_channels,
    )
    order = datasets.Order(
        batch_size=run.schedule.batch_size,
        seed=run.runtime.seed,
        start_step=start_step,
        sampler=run.data.sampler,
        shuffle_buffer=run.data.shuffle_buffer,
        cache=run.data.cache,
        sharding=run.data.input_sharding,
    )
    return strategy.distribute_datasets_from_function(
        lambda context: datasets.training_batches(
            source, maker, order, context, delivered
        )
    )


def validation_batches(
    validation: datasets.Source,
    strategy: tf.distribute.Strategy,
    run: Pretrain,
) -> dict[str, Any]:
    """Returns `fit`'s options that measure the loss on the validation part.

    Every epoch has the same batches in the same views, so that epochs compare.

    Raises:
      UserError: if a replica would get fewer than 2 examples.
    """
    replicas, examples = (
        strategy.num_replicas_in_sync,
        validation.info.num_examples,
    )
    size = min(run.schedule.batch_size, examples)
    if size < 2 * replicas:
        fraction = f"{run.data.validation_fraction:g}"
        raise errors.UserError(
            f"{errors.arg('validation_fraction', fraction)} cuts off {examples}"
            f" examples, fewer than 2 for each of {replicas} replicas: use a"
            " larger fraction, or 0"
        )
    run = fields.replace(
        run,
        batch_size=size - size % replicas,
        sampler="shuffle",
        data_service="",
    )
    return {
        "validation_data": batches(validation, strategy, run, start_step=0),
        "validation_steps": datasets.steps_per_epoch(
            examples, run.schedule.batch_size
        ),
    }


# ---- Model and optimizers ----------------------------------------------------


def build(
    run: Pretrain,
    strategy: tf.distribute.Strategy,
    info: datasets.Info,
    steps_per_epoch: int,
) -> tuple[ContrastiveModel, Schedules]:
    """Returns the compiled model of a resolved run, and its learning rates.

    Returns:
      (model, TensorBoard tag -> schedule).

    Raises:
      UserError: if `init_from` holds another encoder, or the loss needs classes
        that there are not.
    """
    with strategy.scope(), precision(run.runtime.precision):
        model = build_model(run, info.num_classes)
        if run.encoder.init_from:
            exporting.copy_weights(run.encoder.init_from, model.encoder)
        return model, compile_model(model, run, steps_per_epoch)


def learning_rate(
    run: Pretrain, steps_per_epoch: int
) -> tf.keras.optimizers.schedules.LearningRateSchedule:
    """Returns the learning rate of the encoder."""
    return _schedule(run, steps_per_epoch)(
        base_learning_rate=run.schedule.learning_rate or 0.0,
        warmup_epochs=run.schedule.warmup_epochs,
        scaling=run.schedule.learning_rate_scaling,
        floor=run.schedule.learning_rate_floor,
    )


def _schedule(
    run: Pretrain, steps_per_epoch: int
) -> Callable[..., tf.keras.optimizers.schedules.LearningRateSchedule]:
    """Returns (base_learning_rate=..., ...) -> learning rate over the run."""
    return functools.partial(
        schedules.build,
        run.schedule.schedule,
        batch_size=run.schedule.batch_size,
        steps_per_epoch=steps_per_epoch,
        epochs=run.schedule.epochs,
        **run.schedule.options(),
    )


def compile_model(
    model: ContrastiveModel, run: Pretrain, steps_per_epoch: int
) -> Schedules:
    """Gives the model its optimizers; returns TensorBoard tag -> schedule."""
    rate = learning_rate(run, steps_per_epoch)
    optimizer = optimizers.build(
        run.optimizer.optimizer,
        learning_rate=rate,
        exempt=optimizers.biases_and_scales(
            model.encoder, model.projection_head
        ),
        **run.optimizer.options(),
    )
    further = model.further_optimizers(run, _schedule(run, steps_per_epoch))
    built = {"optimizer": (rate, optimizer), **further}
    compiled = {name: optimizer for name, (_, optimizer) in built.items()}
    if run.runtime.precision == "mixed_float16":
        scaled = tf.keras.mixed_precision.LossScaleOptimizer
        compiled = {name: scaled(x) for name, x in compiled.items()}
    elif skipped_steps(run.runtime.nan_policy):
        for optimizer in compiled.values():
            optimizer.skips_non_finite = True
    model.compile(
        **compiled,
        # 0: a callback sets it before each execution.
        steps_per_execution=run.runtime.steps_per_execution or 1,
        jit_compile=_compiles_step(run),
    )
    return {
        f"{name.removesuffix('_optimizer')}/learning_rate": rate
        for name, (rate, _) in built.items()
    }


def _compiles_step(run: Pretrain) -> bool:
    """Whether XLA compiles the step of each replica; else sets up clusters."""
    if run.runtime.xla != "on":
        return False
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        # Its collectives fail in a compiled function.
        tf.config.optimizer.set_jit("autoclustering")
        return False
    return not isinstance(strategy, tf.distribute.TPUStrategy)


def metadata(info: datasets.Info) -> dict[str, Any]:
    """Returns what later commands need to know of a run's data."""
    return {
        "dataset": info.name,
        "split": info.split,
        "num_examples": info.num_examples,
        "num_classes": info.num_classes,
        "image_shape": info.image_shape,
        "label_names": list(info.label_names),
        "tensorflow": tf.__version__,
    }


# ---- Callbacks, fit ----------------------------------------------------------


def _events(run: Pretrain) -> str:
    return os.path.join(run.runtime.workdir, tensorboard.EVENTS)


def _announce(
    run: Pretrain,
    source: datasets.Source,
    strategy: tf.distribute.Strategy,
    steps_per_epoch: int,
    start_step: int,
) -> None:
    """Logs what is about to run, and what `auto` became."""
    size, encoder, info = run.views.image_size, run.encoder.encoder, source.info
    sizes = source.class_sizes()
    each = "" if sizes is None else f", {_range(sizes)} images each"
    mixed = "".join(
        f", {name} of alpha {alpha:g}"
        for name, alpha in (
            ("MixUp", run.views.mixup_alpha),
            ("CutMix", run.views.cutmix_alpha),
        )
        if alpha
    )
    if encoder in ENCODERS:
        encoder += f", width {run.encoder.width:g}, {run.encoder.stem} stem"
    resumed = f", resumed at step {start_step:,}" if start_step else ""
    lines = [
        f"data       {info.name} {info.split}: {info.num_examples:,} images,"
        f" {info.labelling}{each}",
        f"views      {run.views.views} x {run.views.augmentation} at"
        f" {size}x{size}{mixed}",
        f"encoder    {encoder}, {run.runtime.precision}",
        f"loss       {run.loss.loss}, {run.optimizer.optimizer},"
        f" {run.schedule.epochs} epoch(s) of {steps_per_epoch} step(s) of"
        f" {run.schedule.batch_size} images on"
        f" {strategy.num_replicas_in_sync} replica(s)",
        f"workdir    {run.runtime.workdir}{resumed}",
    ]
    terminal.info("\n".join(lines))


def _range(counts: np.ndarray) -> str:
    least, most = counts.min(), counts.max()
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _summaries(
    run: Pretrain,
    model: ContrastiveModel,
    host_copy: tensorboard.HostCopy | None,
    source: datasets.Source,
    steps_per_epoch: int,
    rates: Schedules,
    delivered: datasets.DataService | None,
) -> tensorboard.TensorBoard:
    """Returns the callback that writes TensorBoard's events."""
    curves: dict[str, Callable[[int], Any]] = dict(rates)
    if delivered:
        curves["input/examples_of_epoch"] = lambda step: delivered.examples(
            step // steps_per_epoch
        )
    every_epochs = run.runtime.histograms_every_epochs
    pixels, labels = _example_views(run, source)
    return tensorboard.TensorBoard(
        _events(run),
        every_steps=run.runtime.log_every_steps,
        batch_size=run.schedule.batch_size,
        schedules=curves,
        first_summaries=[
            lambda: tf.summary.image("views", tensorboard.view_grid(pixels)),
            lambda: scalars.write_layout(
                [mean.name for mean in model.metrics],
                ranks=bool(every_epochs),
            ),
            lambda: run_summary.write_texts(run, model),
            lambda: run_summary.write_hparams(run),
        ],
        histograms=(
            tensorboard.Histograms(host_copy, model, pixels, labels)
            if host_copy and every_epochs
            else None
        ),
        histograms_every_epochs=every_epochs,
    )


def _example_views(
    run: Pretrain, source: datasets.Source
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """A small batch (views [B, V, S, S, K], labels or None), not mixed."""
    run = fields.replace(
        run,
        augment_on="host",
        wire_dtype="float32",
        mixup_alpha=0.0,
        cutmix_alpha=0.0,
    )
    images = tensorboard.GRID_IMAGES
    if run.runtime.histograms_every_epochs:
        images = tensorboard.images_per_batch(
            run.views.image_size, run.views.views
        )
    maker = datasets.ViewMaker(
        *from_config.on_host(run.views), extra_channels=run.data.extra_channels
    )
    order = datasets.Order(
        batch_size=min(images, source.info.num_examples),
        seed=run.runtime.seed,
        shuffle_buffer=min(run.data.shuffle_buffer, _SHUFFLED_EXAMPLES),
        cache="none",
    )
    stream = datasets.training_batches(source, maker, order)
    first = next(iter(stream.take(1)))
    return first if isinstance(first, tuple) else (first, None)


def _reports(
    run: Pretrain,
    steps_per_epoch: int,
    summaries: tensorboard.TensorBoard,
    delivered: datasets.DataService | None,
) -> Iterator[tf.keras.callbacks.Callback]:
    """Yields the callbacks that report on the terminal, and the profile."""
    if terminal.shows_progress():
        yield callbacks.Progress(
            epochs=run.schedule.epochs,
            steps_per_epoch=steps_per_epoch,
            batch_size=run.schedule.batch_size,
            excluded_seconds=summaries.histogram_seconds,
        )
    yield callbacks.CollapseWarning(
        run.loss.chosen().chance_level(
            run.views.views * run.schedule.batch_size - 1
        )
    )
    if window := read_step_window(run.runtime.profile_steps):
        events = _events(run)
        yield tensorboard.Profile(events, *window)
    if delivered:
        yield callbacks.DeliveredExamples(delivered)


def _check_shared(
    strategy: tf.distribute.Strategy, lock: checkpoints.FolderLock, workdir: str
) -> None:
    """Raises `UserError` if a worker does not see what the chief writes."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return
    distribution.any_worker(strategy, False)  # Until the chief has the lock.
    if distribution.any_worker(strategy, not lock.is_visible()):
        raise errors.UserError(
            f"{errors.arg('workdir', workdir)}: not all workers see what the"
            " first one writes there: use a folder that they share, or gs://"
        )


@contextlib.contextmanager
def _saving_on_error(
    saved: checkpoints.Checkpoints,
    strategy: tf.distribute.Strategy,
    delivered: datasets.DataService | None,
) -> Iterator[None]:
    """Saves the present step before an error of TensorFlow ends the run.

    Raises:
      UserError: for an image that can no longer be read.
      LostServiceError: for a lost data service.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise  # Without saving, which needs all workers.
        saved.finish()
        if delivered and delivered.lost:
            raise preemption.LostServiceError(
                f"{delivered.lost}; saved at step {saved.step:,}"
            ) from error
        if named := datasets.name_unreadable(error):
            raise errors.UserError(
                f"{named}; saved at step {saved.step:,}"
            ) from error
        raise


def fit(
    model: ContrastiveModel,
    batches_from: Callable[[int], Any],
    *,
    start_step: int,
    steps_per_epoch: int,
    epochs: int,
    **options: Any,
) -> tuple[float, dict[str, float]]:
    """Fits from `start_step` to the end of the last epoch.

    An interrupted epoch is finished by a `fit` of its own, since Keras starts
    at the beginning of an epoch.

    Args:
      model: compiled.
      batches_from: step -> distributed batches from that step on.
      start_step: steps that are trained already.
      steps_per_epoch: steps of a whole epoch.
      epochs: all epochs, those already trained included.
      **options: options of `tf.keras.Model.fit`.

    Returns:
      (seconds, means over the last epoch by metric; {} if nothing was left).
    """
    started = time.perf_counter()
    epoch, done = divmod(start_step, steps_per_epoch)
    # (first step, first epoch, epoch to stop before, steps of an epoch)
    pieces = []
    if done and epoch < epochs:
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
