"""What TensorBoard shows of a run: curves, histograms, views, a profile."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_contrastive import tensorboard
from tf_contrastive.callbacks.throughput import Meter
from tf_contrastive.config.runtime import Runtime
from tf_contrastive.tensorboard import scalars

# Images whose views are shown.
GRID_IMAGES = 8


class _SinceLast:
    """Turns the epoch's running means into means since the last reading."""

    def __init__(self) -> None:
        self._count, self._means = 0, {}

    def read(self, count: int, logs: dict[str, Any]) -> dict[str, float]:
        """Args: steps of this epoch so far, and their mean by name."""
        if count <= self._count:  # Another epoch has begun.
            self._count, self._means = 0, {}
        new = count - self._count
        means = {
            name: (value * count - self._means.get(name, 0.0) * self._count)
            / new
            for name, value in logs.items()
        }
        self._count, self._means = count, dict(logs)
        return means


class Summaries(tf.keras.callbacks.Callback):
    """Writes what TensorBoard shows of a run while it trains.

    Args:
      logdir: folder of the event files.
      every_steps: steps between two points; each is a mean over them.
      batch_size: the global batch, images.
      schedules: tag -> learning rate as a function of the step.
      opening: what writes to the default writer when a run begins.
      distributions: what measures histograms, or None.
      every_epochs: epochs between two histograms of a kind; there is one of
        the beginning and one of the end, too.
    """

    def __init__(
        self,
        logdir: str,
        *,
        every_steps: int,
        batch_size: int,
        schedules: dict[str, Callable[[int], Any]],
        opening: Sequence[Callable[[], None]] = (),
        distributions: tensorboard.Distributions | None = None,
        every_epochs: int = Runtime.histograms_every_epochs,
    ) -> None:
        super().__init__()
        self._logdir = logdir
        self._every = every_steps
        self._batch_size = batch_size
        self._schedules = schedules
        self._opening = opening
        self._distributions = distributions
        self._every_epochs = every_epochs
        self._since_last = _SinceLast()
        self._writer = None
        self._meter = None
        self._written = None
        self._aside = 0.0

    def seconds_aside(self) -> float:
        """How long measuring histograms has taken so far."""
        return self._aside

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts the clock and shows what there is before the first step."""
        # Made here: a run that has nothing left to train writes no events.
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._logdir)
        self._meter = Meter(self.model, self.seconds_aside)
        step = self._written = self._step()
        if step == 0:
            with self._writer.as_default(step=0):
                for write in self._opening:
                    write()
            self._show_distributions(step)
            self._writer.flush()

    def _step(self) -> int:
        return int(self.model.optimizer.iterations.numpy())

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Writes a point where one is due."""
        step = self._step()
        if step - self._written < self._every:
            return
        self._written = step
        means = self._since_last.read(batch + 1, logs)
        rate, wait = self._meter.read()
        points = {
            "input/images_per_second": rate * self._batch_size,
            "input/wait_fraction": wait,
            **{scalars.TAGS[name]: value for name, value in means.items()},
            **{tag: rate(step - 1) for tag, rate in self._schedules.items()},
            "system/steps_per_second": rate,
            **scalars.memory(),
        }
        with self._writer.as_default(step=step):
            for tag, value in points.items():
                tf.summary.scalar(tag, value)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Writes what was measured on the validation cut, and histograms."""
        step = self._step()
        with self._writer.as_default(step=step):
            for name, value in logs.items():
                if name.startswith("val_"):
                    tag = scalars.TAGS[name.removeprefix("val_")]
                    tf.summary.scalar(scalars.VALIDATION + tag, value)
        done = epoch + 1
        if self._every_epochs and (
            done % self._every_epochs == 0 or done == self.params["epochs"]
        ):
            self._show_distributions(step)

    def _show_distributions(self, step: int) -> None:
        if self._distributions is None:
            return
        started = time.perf_counter()
        found = self._distributions.measure()
        with self._writer.as_default(step=step):
            for tag, values in found.histograms.items():
                tf.summary.histogram(tag, values)
            for tag, value in found.scalars.items():
                tf.summary.scalar(tag, value)
        self._aside += time.perf_counter() - started

    def on_train_end(self, logs: Any = None) -> None:
        """Puts everything on disk."""
        self._writer.flush()

    def close(self, write: Callable[[], None]) -> None:
        """Has `write` write to the default writer, last.

        Nothing is written if nothing was trained.
        """
        if self._writer is not None:
            with self._writer.as_default():
                write()
            self._writer.close()


class Profile(tf.keras.callbacks.Callback):
    """Profiles some steps for TensorBoard.

    Args:
      logdir: folder of the event files.
      first, last: steps, counted from 1. Where several run at a time, and the
        pacer does not see to it, their neighbours are profiled, too.
    """

    def __init__(self, logdir: str, first: int, last: int) -> None:
        super().__init__()
        self._logdir = logdir
        self._first, self._last = first, last
        self._runs = False
        self._trace = None

    def _step(self) -> int:
        return int(self.model.optimizer.iterations.numpy())

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Starts before the execution that holds the first step."""
        if self._runs:
            return
        done = self._step()
        coming = done + int(self.model._steps_per_execution.numpy())
        if done < self._last and coming >= self._first:
            tf.profiler.experimental.start(self._logdir)
            self._runs = True
            # As Keras marks each execution; it marked this one before.
            self._trace = tf.profiler.experimental.Trace(
                "train", step_num=done, _r=1
            )
            self._trace.__enter__()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops after the last step, and writes."""
        if self._trace is not None:
            self._trace.__exit__(None, None, None)
            self._trace = None
        if self._runs and self._step() >= self._last:
            tf.profiler.experimental.stop()
            self._runs = False


def grid(views: tf.Tensor, images: int = GRID_IMAGES) -> tf.Tensor:
    """Lays views out, an image a column: [B, V, H, W, 3] -> [1, V*H, b*W, 3].

    TensorBoard shows a picture as wide as its card, however tall it gets.
    """
    shown = views[:images, ..., :3]
    b, v, h, w, k = shown.shape
    columns = tf.transpose(shown, [1, 2, 0, 3, 4])  # [V, H, b, W, 3]
    return tf.reshape(columns, [1, v * h, b * w, k])
