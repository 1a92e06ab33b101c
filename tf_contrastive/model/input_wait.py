"""The time that steps wait for their input."""

import time
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive.model.contrastive import ContrastiveStep, Results


class InputWait(ContrastiveStep):
    """Measures how long `fit` waits for batches, without a host round trip."""

    train_function: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Keras does not look into a namespace: this is not a weight.
        self._input_wait = types.SimpleNamespace(
            seconds=tf.Variable(0.0, dtype=tf.float64, trainable=False)
        )

    @property
    def input_wait_seconds(self) -> float:
        """Seconds that steps have waited for their input so far."""
        return float(self._input_wait.seconds.numpy())

    def make_train_function(self, force: bool = False) -> Any:
        """Returns Keras' training function: iterator -> running means."""
        if self.run_eagerly:
            return super().make_train_function(force)
        if self.train_function is not None and not force:
            return self.train_function
        step = self.train_step
        if self.jit_compile:
            step = tf.function(step, jit_compile=True)
        strategy = self.distribute_strategy
        names: list[str] = []

        def one_step(iterator: Any) -> None:
            start = tf.timestamp()
            with tf.control_dependencies([start]):
                data = next(iterator)
            arrived = tf.nest.flatten(data, expand_composites=True)
            with tf.control_dependencies(arrived):
                waited = tf.timestamp() - start
            self._input_wait.seconds.assign_add(waited)
            names[:] = strategy.run(step, args=(data,))

        def several_steps(iterator: Any) -> Results:
            # Nothing is carried through the loop, so that AutoGraph traces its
            # body once.
            for _ in tf.range(self._steps_per_execution):
                with tf.name_scope(""):
                    one_step(iterator)
            return self.means.read(names)

        self.train_function = tf.function(several_steps, reduce_retracing=True)
        return self.train_function


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
