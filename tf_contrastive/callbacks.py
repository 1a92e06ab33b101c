"""What a run shows and keeps while it trains: guard, TensorBoard, progress.

Layer 5. Keras callbacks. All of it happens on the host, between executions of
the training step.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import tensorflow as tf

from tf_contrastive import board, checkpoints, config, terminal
from tf_contrastive import interruption as interruptions
from tf_contrastive.board import scalars


class NonFiniteError(config.UserError):
    """The loss or a gradient became NaN or infinite."""


class Keeper(tf.keras.callbacks.Callback):
    """Saves checkpoints, and ends the run where it must, with all saved.

    It looks after every execution of the step. A step whose loss or gradient
    is not finite ends the run before anything of it is saved, unless the
    policy is to pass over it; a signal ends it with a checkpoint.

    Args:
      kept: the run's checkpoints.
      runtime: how often; 0 steps: at the end of every epoch.
      interruption: tells whether the run should end.
    """

    def __init__(
        self,
        kept: checkpoints.Checkpoints,
        runtime: config.Runtime,
        interruption: interruptions.Interruption | None = None,
    ) -> None:
        super().__init__()
        self._kept = kept
        self._every = runtime.checkpoint_every_steps
        self._allowed = config.skipped_steps(runtime.nan_policy)
        self._interruption = interruption
        self._told = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Checks the step, and saves where a checkpoint is due."""
        self._check_finite()
        last = self._kept.last_saved or 0
        if self._every and self._kept.step - last >= self._every:
            self._kept.save()
        if self._interruption and (reason := self._interruption.agreed()):
            self._kept.finish()
            raise interruptions.InterruptedRunError(
                f"ended by {reason}, saved at step {self._kept.step:,}: repeat"
                " the command to go on"
            )

    def _check_finite(self) -> None:
        bad = self.model.non_finite_steps()
        if bad.count <= self._told:
            return
        self._told = bad.count
        where = (
            f"the loss or its gradient is not finite at step {bad.step:,} on"
            f" replica(s) {', '.join(map(str, bad.replicas))}"
        )
        if bad.count <= self._allowed:
            terminal.warn(
                f"{where}: passed over, {bad.count} of at most {self._allowed}"
            )
            return
        kept, _ = checkpoints.newest(self._kept.directory)
        raise NonFiniteError(
            f"{where}: lower --learning_rate, raise --temperature or lengthen"
            f" --warmup_epochs; last good checkpoint:"
            f" {kept or 'none was saved yet'}"
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves, unless checkpoints are counted in steps."""
        if not self._every:
            self._kept.save()

    def on_train_end(self, logs: Any = None) -> None:
        """Saves what was trained last."""
        self._kept.finish()


class CollapseAlarm(tf.keras.callbacks.Callback):
    """Warns on stderr when embeddings fall together, or nothing is learned.

    After so many epochs in a row in which the normalised projections have next
    to no spread, or the loss is that of a guess among all candidates.

    Args:
      guess: loss of an encoder that tells nothing apart; None: not known.
      epochs: in a row, before it warns; it does so once.
      stream: where to, stderr by default.
    """

    def __init__(
        self,
        guess: float | None,
        epochs: int = config.COLLAPSE_EPOCHS,
        stream: TextIO | None = None,
    ) -> None:
        super().__init__()
        self._guess = guess
        self._epochs = epochs
        self._stream = stream or sys.stderr
        self._collapsed, self._guessing = 0, 0

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Looks at the means of an epoch."""
        spread, loss = logs["embedding_std"], logs["loss"]
        small = spread < config.COLLAPSE_STD
        self._collapsed = self._collapsed + 1 if small else 0
        stuck = self._guess is not None and (
            abs(loss - self._guess) < config.GUESSING_MARGIN
        )
        self._guessing = self._guessing + 1 if stuck else 0
        if self._collapsed == self._epochs:
            self._tell(
                f"collapse: the standard deviation of the embeddings has been"
                f" {spread:.3f} or the like (0: one point; 1: spread out)"
            )
        elif self._guessing == self._epochs:
            self._tell(
                f"nothing is learned: the loss has been {loss:.3f}, that of a"
                " guess"
            )

    def _tell(self, what: str) -> None:
        text = (
            f"{what} for {self._epochs} epochs: lower --learning_rate, lengthen"
            " --warmup_epochs, or look at the views in TensorBoard"
        )
        self._stream.write(terminal.paint(text, "warning", self._stream) + "\n")
        self._stream.flush()


class _Meter:
    """Speed since it was last read.

    Args:
      model: what is trained.
      aside: seconds that were spent on something else, so far.
    """

    def __init__(
        self, model: tf.keras.Model, aside: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._model = model
        self._aside = aside
        self._last = self._now()

    def _now(self) -> tuple[float, int, float]:
        return (
            time.perf_counter() - self._aside(),
            int(self._model.optimizer.iterations.numpy()),
            self._model.input_wait_seconds,
        )

    def read(self) -> tuple[float, float]:
        """Returns (steps/s, share of the time spent waiting for input)."""
        (t0, s0, w0), (t1, s1, w1) = self._last, self._now()
        self._last = (t1, s1, w1)
        seconds = max(t1 - t0, 1e-9)
        return (s1 - s0) / seconds, (w1 - w0) / seconds


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
        distributions: board.Distributions | None = None,
        every_epochs: int = config.Runtime.histograms_every_epochs,
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
        self._meter = _Meter(self.model, self.seconds_aside)
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
            "input/wait_share": wait,
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


# Images whose views are shown.
GRID_IMAGES = 8


def grid(views: tf.Tensor, images: int = GRID_IMAGES) -> tf.Tensor:
    """Lays views out, an image a column: [B, V, H, W, 3] -> [1, V*H, b*W, 3].

    TensorBoard shows a picture as wide as its card, however tall it gets.
    """
    shown = views[:images, ..., :3]
    b, v, h, w, k = shown.shape
    columns = tf.transpose(shown, [1, 2, 0, 3, 4])  # [V, H, b, W, 3]
    return tf.reshape(columns, [1, v * h, b * w, k])


class Progress(tf.keras.callbacks.Callback):
    """Tells on stderr how far the run is, how well it does and what is left.

    On a terminal a bar and a line that are rewritten; elsewhere a line per
    epoch.

    Args:
      epochs: of the whole run.
      steps_per_epoch: of a whole epoch.
      batch_size: the global batch, images.
      aside: seconds so far that do not count as training.
      stream: where to, stderr by default.
    """

    def __init__(
        self,
        *,
        epochs: int,
        steps_per_epoch: int,
        batch_size: int,
        aside: Callable[[], float] = lambda: 0.0,
        stream: TextIO | None = None,
    ) -> None:
        super().__init__()
        self._aside = aside
        self._epochs = epochs
        self._steps_per_epoch = steps_per_epoch
        self._batch_size = batch_size
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._meter = None
        self._rate, self._wait = 0.0, 0.0
        self._shown = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts the clock."""
        self._meter = _Meter(self.model, self._aside)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Rewrites the line, at most twice a second."""
        if self._live and time.perf_counter() - self._shown > 0.5:
            self._rate, self._wait = self._meter.read()
            bar = _bar((batch + 1) / self.params["steps"])
            self._stream.write(f"\r\x1b[K{bar} {self._line(logs)}")
            self._stream.flush()
            self._shown = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Leaves a line for the epoch."""
        if not self._live:
            self._rate, self._wait = self._meter.read()
        start = "\r\x1b[K" if self._live else ""
        self._stream.write(f"{start}{self._line(logs)}\n")
        self._stream.flush()

    def _line(self, logs: dict[str, Any]) -> str:
        step = int(self.model.optimizer.iterations.numpy())
        total = self._epochs * self._steps_per_epoch
        left = (total - step) / max(self._rate, 1e-9)
        parts = [
            f"epoch {-(-step // self._steps_per_epoch)}/{self._epochs}",
            f"step {step:,}/{total:,}",
            f"loss {logs['loss']:.4f}",
        ]
        if "probe_accuracy" in logs:
            parts.append(f"probe {logs['probe_accuracy']:.3f}")
        if "online_knn_top1" in logs:
            parts.append(f"online 1NN {logs['online_knn_top1']:.3f}")
        if "val_loss" in logs:
            parts.append(f"val loss {logs['val_loss']:.4f}")
        parts += [
            f"{self._rate * self._batch_size:,.0f} images/s",
            f"input wait {self._wait:.0%}",
            f"ETA {_clock(left)}",
        ]
        return "  ".join(parts)


def _bar(share: float, width: int = 12) -> str:
    done = round(share * width)
    return f"[{'=' * done}{' ' * (width - done)}]"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(min(seconds, 3.6e6)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
