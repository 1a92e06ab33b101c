"""Callbacks that write a run's curves, histograms and profile."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive.config.runtime import Runtime
from tf_contrastive.model.input_wait import Throughput
from tf_contrastive.tensorboard import scalars
from tf_contrastive.tensorboard.histograms import GRID_IMAGES, Histograms

# The space between two of them is their side divided by this.
_GAPS = 32


class TensorBoard(tf.keras.callbacks.Callback):
    """Writes summaries while a run trains.

    Args:
      logdir: folder of the event files.
      every_steps: between two points, means since the last one; every epoch
        ends with a point, too.
      batch_size: the global batch, images.
      schedules: tag -> learning rate as a function of the step.
      write_first: called after the first step, with the default writer.
      histograms: measures them, after the first step, at the run's end, and
        every `histograms_every_epochs`.
      resumed: means of the steps of the first epoch that are done, if any.
    """

    def __init__(
        self,
        logdir: str,
        *,
        every_steps: int,
        batch_size: int,
        schedules: dict[str, Callable[[int], Any]],
        write_first: Callable[[], None] = lambda: None,
        histograms: Histograms | None = None,
        histograms_every_epochs: int = Runtime.histograms_every_epochs,
        resumed: dict[str, float] | None = None,
    ) -> None:
        super().__init__()
        self._logdir = logdir
        self._every_steps = every_steps
        self._batch_size = batch_size
        self._schedules = schedules
        self._write_once = write_first
        self._histograms = histograms
        self._every_epochs = histograms_every_epochs
        self._writer: tf.summary.SummaryWriter = None
        self._last_written = 0
        self._is_new = False
        # The epoch's running means at the last point.
        self._epoch_means = resumed or {}

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts the clock."""
        # Made here: a run that has nothing left to train writes no events.
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._logdir)
        self._throughput = Throughput(self.model)
        self._last_written = self._step()
        self._is_new = self._last_written == 0

    def _step(self) -> int:
        return int(self.model.optimizer.iterations.numpy())

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes what an epoch that begins, or goes on, has counted."""
        if batch == 0:
            self._counts = self._read_counts()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Writes a point if one is due."""
        step = self._step()
        if self._is_new:
            # After the first step, so that it does not wait for them.
            self._is_new = False
            with self._writer.as_default(step=0):
                self._write_once()
            self._write_histograms(step)
            self._writer.flush()
        every = self._every_steps
        is_due = step // every > self._last_written // every
        if not is_due and batch + 1 < self.params["steps"]:
            return
        self._last_written = step
        rate, wait = self._throughput.read()
        self._throughput.restart()
        means = self._means_since_last(logs)
        points = {
            "input/images_per_second": rate * self._batch_size,
            "input/wait_fraction": wait,
            **{scalars.TAGS[name]: mean for name, mean in means.items()},
            **{tag: at(step - 1) for tag, at in self._schedules.items()},
            "system/steps_per_second": rate,
            **scalars.memory(),
        }
        if math.isnan(wait):  # It was not measured.
            del points["input/wait_fraction"]
        self._write_scalars(step, points)

    def _read_counts(self) -> dict[str, float]:
        """Reads the sums of the weights of the means, on a local replica."""
        local = self.model.distribute_strategy.experimental_local_results
        return {m.name: local(m.count)[0].numpy() for m in self.model.metrics}

    def _means_since_last(self, logs: dict[str, Any]) -> dict[str, float]:
        """Turns means over the epoch into those since last time, if any."""
        means, before, after = {}, self._counts, self._read_counts()
        for name, mean in logs.items():
            if weight := after[name] - before[name]:
                old = self._epoch_means.get(name, 0.0) * before[name]
                means[name] = (mean * after[name] - old) / weight
        self._counts, self._epoch_means = after, dict(logs)
        return means

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Writes the validation metrics, and histograms if they are due."""
        self._epoch_means = {}
        step = self._step()
        validation = {
            scalars.VALIDATION + scalars.TAGS[name.removeprefix("val_")]: mean
            for name, mean in logs.items()
            if name.startswith("val_")
        }
        self._write_scalars(step, validation)
        done = epoch + 1
        if self._every_epochs and (
            done % self._every_epochs == 0 or done == self.params["epochs"]
        ):
            self._write_histograms(step)

    def _write_scalars(self, step: int, points: dict[str, Any]) -> None:
        with self._writer.as_default(step=step):
            for tag, value in points.items():
                # TensorFlow keeps each number of Python that it converts.
                tf.summary.scalar(tag, np.asarray(value))

    def _write_histograms(self, step: int) -> None:
        if self._histograms is None:
            return
        histograms, numbers = self._histograms.measure()
        with self._writer.as_default(step=step):
            for tag, values in histograms.items():
                tf.summary.histogram(tag, values)
        self._write_scalars(step, numbers)

    def on_train_end(self, logs: Any = None) -> None:
        """Flushes the writer."""
        self.flush()

    def flush(self) -> None:
        """Writes to the disk what is in memory."""
        self._writer.flush()

    def close(self) -> None:
        """Closes the writer, if it was used."""
        if self._writer is not None:
            self._writer.close()


class Profile(tf.keras.callbacks.Callback):
    """Profiles the steps `first` to `last`, counted from 1.

    Without `AdaptiveStepsPerExecution` the other steps of the same executions
    are profiled, too.
    """

    def __init__(self, logdir: str, first: int, last: int) -> None:
        super().__init__()
        self._logdir = logdir
        self._first, self._last = first, last
        self._running = False
        self._marked = contextlib.ExitStack()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Starts before the execution that holds the first step."""
        done = int(self.model.optimizer.iterations.numpy())
        next_done = done + int(self.model._steps_per_execution.numpy())
        if not self._running and done < self._last and next_done >= self._first:
            tf.profiler.experimental.start(self._logdir)
            self._running = True
            # Keras marks each execution, and marked this one too early.
            self._marked.enter_context(
                tf.profiler.experimental.Trace("train", step_num=done, _r=1)
            )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops after the last step, and writes."""
        self._marked.close()
        done = int(self.model.optimizer.iterations.numpy())
        if self._running and done >= self._last:
            tf.profiler.experimental.stop()
            self._running = False


def view_grid(originals: tf.Tensor, views: tf.Tensor) -> tf.Tensor:
    """Tiles images and their views, a column per image, white between them.

    Originals [B, 1, S, S, K] and views [B, V, S, S, K] give [1, height, width,
    3], of at most `GRID_IMAGES` images.
    """
    few = originals[:GRID_IMAGES], views[:GRID_IMAGES]
    shown = tf.concat(few, axis=1)[..., :3]
    gap = max(shown.shape[2] // _GAPS, 1)
    gaps = [[0, 0], [0, 0], [0, gap], [0, gap], [0, 0]]
    shown = tf.pad(shown, gaps, constant_values=1.0)
    b, v, h, w, k = shown.shape
    columns = tf.transpose(shown, [1, 2, 0, 3, 4])  # [1 + V, H, b, W, 3]
    grid = tf.reshape(columns, [1, v * h, b * w, k])
    return grid[:, :-gap, :-gap]
