"""The time that steps wait for their input."""

import functools
import math
import time
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import config  # Not in the public API.

from tf_contrastive import distribution
from tf_contrastive.distribution import do_not_convert_self
from tf_contrastive.losses import labels as label_checks
from tf_contrastive.model.contrastive_step import ContrastiveStep, Results


class InputWait(ContrastiveStep):
    """Measures how long `fit` waits for batches, without a host round trip."""

    train_function: Any
    test_function: Any
    train_tf_function: Any
    # A tensor of the host, float64 []: a variable would be copied to all cores.
    _input_wait: Any = 0.0

    @property
    def input_wait_seconds(self) -> float:
        """Seconds that steps have waited for their input so far."""
        return float(self._input_wait)

    def make_train_function(self, force: bool = False) -> Any:
        """Returns Keras' training function: iterator -> running means.

        It calls `learn`, and not `train_step`, which also reads the means. Its
        graph is that of `train_tf_function`, which also returns how long it
        waited for its input, float64 []. Under op determinism TensorFlow has
        no clock in a graph, and the wait is not measured.
        """
        if self.run_eagerly:
            return super().make_train_function(force)
        if self.train_function is not None and not force:
            return self.train_function
        names: list[str] = []

        @do_not_convert_self
        def step(data: Any) -> None:
            names[:] = self.learn(self.batch(data, training=True))

        run = tf.function(step, jit_compile=True) if self.jit_compile else step
        strategy = self.distribute_strategy

        def one_step(
            number: tf.Tensor, seconds: tf.Tensor, iterator: Any
        ) -> tuple[tf.Tensor, tf.Tensor]:
            has_clock = not config.is_op_determinism_enabled()
            start = tf.timestamp() if has_clock else math.nan
            with tf.control_dependencies([start] if has_clock else []):
                data = next(iterator)
            arrived = tf.nest.flatten(data, expand_composites=True)
            with tf.control_dependencies(arrived):
                waited = (tf.timestamp() if has_clock else 0.0) - start
            # If the input fails, nothing of the step happens, and no counter
            # has it. The program of a TPU takes the batch as a whole.
            whole = [] if distribution.on_tpu() else arrived
            with tf.control_dependencies(whole):
                strategy.run(run, args=(data,))
            return number + 1, seconds + waited

        @do_not_convert_self
        def several_steps(iterator: Any) -> tuple[Results, tf.Tensor]:
            count = tf.convert_to_tensor(self._steps_per_execution)
            steps, seconds = tf.while_loop(
                lambda number, _: number < count,
                functools.partial(one_step, iterator=iterator),
                [tf.zeros_like(count), tf.zeros([], tf.float64)],
            )
            self._train_counter.assign_add(steps)
            return self.means.read(names), seconds

        graph = tf.function(several_steps, reduce_retracing=True)

        def execute(iterator: Any) -> Results:
            results, seconds = self._execute(graph, iterator)
            with tf.device(seconds.device):  # Without waiting for its value.
                self._input_wait += seconds
            return results

        self.train_tf_function, self.train_function = graph, execute
        return execute

    def make_test_function(self, force: bool = False) -> Any:
        """Returns Keras' test function: iterator -> running means."""
        if self.test_function is not None and not force:
            return self.test_function
        graph = super().make_test_function(force)
        # Keras does not save what has this name.
        self.test_function = functools.partial(self._execute, graph)
        return self.test_function

    def _execute(self, graph: Any, iterator: Any) -> Any:
        """Calls a graph on the iterator.

        What a check in the graph finds is raised without TensorFlow's trace.
        Of batches that differ between replicas, collectives would fail at the
        end of the epoch.
        """
        batch = tf.nest.flatten(iterator.element_spec, expand_composites=True)
        replicas = self.distribute_strategy.num_replicas_in_sync
        if replicas > 1 and batch[0].shape[0] is None:
            raise ValueError(
                f"batches of {replicas} replicas must be of one known size, and"
                " the last one may be smaller: pass a tf.data.Dataset of"
                " .batch(N, drop_remainder=True)"
            )
        try:
            return graph(iterator)
        except tf.errors.InvalidArgumentError as error:
            raise label_checks.in_one_line(error) from None


class Throughput:
    """Speed of a model's training since the last call of `restart`."""

    def __init__(self, model: tf.keras.Model) -> None:
        self._model = model
        self.restart()

    def restart(self) -> None:
        """Measures from now on."""
        self._start = self._now()

    def _now(self) -> tuple[float, int, float]:
        return (
            time.perf_counter(),
            int(self._model.optimizer.iterations.numpy()),
            self._model.input_wait_seconds,
        )

    def read(self) -> tuple[float, float]:
        """Returns (steps/s, fraction of the time spent waiting for input)."""
        (t0, s0, w0), (t1, s1, w1) = self._start, self._now()
        seconds = max(t1 - t0, 1e-9)
        return (s1 - s0) / seconds, (w1 - w0) / seconds
