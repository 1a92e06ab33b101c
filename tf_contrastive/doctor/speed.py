"""Speed of the input and of the training step, measured in a few seconds."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import encoders, train
from tf_contrastive import model as models
from tf_contrastive.config.encoder import resolve_stem
from tf_contrastive.datasets import synthetic
from tf_contrastive.doctor import memory
from tf_contrastive.model import networks

# Upper bounds of what the input is measured on: images of the data, of a batch.
_EXAMPLES = 2048
_INPUT_BATCH = 64
# Parts of the input's measurement, whose speeds show how even it is.
_INPUT_PARTS = 5
# Cost of a training step in forward passes.
_FORWARD_PASSES = 3
# Positions after the stem, in the batch that precisions are compared on, and
# seconds for both.
_COMPARED_POSITIONS = 16 * 24**2
_COMPARED_SECONDS = 1.0


class Spread(NamedTuple):
    """A measured number, and the range of its repeats."""

    value: float
    low: float
    high: float

    def map(self, function: Callable[[float], float]) -> "Spread":
        """Returns the spread of a monotonic function of the number."""
        value, *ends = map(function, self)
        return Spread(value, min(ends), max(ends))


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Duration of a training step with the whole batch."""

    seconds: Spread
    # Per replica, in the largest batch that was measured.
    images: int
    # Per replica, in the whole batch; if more, `seconds` is extrapolated.
    replica_images: int
    # On CPUs: per replica in the smallest batch, and the process's peak memory
    # in bytes after it.
    smallest_images: int = 0
    peak_memory: int = 0


def measure_input(run: train.PreparedRun, seconds: float) -> Spread | None:
    """Measures the input in images per second, for `seconds` after a batch.

    The range is that of the parts of this time. Returns None for batches of a
    data service.
    """
    if run.service:
        return None
    source, replicas = run.source, run.strategy.num_replicas_in_sync
    count = source.info.num_examples
    if count > _EXAMPLES:
        # Files are read in sequence: those between would be read for nothing.
        spread = source.arrays is not None
        last = (count if spread else _EXAMPLES) - 1
        source = source.select(
            np.linspace(0, last, _EXAMPLES).round().astype(int)
        )
        count = _EXAMPLES
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
    images, durations = [], []
    for _ in range(_INPUT_PARTS):
        start, steps, spent = time.perf_counter(), 0, 0.0
        while spent < seconds / _INPUT_PARTS:
            next(batches)
            steps += 1
            spent = time.perf_counter() - start
        images.append(steps * size)
        durations.append(spent)
    rates = [n / x for n, x in zip(images, durations, strict=True)]
    return Spread(sum(images) / sum(durations), min(rates), max(rates))


def measure_step(
    model: models.ContrastiveModel,
    run: train.PreparedRun,
    seconds: float,
) -> StepTime | None:
    """Measures the run's training step on noise, which trains the weights.

    Accelerators are measured with the whole batch. CPUs are measured with
    smaller batches, from which the cost of a step and of an image follow, for
    about `seconds` after tracing. Returns None if even the smallest batch takes
    longer.
    """
    options, replicas = run.options, run.machine.replicas
    images = options.schedule.batch_size // replicas
    step = model.make_train_function()

    def noise(images: int, static: bool = True) -> Iterator[Any]:
        classes = run.source.info.num_classes
        return iter(
            synthetic.batches(options, classes, images, run.strategy, static)
        )

    if not run.machine.on_cpu:
        batches = noise(images)
        times = _times(lambda: step(batches), seconds)
        return StepTime(_quartiles(times), images, images)
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

    def timed(images: int) -> Spread:
        batches = noise(images, static=False)
        return _quartiles(_times(lambda: step(batches), seconds / 4))

    few = many = timed(size)
    most = size
    peak = memory.peak_resident()
    # The larger batch takes about four steps.
    growth = min(int(seconds / (4 * few.value)), images // size)
    if growth > 1:
        most = growth * size
        many = timed(most)
    whole = extrapolate((size, few.value), (most, many.value), images)
    scale = whole / many.value
    seconds_of_step = many.map(lambda duration: scale * duration)
    return StepTime(seconds_of_step, most, images, size, peak)


def extrapolate(
    few: tuple[int, float], many: tuple[int, float], images: int
) -> float:
    """Extrapolates the seconds of a step from (images, seconds) of two others.

    An image takes at least half of its share of the larger step, so that noise
    cannot make it free.
    """
    per_image = many[1] / many[0]
    if many != few:
        slope = (many[1] - few[1]) / (many[0] - few[0])
        per_image = min(max(slope, per_image / 2), per_image)
    return many[1] + per_image * (images - many[0])


def half_speed(image_size: int) -> Spread | None:
    """Measures how many times as fast as float32 mixed_bfloat16 is on this CPU.

    Compares forward and backward passes of a small ResNet, in turns, so that
    other work on the machine slows down both. Returns None with an accelerator.
    """
    if any(map(tf.config.list_logical_devices, ("GPU", "TPU"))):
        return None
    shape = (image_size, image_size, 3)
    stem = resolve_stem("auto", image_size)
    side = image_size if stem == "cifar" else image_size // 4
    images = tf.zeros([max(_COMPARED_POSITIONS // side**2, 1), *shape])
    calls = []
    for policy in ("float32", "mixed_bfloat16"):
        with networks.precision(policy):
            encoder = encoders.build(
                "resnet10",
                stem=stem,
                image_shape=shape,
                synchronized=False,
            )

        @tf.function
        def passes(encoder: tf.keras.Model = encoder) -> dict[str, tf.Tensor]:
            with tf.GradientTape() as tape:
                total = tf.reduce_mean(encoder(images, training=True))
            gradients = tape.gradient(total, encoder.trainable_variables)
            return {"norm": tf.linalg.global_norm(gradients)}

        calls.append(passes)
        _times(passes, 0.0)
    pairs: list[float] = []
    start = time.perf_counter()
    while len(pairs) < 3 or time.perf_counter() - start < _COMPARED_SECONDS:
        float32, bfloat16 = map(_seconds, calls)
        pairs.append(float32 / bfloat16)
    return _quartiles(pairs)


def _quartiles(values: Sequence[float]) -> Spread:
    """Returns the median, and the first and last quartile."""
    low, median, high = np.percentile(values, [25, 50, 75])
    return Spread(float(median), float(low), float(high))


def _times(
    call: Callable[[], dict[str, tf.Tensor]], seconds: float
) -> list[float]:
    """Seconds of each call of at least two, after one that is not measured."""
    _seconds(call)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 2 or time.perf_counter() - start < seconds:
        times.append(_seconds(call))
    return times


def _seconds(call: Callable[[], dict[str, tf.Tensor]]) -> float:
    """Seconds of a call, with its results."""
    start = time.perf_counter()
    for value in call().values():
        value.numpy()  # Waits for the device.
    return time.perf_counter() - start
