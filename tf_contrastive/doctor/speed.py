"""Speed of the input and of the training step, measured in a few seconds."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import model as models
from tf_contrastive import train
from tf_contrastive.config.pretrain import Pretrain

# Upper bounds of what the input is measured on: images of the data, of a batch.
_EXAMPLES = 2048
_INPUT_BATCH = 64
# Cost of a training step in forward passes.
_FORWARD_PASSES = 3


class StepTime(NamedTuple):
    """Duration of a training step with the whole batch."""

    seconds: float  # Extrapolated, if `images` are fewer than a batch.
    images: int  # Per replica, in the batch that was measured.


def measure_input(run: train.PreparedRun, seconds: float) -> float:
    """Measures the input in images per second, for `seconds` after a batch."""
    source, replicas = run.source, run.strategy.num_replicas_in_sync
    count = source.info.num_examples
    if count > _EXAMPLES:
        source, count = source.select(np.arange(_EXAMPLES)), _EXAMPLES
    size = min(
        run.options.schedule.batch_size, count, max(_INPUT_BATCH, 2 * replicas)
    )
    size = max(size // (2 * replicas), 1) * 2 * replicas
    if size > count:
        size = replicas
    run = dataclasses.replace(run.with_options(batch_size=size), source=source)
    batches = iter(run.batches())
    # Pipelines prepare a few batches while the first is waited for.
    next(batches)
    start, steps, spent = time.perf_counter(), 0, 0.0
    while spent < seconds:
        next(batches)
        steps += 1
        spent = time.perf_counter() - start
    return steps * size / spent


def measure_step(
    model: models.ContrastiveModel, run: train.PreparedRun, seconds: float
) -> StepTime | None:
    """Measures the run's training step on noise, which trains the weights.

    Accelerators are measured with the whole batch. CPUs are measured with a
    part of it that takes about a quarter of `seconds`, and a step is as much
    longer as its batch. Returns None if the smallest part takes longer than
    all of them.
    """
    options, replicas = run.options, run.machine.replicas
    images = options.schedule.batch_size // replicas
    size = images
    if run.machine.on_cpu:
        # A step cannot be interrupted, so one that takes too long is not begun.
        unit = math.lcm(options.batch.grad_cache_chunks, 2)
        image = tf.zeros([1, *model.encoder.input_shape[1:]])
        forward = min(_times(lambda: {"h": model.encoder(image)}, 0.0))
        of_image = options.views.pixels / options.views.side**2
        passes = _FORWARD_PASSES * of_image * unit * replicas
        if unit > images or passes * forward > seconds:
            return None
        units = int(seconds / 4 / (passes * forward))
        size = unit * min(max(units, 1), images // unit)
        seconds /= 4
    step = model.make_train_function()
    classes = run.source.info.num_classes
    batches = iter(noise(options, classes, size, run.strategy))
    duration = statistics.median(_times(lambda: step(batches), seconds))
    return StepTime(duration * images / size, size)


def _times(
    call: Callable[[], dict[str, tf.Tensor]], seconds: float
) -> list[float]:
    """Seconds of each call of at least two, after one that is not measured."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for value in call().values():
            value.numpy()  # Waits for the device.
        times.append(time.perf_counter() - start)
        if len(times) == 1:
            begin = time.perf_counter()
    return times[1:]


def noise(
    run: Pretrain,
    num_classes: int | None,
    images: int,
    strategy: tf.distribute.Strategy,
) -> tf.distribute.DistributedDataset:
    """Endless batches of noise, in the form that a resolved run's step takes.

    `images` is their number per replica.
    """
    rng = np.random.default_rng(0)
    side, count = run.views.side, run.views.views
    channels = run.channels
    small = run.views.small_views

    def pixels(count: int, side: int) -> np.ndarray:
        shape = [images, count, side, side, channels]
        if run.views.wire_dtype == "uint8":
            return rng.integers(0, 256, shape, np.uint8)
        return rng.random(shape, np.float32)

    views = pixels(count, side)
    shape = [images, count + small, 2]
    seeds = rng.integers(0, 2**31 - 1, shape).astype(np.int32)
    rows = np.arange(images, dtype=np.int32)
    on_device = run.views.augment_on == "device" or run.views.mixed
    inputs: Any = (views, seeds) if on_device else views
    if small:
        inputs = {
            "views": views,
            "small_views": pixels(small, run.views.small_side),
        }
        inputs |= {"seeds": seeds} if on_device else {}
    labels = () if num_classes is None else (rows % num_classes,)

    def dataset(_: tf.distribute.InputContext) -> tf.data.Dataset:
        examples = tf.data.Dataset.from_tensors((inputs, *labels))
        return examples.cache().repeat()

    return strategy.distribute_datasets_from_function(dataset)
