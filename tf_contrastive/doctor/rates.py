"""How fast the input and the step are, in a few seconds."""

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import datasets, training
from tf_contrastive import model as models
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.doctor import memory

# Examples that the input is measured on, at most; and in a batch.
_EXAMPLES = 2048
_INPUT_BATCH = 64

# Of what a CPU does in a product of matrices, what it does at least in a step:
# what would take too long even so is not begun, since a step cannot be stopped.
_OF_A_PRODUCT = 0.2
# Multiplications of a training step by those of its forward pass.
_OF_TRAINING = 3


@dataclasses.dataclass(frozen=True)
class StepTime:
    """What a step takes.

    Attributes:
      seconds: of a whole step.
      images: of a replica, of which it was measured.
      of_images: of a replica that a step has: from less it is extrapolated.
    """

    seconds: float
    images: int
    of_images: int


class Bounded:
    """Calls that are waited for until a moment, and no longer.

    Neither a step nor a read can be stopped; but a preflight can do without
    what they would have told. What is still under way goes on in a thread that
    does not keep the process.

    Args:
      end: of all waiting, on the clock of `time.perf_counter`.
    """

    def __init__(self, end: float) -> None:
        self._end = end
        self.abandoned = False

    @property
    def left(self) -> float:
        """Seconds until the end; none once a call was abandoned.

        What still runs would falsify further measurements.
        """
        return 0.0 if self.abandoned else self._end - time.perf_counter()

    def call(self, function: Callable[[], Any]) -> Any:
        """Returns what `function` does, or None if time runs out; or raises."""
        if self.left <= 0:
            return None
        made: list[Any] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                made.append(function())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(self.left)
        if thread.is_alive():
            self.abandoned = True
            return None
        if failed:
            raise failed[0]
        return made[0]


