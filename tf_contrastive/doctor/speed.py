"""Speed of the input and of the training step, measured in a few seconds."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import model as models
from tf_contrastive import train
from tf_contrastive.doctor import synthetic

# Upper bounds of what the input is measured on: images of the data, of a batch.
_EXAMPLES = 2048
_INPUT_BATCH = 64
# Cost of a training step in forward passes.
_FORWARD_PASSES = 3


class StepTime(NamedTuple):
    """Duration of a training step with the whole batch, in seconds.

    Attributes:
      seconds: extrapolated by the images if `images` are fewer than a batch.
      images: per replica, in the batch that was measured.
    """

    seconds: float
    images: int


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
    model: models.ContrastiveModel,
    run: train.PreparedRun,
    seconds: float,
) -> StepTime | None:
    """Measures the run's training step on noise, which trains the weights.

    Accelerators are measured with the whole batch. CPUs are measured with a
    part of it that takes about a quarter of `seconds`, and a step is as much
    longer as its batch. Returns None if even the smallest batch takes longer.
    """
    options, replicas = run.options, run.machine.replicas
    images = options.schedule.batch_size // replicas
    step = model.make_train_function()

    # Other batches of an unknown size need no new trace; replicas refuse them.
    static = replicas > 1 or not run.machine.on_cpu

    def timed(images: int, seconds: float) -> float:
        classes = run.source.info.num_classes
        batches = iter(
            synthetic.batches(options, classes, images, run.strategy, static)
        )
        return statistics.median(_times(lambda: step(batches), seconds))

    if not run.machine.on_cpu:
        return StepTime(timed(images, seconds), images)
    size = math.lcm(options.batch.grad_cache_chunks, 2)
    if size > images:
        return None
    # A step cannot be interrupted, so one that takes too long is not begun.
    image = tf.zeros([1, *model.encoder.input_shape[1:]])
    forward = _times(lambda: {"features": model.encoder(image)}, 0.0)
    if (
        min(forward) * _FORWARD_PASSES * options.views.views * size * replicas
        > seconds
    ):
        return None
    duration = timed(size, seconds / 4)
    growth = min(int(seconds / (4 * duration)), images // size)
    if growth > 1:
        size *= growth
        duration = timed(size, seconds / 4)
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
