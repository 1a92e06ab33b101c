"""A run's progress and warnings on stderr."""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import tensorflow as tf

from tf_contrastive import terminal

# A run has collapsed, or is stuck at chance, after so many epochs in a row with
# a standard deviation of the normalised embeddings (at most 1) below
# _COLLAPSE_STD, or with a loss within _CHANCE_MARGIN of the chance level.
_WARNING_EPOCHS = 3
_COLLAPSE_STD = 0.05
_CHANCE_MARGIN = 0.01


class Throughput:
    """Speed since the last call of `read`.

    Args:
      model: the model that is trained.
      excluded_seconds: seconds so far that do not count as training.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        excluded_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._model = model
        self._excluded_seconds = excluded_seconds
        self._last = self._now()

    def _now(self) -> tuple[float, int, float]:
        return (
            time.perf_counter() - self._excluded_seconds(),
            int(self._model.optimizer.iterations.numpy()),
            self._model.input_wait_seconds,
        )

    def read(self) -> tuple[float, float]:
        """Returns (steps/s, fraction of the time spent waiting for input)."""
        (t0, s0, w0), (t1, s1, w1) = self._last, self._now()
        self._last = (t1, s1, w1)
        seconds = max(t1 - t0, 1e-9)
        return (s1 - s0) / seconds, (w1 - w0) / seconds


class Progress(tf.keras.callbacks.Callback):
    """Shows step, metrics, speed and remaining time.

    On a terminal it rewrites one line with a bar; elsewhere it writes a line
    per epoch.

    Args:
      epochs: of the whole run.
      steps_per_epoch: of a whole epoch.
      batch_size: the global batch, images.
      excluded_seconds: seconds so far that do not count as training.
      stream: where to write, stderr by default.
    """

    def __init__(
        self,
        *,
        epochs: int,
        steps_per_epoch: int,
        batch_size: int,
        excluded_seconds: Callable[[], float] = lambda: 0.0,
        stream: TextIO | None = None,
    ) -> None:
        super().__init__()
        self._excluded_seconds = excluded_seconds
        self._epochs = epochs
        self._steps_per_epoch = steps_per_epoch
        self._batch_size = batch_size
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._rate, self._wait = 0.0, 0.0
        self._last_shown = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts the clock."""
        self._throughput = Throughput(self.model, self._excluded_seconds)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Rewrites the line, at most twice a second."""
        if self._live and time.perf_counter() - self._last_shown > 0.5:
            self._rate, self._wait = self._throughput.read()
            done = round((batch + 1) / self.params["steps"] * 12)
            self._write(f"[{'=' * done:12}] {self._line(logs)}")
            self._last_shown = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Leaves a line for the epoch."""
        if not self._live:
            self._rate, self._wait = self._throughput.read()
        self._write(f"{self._line(logs)}\n")

    def _write(self, text: str) -> None:
        self._stream.write(("\r\x1b[K" if self._live else "") + text)
        self._stream.flush()

    def _line(self, logs: dict[str, Any]) -> str:
        step = int(self.model.optimizer.iterations.numpy())
        total = self._epochs * self._steps_per_epoch
        seconds_left = (total - step) / max(self._rate, 1e-9)
        minutes, seconds = divmod(round(min(seconds_left, 3.6e6)), 60)
        hours, minutes = divmod(minutes, 60)
        metrics = [
            f"{title} {logs[name]:.{digits}f}"
            for name, title, digits in (
                ("loss", "loss", 4),
                ("probe_accuracy", "probe", 3),
                ("online_knn_top1", "online 1NN", 3),
                ("val_loss", "val loss", 4),
            )
            if name in logs
        ]
        return "  ".join(
            [
                f"epoch {-(-step // self._steps_per_epoch)}/{self._epochs}",
                f"step {step:,}/{total:,}",
                *metrics,
                f"{self._rate * self._batch_size:,.0f} images/s",
                f"input wait {self._wait:.0%}",
                f"ETA {hours}:{minutes:02}:{seconds:02}",
            ]
        )


class CollapseWarning(tf.keras.callbacks.Callback):
    """Warns once if embeddings collapse, or the loss is stuck at chance.

    It reads the epoch's means: the standard deviation of the normalised
    projections, and the loss.

    Args:
      chance_loss: loss of an encoder that distinguishes no images; None: not
        known.
    """

    def __init__(self, chance_loss: float | None) -> None:
        super().__init__()
        self._chance_loss = chance_loss
        self._collapsed_epochs = self._chance_epochs = 0

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Counts epochs, and warns at the third in a row."""
        spread, loss = logs["embedding_std"], logs["loss"]
        collapsed = spread < _COLLAPSE_STD
        at_chance = self._chance_loss is not None and (
            abs(loss - self._chance_loss) < _CHANCE_MARGIN
        )
        self._collapsed_epochs = (self._collapsed_epochs + 1) * collapsed
        self._chance_epochs = (self._chance_epochs + 1) * at_chance
        if self._collapsed_epochs == _WARNING_EPOCHS:
            problem = (
                "collapse: the standard deviation of the embeddings has stayed"
                f" near {spread:.3f} (0: one point; 1: spread out)"
            )
        elif self._chance_epochs == _WARNING_EPOCHS:
            problem = (
                "the model is not learning: the loss has stayed at"
                f" {loss:.3f}, the chance level,"
            )
        else:
            return
        terminal.warning(
            f"{problem} for {_WARNING_EPOCHS} epochs: lower `learning_rate`,"
            " lengthen `warmup_epochs`, or look at the views in TensorBoard"
        )
