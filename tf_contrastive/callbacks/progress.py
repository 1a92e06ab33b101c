"""How far a run is, on stderr."""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import tensorflow as tf

from tf_contrastive.callbacks.throughput import Meter


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
        self._meter = Meter(self.model, self._aside)

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
