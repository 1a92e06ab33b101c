"""A run's progress and warnings on stderr."""

import datetime
import math
import os
import sys
import time
from typing import Any, TextIO

import tensorflow as tf

from tf_contrastive.base import errors, terminal
from tf_contrastive.model.input_wait import Throughput

# A warning follows so many epochs in a row. The limits are of the standard
# deviation of the normalised embeddings, at most 1; of how much nearer
# positives are than any two embeddings, as a fraction of their mean squared
# distance; and of the loss around its chance level. On the digits
# (configs/quickstart.flags, 16 to 40 epochs) collapsed runs end with a
# deviation of 0.02, or of 0.11 to 0.18 and positives that are not nearer;
# healthy runs end with 0.47 or more.
_WARNING_EPOCHS = 3
_ONE_POINT, _NARROW = 0.05, 0.3
_NEARER_IF_NARROW = 0.1
_CHANCE_MARGIN = 0.01
# Seconds between two lines of progress within an epoch: on a terminal, which
# shows the last one only, and elsewhere.
_LIVE_INTERVAL, _INTERVAL = 0.5, 30.0
# Metric -> how the progress line shows it.
_METRICS = {
    "loss": "loss {:.4f}",
    "probe_accuracy": "probe {:.3f}",
    "online_knn_top1": "online 1NN {:.3f}",
    "val_loss": "val loss {:.4f}",
}


class Progress(tf.keras.callbacks.Callback):
    """Shows step, metrics, speed and remaining time, on stderr by default.

    On a terminal it rewrites one line, which is cut to its width; elsewhere,
    also in a notebook, it writes a line per epoch, and one every half minute of
    a longer epoch. The speed is the mean since the first step, which is traced.
    `epochs` are those of the whole run.
    """

    def __init__(
        self,
        *,
        epochs: int,
        steps_per_epoch: int,
        batch_size: int,
        stream: TextIO | None = None,
    ) -> None:
        super().__init__()
        self._epochs = epochs
        self._steps_per_epoch = steps_per_epoch
        self._batch_size = batch_size
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._interval = _LIVE_INTERVAL if self._live else _INTERVAL
        self._last_shown = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts the clock, and says what the run waits for."""
        self._throughput: Throughput | None = None
        self._show("step       being traced and compiled")
        # The line of a terminal appears with the first step.
        self._last_shown = 0.0 if self._live else time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Writes the line if it is due."""
        if self._throughput is None:
            self._throughput = Throughput(self.model)
        if time.perf_counter() - self._last_shown < self._interval:
            return
        if not self._live and batch + 1 == self.params["steps"]:
            return  # The line of the epoch follows.
        self._show(self._line(logs))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Leaves a line for the epoch."""
        self._show(self._line(logs), stays=True)

    def _show(self, text: str, stays: bool = False) -> None:
        if not self._live:
            text = f"{text}\n"
        elif stays:
            text = f"\r\x1b[K{text}\n"
        else:
            size = os.get_terminal_size(self._stream.fileno())
            columns = size.columns or 80  # A terminal may not know its size.
            text = f"\r\x1b[K{text[: columns - 1]}"
        self._stream.write(text)
        self._stream.flush()
        self._last_shown = time.perf_counter()

    def _line(self, logs: dict[str, Any]) -> str:
        """Returns the line; what is most important comes first."""
        step = int(self.model.optimizer.iterations.numpy())
        total = self._epochs * self._steps_per_epoch
        parts = [
            f"epoch {-(-step // self._steps_per_epoch)}/{self._epochs}",
            f"step {step:,}/{total:,}",
        ]
        shown = [
            text.format(logs[name])
            for name, text in _METRICS.items()
            if name in logs
        ]
        speed = []
        rate, wait = self._throughput.read() if self._throughput else (0.0, 0.0)
        if rate:
            seconds = min((total - step) / rate, 3.6e6)
            speed = [
                f"ETA {datetime.timedelta(seconds=round(seconds))}",
                f"{rate * self._batch_size:,.0f} images/s",
            ]
            if not math.isnan(wait):
                speed.append(f"input wait {wait:.0%}")
        return "  ".join([*parts, *shown[:1], *speed, *shown[1:]])


class CollapseWarning(tf.keras.callbacks.Callback):
    """Warns once if embeddings collapse, or the loss is stuck at chance.

    It reads the means of each epoch. `chance_loss` is that of an encoder that
    distinguishes no images, if it is known. In `warmup_epochs` embeddings may
    be close to each other; a head without batch normalization starts so.
    """

    def __init__(
        self, chance_loss: float | None, warmup_epochs: float = 0.0
    ) -> None:
        super().__init__()
        self._chance_loss = chance_loss
        self._warmup_epochs = warmup_epochs
        # Problem -> epochs in a row.
        self._epochs: dict[str, int] = {}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Counts epochs, and warns at the third in a row."""
        problems, loss, chance = {}, logs["loss"], self._chance_loss
        if chance is not None and abs(loss - chance) < _CHANCE_MARGIN:
            problems["loss"] = (
                "the model is not learning: the loss has stayed at"
                f" {loss:.3f}, the chance level,"
            )
        # Two embeddings have a mean squared distance of 2 * std^2.
        std = logs["embedding_std"]
        nearer = 1 - logs["alignment"] / max(2 * std**2, 1e-12)
        narrow = std < _NARROW and nearer < _NEARER_IF_NARROW
        if epoch >= self._warmup_epochs and (std < _ONE_POINT or narrow):
            problems["collapse"] = (
                "collapse: the standard deviation of the embeddings has stayed"
                f" near {std:.3f} (0: one point; 1: spread out)"
            )
        self._epochs = {
            name: self._epochs.get(name, 0) + 1 for name in problems
        }
        for name, problem in problems.items():
            if self._epochs[name] == _WARNING_EPOCHS:
                terminal.warning(
                    f"{problem} for {_WARNING_EPOCHS} epochs: lower"
                    f" {errors.arg('learning_rate')}, lengthen"
                    f" {errors.arg('warmup_epochs')}, or look at the views in"
                    " TensorBoard"
                )
