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
    datasets,
    distribution,
    errors,
    exporting,
    optimizers,
    schedules,
    terminal,
)
from tf_contrastive import model as models
from tf_contrastive.config import fields
from tf_contrastive.config.data import (
    CHANNEL_STATISTICS,
    DEFAULT_IMAGE_SIZE,
    STANDARDIZE_EXAMPLES,
    ChannelStatistics,
    check_extra_channels,
    check_sampler,
    kind_of,
    stand_in,
    standing_in,
    whole,
    write_statistics,
)
from tf_contrastive.config.dataset_names import dataset_family
from tf_contrastive.config.encoder import resolve_encoder
from tf_contrastive.config.loss import check_chunks, check_labels
from tf_contrastive.config.optimizer import resolve_learning_rate
from tf_contrastive.config.pretrain import Pretrain, check_multi_label
from tf_contrastive.config.runtime import check_divisible, skipped_steps
from tf_contrastive.config.schedule import resolve_warmup
from tf_contrastive.config.smoke import smoke
from tf_contrastive.config.views import check_pairs, resolve_views


def prepare(
    run: Pretrain,
) -> tuple[
    tf.distribute.Strategy,
    datasets.Source,
    datasets.Source | None,
    Pretrain,
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
    check_divisible(run.schedule.batch_size, strategy.num_replicas_in_sync)
    check_chunks(
        run.loss.grad_cache_chunks,
        run.schedule.batch_size,
        strategy.num_replicas_in_sync,
    )
    if run.data.data_service:
        datasets.check_service(run.data.data_service)
    source, validation = open_dataset(run)
    run = standardize(resolve(run, source.info, strategy), source)
    return strategy, source, validation, run


def shrink(run: Pretrain) -> Pretrain:
    """Makes of a run what `--smoke` trains, and says how they differ."""
    name = run.data.dataset
    full = fields.replace(
        run,
        split=whole(run.data.split),
        test_split=whole(run.data.test_split),
    )
    try:
        info = open_train(full).info
        shape = info.image_shape or [DEFAULT_IMAGE_SIZE]
        side = min(shape[:2])
    except errors.AbsentDataError:
        terminal.info(f"smoke      {standing_in(name)}")
        name, side = stand_in(name), kind_of(name).side
        own = {"dataset": name, "split": "train", "test_split": "test"}
        full = fields.replace(full, **own)
        info = open_train(full).info
    tested = run.linear.schedule.epochs and open_test(full).info.num_examples
    small = smoke(
        run,
        dataset=name,
        side=side,
        examples=info.num_examples,
        test_examples=tested,
    )
    told = fields.differences(fields.replace(run, smoke=False), small)
    terminal.info(f"smoke      {', '.join(told)}")
    return small


def open_dataset(
    run: Pretrain,
) -> tuple[datasets.Source, datasets.Source | None]:
    """Opens the training split and, if one is cut off, its validation part."""
    source = open_train(run)
    if source.info.multi_label:
        check_multi_label(run, run.data.dataset)
    else:
        check_labels(run.loss.loss, run.data.dataset, source.info.has_labels)
        check_sampler(
            run.data.sampler, run.data.dataset, source.info.has_labels
        )
    if run.linear.schedule.epochs:
        # Now, lest a run end in a mistake that could be seen at its start.
        check_scored(source.info, open_test(run).info)
    if not run.data.validation_fraction:
        return source, None
    return source.split_validation(
        run.data.validation_fraction, run.runtime.seed
    )


def open_train(run: Pretrain) -> datasets.Source:
    """Opens the training split, whole."""
    return datasets.source(
        run.data.dataset,
        run.data.split,
        data_dir=run.data.data_dir or None,
        max_bad_images=run.data.max_bad_images,
    )


def open_test(run: Pretrain) -> datasets.Source:
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
            raise errors.UserError(
                f"{info.name} {info.split} has no labels to score against, one"
                " per image: give dataset=NAME of a dataset that has"
            )
    if train.num_classes != test.num_classes:
        raise errors.UserError(
            f"{train.name}: {train.split} has {train.num_classes} classes and"
            f" {test.split} {test.num_classes}: give splits of the same classes"
        )


def resolve(
    run: Pretrain,
    info: datasets.Info,
    strategy: tf.distribute.Strategy,
) -> Pretrain:
    """Puts into the config what `auto` and 0 stand for on this data and host.

    Raises:
      UserError: if the views are too small for the stem, or a replica's share
        of the batch does not suit what is done with it.
    """
    size = run.views.image_size
    if not size:
        shape = info.image_shape or [DEFAULT_IMAGE_SIZE]
        size = min(shape[:2])
    encoder = resolve_encoder(run.encoder, size)
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
    check_extra_channels(extra, info.name, info.extra_channels)
    if run.views.mixed:
        check_pairs(run.schedule.batch_size, strategy.num_replicas_in_sync)
    if info.multi_label:
        # There is no one class to tell.
        run = fields.replace(run, probe=False)
    run = dataclasses.replace(
        run,
        views=resolve_views(run.views, info.name, size),
        encoder=encoder,
    )
    return fields.replace(
        run,
        augment_on=augment_on,
        extra_channels=info.extra_channels if extra < 0 else extra,
        precision=precision,
        learning_rate=resolve_learning_rate(
            run.schedule.learning_rate,
            run.optimizer.optimizer,
            run.schedule.learning_rate_scaling,
        ),
        warmup_epochs=resolve_warmup(
            run.schedule.warmup_epochs, run.schedule.epochs
        ),
    )


def standardize(run: Pretrain, source: datasets.Source) -> Pretrain:
    """Replaces standardize="dataset" by the dataset's numbers."""
    if run.encoder.standardize != "dataset":
        return run
    statistics = write_statistics(channel_statistics(source))
    return fields.replace(run, standardize=statistics)


def channel_statistics(source: datasets.Source) -> ChannelStatistics:
    """The mean and deviation of a dataset's colours: known ones, or computed.

    Computed ones are those of at most STANDARDIZE_EXAMPLES examples, evenly
    spread over the split, in which every image counts as much as any other.
    """
    info = source.info
    if known := CHANNEL_STATISTICS.get(dataset_family(info.name)):
        return known
    count = min(info.num_examples, STANDARDIZE_EXAMPLES)
    rows = np.linspace(0, info.num_examples - 1, count).round().astype(int)
    terminal.info(
        f"standardize: colours of {count:,} of {info.num_examples:,} images"
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
    return ChannelStatistics(tuple(mean.tolist()), tuple(std.tolist()))


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
        raise errors.UserError(
            f"init_from={path} holds another encoder: {matched} variables"
            f" match, {len(missing)} are missing, {len(unexpected)} unexpected,"
            f" {len(reshaped)} of another shape (such as {first}): give its"
            " `encoder`, `width`, `stem` and `image_size`"
        )
    for name, variable in mine.items():
        variable.assign(theirs[name])


def compile_model(
    model: models.ContrastiveModel, run: Pretrain, steps_per_epoch: int
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
    if skipped_steps(run.runtime.nan_policy):
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
