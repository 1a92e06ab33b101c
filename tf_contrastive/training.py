"""The main job: every part of a run, built in data-flow order, and fitted.

Layer 7. `pretrain` is the table of contents of a run: strategy, dataset,
views, model, optimizers, checkpoints, callbacks, fit.
"""

import contextlib
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import (
    board,
    callbacks,
    checkpoints,
    config,
    datasets,
    distribution,
    exporting,
    interruption,
    optimizers,
    pacing,
    schedules,
    terminal,
    views,
)
from tf_contrastive import model as models
from tf_contrastive.board import about, projector, scalars
from tf_contrastive.views import mixing as mixes

EVENTS = "events"
# Encoded examples to choose those from whose views TensorBoard shows.
_SHOWN_AMONG = 1024

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
      strategy: on which it was trained.
    """

    config: config.Pretrain
    start_step: int
    step: int
    seconds: float
    metrics: dict[str, float]
    bad_images: tuple[str, ...]
    is_chief: bool
    strategy: tf.distribute.Strategy


def pretrain(run: config.Pretrain) -> Result:
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
    config.check_profile_steps(
        run.runtime.profile_steps, steps_per_epoch * run.schedule.epochs
    )
    options = validate_on(validation, strategy, run) if validation else {}
    checkpoints.check_workdir(run)
    source = datasets.in_memory(
        source, "none" if run.data.data_service else run.data.cache
    )
    delivered = datasets.Delivered() if run.data.data_service else None

    is_chief = distribution.is_chief(strategy)
    copy = None
    if is_chief and (
        run.runtime.histograms_every_epochs or run.runtime.projector_examples
    ):
        copy = board.LocalCopy(run, source.info.num_classes)
    with strategy.scope(), models.precision(run.runtime.precision):
        model = models.build(
            run,
            source.info.num_classes,
            augment_on_device(run),
            mixing(run, source.info.num_classes),
        )
        if run.encoder.init_from:
            start_from(run.encoder.init_from, model.encoder)
        rates = compile_model(model, run, steps_per_epoch)

    kept = checkpoints.Checkpoints(model, run, metadata(source.info))
    start_step = kept.restore()
    announce(run, source.info, strategy, steps_per_epoch, start_step)

    with interruption.Interruption(strategy) as heard:
        watchers = [callbacks.Keeper(kept, run.runtime, heard)]
        if not run.runtime.steps_per_execution:
            # First: what the others do is no time of the step.
            watchers.insert(0, pacing.Pacer(kept, run.runtime, strategy))
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
        is_chief,
        strategy,
    )


def prepare(
    run: config.Pretrain,
) -> tuple[
    tf.distribute.Strategy,
    datasets.Source,
    datasets.Source | None,
    config.Pretrain,
]:
    """Makes the strategy, opens the data, and resolves the config.

    Returns:
      (strategy, training source, validation source or None, resolved config).

    Raises:
      UserError: for what cannot work.
    """
    run.validate()
    if run.runtime.smoke:
        run = shrink(run)
        run.validate()
    strategy = distribution.strategy(
        run.runtime.strategy,
        virtual_devices=run.runtime.virtual_devices,
        tpu=run.runtime.tpu,
        cross_device_ops=run.runtime.cross_device_ops,
    )
    config.check_divisible(
        run.schedule.batch_size, strategy.num_replicas_in_sync
    )
    config.check_chunks(
        run.loss.grad_cache_chunks,
        run.schedule.batch_size,
        strategy.num_replicas_in_sync,
    )
    if run.data.data_service:
        datasets.check_service(run.data.data_service)
    source, validation = open_dataset(run)
    run = whiten(resolve(run, source.info, strategy), source)
    return strategy, source, validation, run


def shrink(run: config.Pretrain) -> config.Pretrain:
    """Makes of a run what `--smoke` trains, and says how they differ."""
    name = run.data.dataset
    whole = config.replace(
        run,
        split=config.whole(run.data.split),
        test_split=config.whole(run.data.test_split),
    )
    try:
        info = open_train(whole).info
        shape = info.image_shape or [config.DEFAULT_IMAGE_SIZE]
        side = min(shape[:2])
    except config.AbsentDataError:
        terminal.tell(f"smoke      {config.standing_in(name)}")
        name, side = config.stand_in(name), config.kind_of(name).side
        own = {"dataset": name, "split": "train", "test_split": "test"}
        whole = config.replace(whole, **own)
        info = open_train(whole).info
    tested = run.linear.linear_epochs and open_test(whole).info.num_examples
    small = config.smoke(
        run,
        dataset=name,
        side=side,
        examples=info.num_examples,
        test_examples=tested,
    )
    told = config.differences(config.replace(run, smoke=False), small)
    terminal.tell(f"smoke      {', '.join(told)}")
    return small


def open_dataset(
    run: config.Pretrain,
) -> tuple[datasets.Source, datasets.Source | None]:
    """Opens the training split and, if one is cut off, its validation part."""
    source = open_train(run)
    if source.info.several_labels:
        config.check_several_labels(run, run.data.dataset)
    else:
        config.check_labels(
            run.loss.loss, run.data.dataset, source.info.has_labels
        )
        config.check_sampler(
            run.data.sampler, run.data.dataset, source.info.has_labels
        )
    if run.linear.linear_epochs:
        # Now, lest a run end in a mistake that could be seen at its start.
        check_scored(source.info, open_test(run).info)
    if not run.data.validation_fraction:
        return source, None
    return source.split_validation(
        run.data.validation_fraction, run.runtime.seed
    )


def open_train(run: config.Pretrain) -> datasets.Source:
    """Opens the training split, whole."""
    return datasets.source(
        run.data.dataset,
        run.data.split,
        data_dir=run.data.data_dir or None,
        max_bad_images=run.data.max_bad_images,
    )


def open_test(run: config.Pretrain) -> datasets.Source:
    """Opens the split on which the linear stage is scored."""
    return datasets.source(
        run.data.dataset,
        run.data.test_split,
        data_dir=run.data.data_dir or None,
    )


def check_scored(train: datasets.Info, test: datasets.Info) -> None:
    """Raises `UserError` for splits on which no classifier can be scored."""
    for info in (train, test):
        if not info.has_labels:
            raise config.UserError(
                f"{info.name} {info.split} has no labels to score against, one"
                " per image: give --dataset=NAME of a dataset that has"
            )
    if train.num_classes != test.num_classes:
        raise config.UserError(
            f"{train.name}: {train.split} has {train.num_classes} classes and"
            f" {test.split} {test.num_classes}: give splits of the same classes"
        )


def resolve(
    run: config.Pretrain,
    info: datasets.Info,
    strategy: tf.distribute.Strategy,
) -> config.Pretrain:
    """Puts into the config what `auto` and 0 stand for on this data and host.

    Raises:
      UserError: if the views are too small for the stem, or a replica's share
        of the batch does not suit what is done with it.
    """
    size = run.views.image_size
    if not size:
        shape = info.image_shape or [config.DEFAULT_IMAGE_SIZE]
        size = min(shape[:2])
    encoder = config.resolve_encoder(run.encoder, size)
    precision = run.runtime.precision
    if precision == "auto":
        on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
        precision = "mixed_bfloat16" if on_tpu else "float32"
    augment_on = run.views.augment_on
    if augment_on == "auto":
        on_device = isinstance(strategy, tf.distribute.TPUStrategy) or (
            tf.config.list_logical_devices("GPU")
        )
        augment_on = "device" if on_device else "host"
    extra = run.data.extra_channels
    config.check_extra_channels(extra, info.name, info.extra_channels)
    if run.views.mixed:
        config.check_pairs(
            run.schedule.batch_size, strategy.num_replicas_in_sync
        )
    if info.several_labels:
        # There is no one class to tell.
        run = config.replace(run, probe=False)
    run = dataclasses.replace(
        run,
        views=config.resolve_views(run.views, info.name, size),
        encoder=encoder,
    )
    return config.replace(
        run,
        augment_on=augment_on,
        extra_channels=info.extra_channels if extra < 0 else extra,
        precision=precision,
        learning_rate=config.resolve_learning_rate(
            run.schedule.learning_rate,
            run.optimizer.optimizer,
            run.schedule.learning_rate_scaling,
        ),
        warmup_epochs=config.resolve_warmup(
            run.schedule.warmup_epochs, run.schedule.epochs
        ),
    )


def whiten(run: config.Pretrain, source: datasets.Source) -> config.Pretrain:
    """Puts into the config the numbers that `--whiten=dataset` stands for."""
    if run.encoder.whiten != "dataset":
        return run
    statistics = config.write_statistics(channel_statistics(source))
    return config.replace(run, whiten=statistics)


def channel_statistics(source: datasets.Source) -> config.ChannelStatistics:
    """The mean and deviation of a dataset's colours: known ones, or computed.

    Computed ones are those of at most `config.WHITEN_EXAMPLES` examples, evenly
    spread over the split, in which every image counts as much as any other.
    """
    info = source.info
    if known := config.CHANNEL_STATISTICS.get(config.dataset_family(info.name)):
        return known
    count = min(info.num_examples, config.WHITEN_EXAMPLES)
    rows = np.linspace(0, info.num_examples - 1, count).round().astype(int)
    terminal.tell(
        f"whitening: colours of {count:,} of {info.num_examples:,} images"
    )

    @tf.autograph.experimental.do_not_convert
    def moments(example):
        pixels = tf.cast(example["image"], tf.float64) / 255
        return tf.stack(
            [
                tf.reduce_mean(pixels, [0, 1]),
                tf.reduce_mean(pixels**2, [0, 1]),
            ]
        )

    found = source.select(rows).examples().map(moments, tf.data.AUTOTUNE)
    found = np.concatenate(list(found.batch(256).as_numpy_iterator()))
    mean, square = found.mean(axis=0)
    # A colour that is the same everywhere is left to the first normalization.
    std = np.maximum(np.sqrt(np.maximum(square - mean**2, 0)), 1 / 255)
    return config.ChannelStatistics(tuple(mean.tolist()), tuple(std.tolist()))


def start_from(path: str, encoder: tf.keras.Model) -> None:
    """Gives an encoder the weights and statistics of another, all or none.

    Args:
      path: folder of a run or of an export.
      encoder: what is to get them.

    Raises:
      UserError: if names or shapes differ in any variable.
    """
    theirs = {v.name: v for v in exporting.load(path).variables}
    mine = {v.name: v for v in encoder.variables}
    missing = [name for name in mine if name not in theirs]
    unexpected = [name for name in theirs if name not in mine]
    reshaped = [
        f"{name} {theirs[name].shape} for {variable.shape}"
        for name, variable in mine.items()
        if name in theirs and theirs[name].shape != variable.shape
    ]
    if missing or unexpected or reshaped:
        matched = len(mine) - len(missing) - len(reshaped)
        first = ", ".join((*reshaped[:1], *missing[:1], *unexpected[:1]))
        raise config.UserError(
            f"--init_from={path} holds another encoder: {matched} variables"
            f" match, {len(missing)} are missing, {len(unexpected)} unexpected,"
            f" {len(reshaped)} of another shape (such as {first}): give its"
            " --encoder, --width, --stem and --image_size"
        )
    for name, variable in mine.items():
        variable.assign(theirs[name])


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
        **run.schedule.options(),
    )
    rate = schedule(
        base_learning_rate=run.schedule.learning_rate,
        warmup_epochs=run.schedule.warmup_epochs,
        scaling=run.schedule.learning_rate_scaling,
        floor=run.schedule.learning_rate_floor,
    )
    probe_rate = schedule(base_learning_rate=run.probe.probe_learning_rate)
    made = {
        "optimizer": optimizers.build(
            run.optimizer.optimizer,
            learning_rate=rate,
            exempt=optimizers.biases_and_scales(
                model.encoder, model.projection_head
            ),
            **run.optimizer.options(),
        ),
        "probe_optimizer": optimizers.build(
            "sgd",
            learning_rate=probe_rate,
            momentum=0.9,
            nesterov=True,
            weight_decay=0.0,
        ),
    }
    if config.skipped_steps(run.runtime.nan_policy):
        made = {name: models.passing_over(x) for name, x in made.items()}
    model.compile(
        **made,
        # The pacer chooses anew between executions.
        steps_per_execution=run.runtime.steps_per_execution or 1,
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


def make_policy(run: config.Pretrain) -> views.Policy:
    """The augmentation policy of a resolved config."""
    return views.build(
        run.views.augmentation,
        image_size=run.views.image_size,
        **run.views.options(),
    )


def framing(run: config.Pretrain) -> Callable[..., tf.Tensor]:
    """Crop, resize and flip, always on the host (see `views.framing`)."""
    return views.framing(make_policy(run), run.views.views)


def coloring(run: config.Pretrain, static: bool) -> Callable[..., tf.Tensor]:
    """All that follows the framing (see `views.coloring`)."""
    return views.coloring(make_policy(run), run.views.views, static)


def finishing(run: config.Pretrain) -> datasets.Finish:
    """What the host does with framed views: colour them, or ship the seeds.

    The step takes seeds where it changes colours, or mixes views.
    """
    count = run.views.views
    on_device = run.views.augment_on == "device"
    color = coloring(run, static=False)

    @tf.autograph.experimental.do_not_convert
    def finish(pixels: tf.Tensor, seeds: tf.Tensor) -> Any:
        seeds = views.draws.fold(seeds, count)
        if not on_device:
            pixels = color(pixels, seeds)
        return (pixels, seeds) if on_device or run.views.mixed else pixels

    return finish


def augment_on_device(run: config.Pretrain) -> Callable[..., tf.Tensor] | None:
    """What the step does with the views that it is given, if anything."""
    if run.views.augment_on != "device":
        return None
    # Compiled, since one kernel then does what would else be dozens.
    return tf.function(coloring(run, static=True), jit_compile=True)


def mixing(
    run: config.Pretrain, num_classes: int | None
) -> mixes.Mixing | None:
    """What mixes the views of several images in the step, if anything."""
    if not run.views.mixed:
        return None
    return mixes.Mixing(
        num_classes, run.views.mixup_alpha, run.views.cutmix_alpha
    )


def batches(
    source: datasets.Source,
    strategy: tf.distribute.Strategy,
    run: config.Pretrain,
    start_step: int,
    delivered: datasets.Delivered | None = None,
) -> Any:
    """The batches of a run from a step on, a share for every replica.

    Args:
      source: what to train on.
      strategy: whose replicas share the batches.
      run: a resolved config.
      start_step: the first step to give.
      delivered: counts what comes from a data service.
    """

    def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return datasets.training_batches(
            source,
            framing(run),
            finish=finishing(run),
            batch_size=run.schedule.batch_size,
            replica_batch_size=context.get_per_replica_batch_size(
                run.schedule.batch_size
            ),
            seed=run.runtime.seed,
            start_step=start_step,
            sampler=run.data.sampler,
            shuffle_buffer=run.data.shuffle_buffer,
            cache=run.data.cache,
            extra_channels=run.data.extra_channels,
            num_pipelines=context.num_input_pipelines,
            pipeline_id=context.input_pipeline_id,
            data_service=run.data.data_service,
            delivered=delivered,
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
        run,
        batch_size=size - size % replicas,
        sampler="shuffle",
        data_service="",
    )
    return {
        "validation_data": batches(validation, strategy, run, start_step=0),
        "validation_steps": datasets.steps_per_epoch(
            validation.info.num_examples, run.schedule.batch_size
        ),
    }


def watch(
    run: config.Pretrain,
    model: models.ContrastiveModel,
    copy: board.LocalCopy | None,
    source: datasets.Source,
    steps_per_epoch: int,
    rates: dict[str, Callable[[int], Any]],
    delivered: datasets.Delivered | None = None,
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
    summaries = callbacks.Summaries(
        events,
        every_steps=run.runtime.log_every_steps,
        batch_size=run.schedule.batch_size,
        schedules=rates,
        opening=[
            lambda: tf.summary.image("views", callbacks.grid(shown)),
            lambda: scalars.write_layout(
                probe=model.probe is not None, ranks=bool(every_epochs)
            ),
            lambda: about.write_texts(run, model),
            lambda: about.write_hparams(run),
        ],
        distributions=(
            board.Distributions(copy, model, shown, labels)
            if every_epochs
            else None
        ),
        every_epochs=every_epochs,
    )
    profiled = config.read_step_window(run.runtime.profile_steps)
    return [
        summaries,
        callbacks.Progress(
            epochs=run.schedule.epochs,
            steps_per_epoch=steps_per_epoch,
            batch_size=run.schedule.batch_size,
            aside=summaries.seconds_aside,
        ),
        callbacks.CollapseAlarm(loss_of_a_guess(run)),
        *([callbacks.Profile(events, *profiled)] if profiled else []),
        *served,
    ]


def some_views(
    run: config.Pretrain, source: datasets.Source
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """A small batch for TensorBoard: finished views, before they are mixed.

    Returns:
      (views float32 [B, V, S, S, K], labels as `fit` takes them, or None).
    """
    run = config.replace(
        run, augment_on="host", mixup_alpha=0.0, cutmix_alpha=0.0
    )
    images = callbacks.GRID_IMAGES
    if run.runtime.histograms_every_epochs:
        images = board.images_of(run.views.image_size, run.views.views)
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
    run: config.Pretrain,
    model: models.ContrastiveModel,
    copy: board.LocalCopy | None,
    source: datasets.Source,
    watchers: list[tf.keras.callbacks.Callback],
) -> None:
    """Leaves to TensorBoard what there is of a run that is finished.

    Args:
      run: a resolved config.
      model: trained.
      copy: what makes the features for the projector, if there are to be some.
      source: of the images that it embeds.
      watchers: those of the run; without `Summaries` nothing was trained.
    """
    for watcher in watchers:
        if isinstance(watcher, callbacks.Summaries):
            if run.runtime.projector_examples:
                copy.follow(model)
                events = os.path.join(run.runtime.workdir, EVENTS)
                projector.write(events, copy, source, run)
            watcher.close(about.write_end)


def loss_of_a_guess(run: config.Pretrain) -> float | None:
    """The loss where all candidates look alike, nats, if it is known."""
    altered = set(run.loss.options()) & {*config.OTHER_SOFTMAX}
    if run.loss.loss not in config.SOFTMAX_OVER_VIEWS or altered:
        return None
    return math.log(run.views.views * run.schedule.batch_size - 1)


@contextlib.contextmanager
def saved_at_least(
    kept: checkpoints.Checkpoints,
    strategy: tf.distribute.Strategy,
    delivered: datasets.Delivered | None,
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
            raise interruption.lost_worker(error, kept.directory) from error
        kept.finish()
        if delivered and delivered.lost:
            raise interruption.InterruptedRunError(
                f"{delivered.lost}; saved at step {kept.step:,}"
            ) from error
        raise


class FromService(tf.keras.callbacks.Callback):
    """Says on stderr how many examples of an epoch the data service gave."""

    def __init__(self, delivered: datasets.Delivered) -> None:
        super().__init__()
        self._delivered = delivered

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Leaves a line for the epoch."""
        seen = self._delivered.examples(epoch)
        expected = self._delivered.expected(epoch)
        lost = "; a worker took the others with it" if seen < expected else ""
        (terminal.warn if lost else terminal.tell)(
            f"epoch {epoch + 1}: {seen:,} of {expected:,} examples came from"
            f" the data service{lost}"
        )


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
    terminal.tell("\n".join(lines))


def _network(chosen: config.Encoder) -> str:
    if chosen.encoder not in config.ENCODERS:
        return chosen.encoder
    return f"{chosen.encoder}, width {chosen.width:g}, {chosen.stem} stem"


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
