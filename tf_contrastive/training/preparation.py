"""What a run is, once its data are known: open, resolve, compile.

The options that `auto` or the data decide are written down here, before
anything is built.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import (
    config,
    datasets,
    distribution,
    exporting,
    optimizers,
    schedules,
    terminal,
)
from tf_contrastive import model as models


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
