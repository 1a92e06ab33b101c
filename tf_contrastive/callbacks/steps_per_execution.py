"""Adapts how many training steps run per host call."""

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.checkpoints import Checkpoints
from tf_contrastive.config.runtime import Runtime

# Half of the 10 s after which control should return to the host at the latest,
# since the next steps may be slower than the last ones.
_TARGET_SECONDS = 5.0


class AdaptiveStepsPerExecution(tf.keras.callbacks.Callback):
    """Sets the steps of the next execution from the time of the last one.

    With one step per execution the device waits for the host after each step.
    With more, the host handles signals, saves and logs later. An execution ends
    where a checkpoint, a point in TensorBoard, the edge of a profile or the end
    of an epoch is due, whatever the speed. All workers run the same steps.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        runtime: Runtime,
        log_every_steps: int,
        strategy: tf.distribute.Strategy,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__()
        self._checkpoints = checkpoints
        self._checkpoint_every = runtime.checkpoint_every_steps
        self._log_every = log_every_steps
        self._profiled = runtime.profile_steps
        self._strategy = strategy
        self._clock = clock
        self._max_steps = 1
        self._traced = False
        self._last_step = 0
        self._started = 0.0
        self._before_test = 1

    def on_train_begin(self, logs: Any = None) -> None:
        """Plans the first execution."""
        self._last_step = self._checkpoints.step
        self._plan(self.params["steps"])

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._started = self._clock()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Plans the next execution."""
        step = self._checkpoints.step  # Waits until the device has finished.
        seconds = self._clock() - self._started
        steps, self._last_step = step - self._last_step, step
        # The time of the first execution includes tracing.
        if self._traced:
            fitting = int(_TARGET_SECONDS / max(seconds / steps, 1e-9))
            # Grow slowly: a single execution may be fast by chance.
            fitting = min(max(fitting, 1), 2 * self._max_steps)
            self._max_steps = distribution.mean_over_workers(
                self._strategy, fitting
            )
        self._traced = True
        self._plan(self.params["steps"] - (batch + 1) or self.params["steps"])

    def _plan(self, left_of_epoch: int) -> None:
        step = self._last_step
        limits = [self._max_steps, left_of_epoch]
        last_saved = self._checkpoints.last_saved or 0
        for every, since in (
            (self._log_every, 0),
            (self._checkpoint_every, last_saved),
        ):
            if every:
                limits.append(every - (step - since) % every)
        if self._profiled:
            # A profile starts and stops only between two executions.
            first, last = self._profiled
            limits += [edge - step for edge in (first - 1, last) if edge > step]
        self._set(min(limits))

    def _set(self, steps: int) -> None:
        # Keras and the training function read the variable before each call.
        self.model._steps_per_execution.assign(steps)

    def on_test_begin(self, logs: Any = None) -> None:
        """Validates one batch per call.

        Keras makes its test function once, for one step or for several.
        """
        self._before_test = int(self.model._steps_per_execution.numpy())
        self._set(1)

    def on_test_end(self, logs: Any = None) -> None:
        """Restores the planned number of steps."""
        self._set(self._before_test)