def input_rate(
    source: datasets.Source,
    strategy: tf.distribute.Strategy,
    run: Pretrain,
    seconds: float,
) -> float | None:
    """Examples per second of the run's own batches; None: those of a service.

    Args:
      source: what it trains on; a part of it is read.
      strategy: whose replicas share the batches.
      run: a resolved config.
      seconds: to measure for, after the first batch.
    """
    if run.data.data_service:
        return None
    replicas = strategy.num_replicas_in_sync
    count = source.info.num_examples
    if count > _EXAMPLES:
        rows = np.linspace(0, count - 1, _EXAMPLES).round().astype(int)
        if source.arrays is None:
            # Neighbours: files beside them are not read.
            rows = np.arange(_EXAMPLES)
        source = source.select(rows)
        count = _EXAMPLES
    size = min(run.schedule.batch_size, count, max(_INPUT_BATCH, 2 * replicas))
    size = max(size // (2 * replicas), 1) * 2 * replicas
    if size > count:
        size = replicas
    run = fields.replace(run, batch_size=size)
    source = datasets.in_memory(source, run.data.cache)
    batches = iter(training.batches(source, strategy, run, 0))
    next(batches)
    # Pipelines make a few ahead while the first is waited for.
    start, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < seconds:
        next(batches)
        done += 1
    return done * size / spent


def synthetic(
    run: Pretrain,
    num_classes: int | None,
    images: int,
    strategy: tf.distribute.Strategy,
    static: bool = True,
):
    """Batches without end of noise, as the run's step takes them.

    Args:
      run: a resolved config.
      num_classes: None without labels.
      images: of each replica.
      strategy: whose replicas each get a batch of their own.
      static: whether the size is told to the graph.
    """
    rng = np.random.default_rng(0)
    side, count = run.views.image_size, run.views.views
    channels = 3 + max(run.data.extra_channels, 0)
    shape = [images, count, side, side, channels]
    views = rng.random(shape, np.float32)
    seeds = rng.integers(0, 2**31 - 1, [images, count, 2]).astype(np.int32)
    on_device = run.views.augment_on == "device" or run.views.mixed
    inputs = (views, seeds) if on_device else views
    if num_classes is not None:
        labels = np.arange(images, dtype=np.int32) % num_classes
        data = (inputs, labels)
    else:
        data = (inputs,)

    def of_host(context):
        del context
        examples = tf.data.Dataset.from_tensors(data)
        if not static:
            # Of rows that the graph does not count.
            examples = examples.unbatch().batch(images)
        return examples.cache().repeat()

    return strategy.distribute_datasets_from_function(of_host)


def step_time(
    model: models.ContrastiveModel,
    run: Pretrain,
    num_classes: int | None,
    strategy: tf.distribute.Strategy,
    seconds: float,
    until: float,
) -> StepTime | None:
    """Times the run's training step on noise; its weights are trained so.

    Accelerators get the whole batch. On CPUs it is made of two smaller ones,
    the cost of an image and that of a step.

    Args:
      model: of `run`, compiled with one step per execution.
      run: a resolved config.
      num_classes: None without labels.
      strategy: in whose scope the model was made.
      seconds: to take, about, once the graph is made; None is returned if it
        would take far longer.
      until: when, on the clock of `time.perf_counter`, a second size must be
        measured, or else is not begun.

    Raises:
      tf.errors.ResourceExhaustedError: if it does not fit an accelerator.
    """
    replicas = strategy.num_replicas_in_sync
    images = run.schedule.batch_size // replicas
    step = model.make_train_function()
    accelerated = any(
        tf.config.list_logical_devices(kind) for kind in ("GPU", "TPU")
    )
    if accelerated:
        batches = iter(synthetic(run, num_classes, images, strategy))
        return StepTime(_median(lambda: step(batches), seconds), images, images)
    chunks = run.loss.grad_cache_chunks
    size = math.lcm(chunks, 2)
    multiplied = memory.multiplications(model.encoder) * run.views.views
    expected = _OF_TRAINING * multiplied * size * replicas / cpu_rate()
    if expected > 2 * seconds or size > images:
        return None
    times: dict[int, float] = {}
    end = None
    while True:
        batches = iter(
            synthetic(run, num_classes, size, strategy, static=False)
        )
        step(batches)
        # The first call has made the graph, of any size.
        end = end or time.perf_counter() + seconds
        times[size] = _median(lambda b=batches: step(b), seconds / 8)
        # Four runs of a batch of the next size; of one size alone, the cost of
        # a step would be taken for that of its images.
        left = (until if len(times) == 1 else end) - time.perf_counter()
        if 2 * size > images or 8 * times[size] > left:
            break
        size *= 2
    return StepTime(extrapolate(times, images), size, images)


def cpu_rate() -> float:
    """Multiplications a second that this CPU does in a step, at the least."""
    side = 1024
    matrix = tf.zeros([side, side])
    seconds = _median(lambda: {"product": matrix @ matrix}, 0.0)
    return _OF_A_PRODUCT * side**3 / seconds


def extrapolate(times: dict[int, float], images: int) -> float:
    """Seconds of a step of so many images, from those of smaller ones."""
    largest = max(times)
    fewer = [size for size in times if size < largest]
    per_image = times[largest] / largest
    if fewer:
        # What each step costs anew must not be taken for the images'.
        growth = times[largest] - times[max(fewer)]
        rise = growth / (largest - max(fewer))
        per_image = min(max(rise, per_image / 2), per_image)
    return times[largest] + per_image * (images - largest)


def _median(call: Callable, seconds: float) -> float:
    """Seconds of a call, the median of some; the graph is there already."""
    _finish(call())
    found = []
    start = time.perf_counter()
    while len(found) < 2 or time.perf_counter() - start < seconds:
        begun = time.perf_counter()
        _finish(call())
        found.append(time.perf_counter() - begun)
    return float(np.median(found))


def _finish(results) -> None:
    for value in results.values():
        value.numpy()  # Waits for the device.
