"""How fast a run trains, and how long it waits for input."""

import time
from collections.abc import Callable

import tensorflow as tf


class Meter:
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
