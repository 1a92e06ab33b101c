"""How many steps run between two looks of the host.

Layer 5. A device that is asked for each step alone idles in between; but only
between executions can the host hear a signal, save and show something.
"""

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, distribution
from tf_contrastive.config.runtime import (
    LOOK_SECONDS,
    Runtime,
    read_step_window,
)

# An execution is planned to take half of the time that it may take: the next
# steps may be slower than the last ones.
_TARGET_SECONDS = LOOK_SECONDS / 2


class Pacer(tf.keras.callbacks.Callback):
    """Chooses the steps of each execution by the time that the last one took.

    An execution ends where a checkpoint, a point in TensorBoard or the edge of
    a profile is due, and with the epoch, so that these come at the same steps
    whatever the speed. What is computed does not depend on the choice.

    Args:
      kept: the run's checkpoints.
      runtime: how often something is due.
      strategy: all of its workers run as many steps.
      clock: returns seconds.
    """

    def __init__(
        self,
        kept: checkpoints.Checkpoints,
        runtime: Runtime,
        strategy: tf.distribute.Strategy,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__()
        self._kept = kept
        self._checkpoint_every = runtime.checkpoint_every_steps
        self._log_every = runtime.log_every_steps
        self._profiled = read_step_window(runtime.profile_steps)
        self._strategy = strategy
        self._clock = clock
        self._pace = 1
        self._traced = False
        self._begun = self._seen = 0  # Steps of the run.
        self._started = 0.0
        self._before_test = 1

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes from which step on points are counted."""
        self._begun = self._seen = self._kept.step
        self._plan(self.params["steps"])

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._started = self._clock()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Plans the next execution."""
        step = self._kept.step  # Waits until the device has finished.
        seconds = self._clock() - self._started
        steps, self._seen = step - self._seen, step
        if self._traced:
            self._follow(seconds / steps)
        # The first execution takes the time of making the graph, too.
        self._traced = True
        self._plan(self.params["steps"] - (batch + 1) or self.params["steps"])

    def _follow(self, seconds_per_step: float) -> None:
        fitting = int(_TARGET_SECONDS / max(seconds_per_step, 1e-9))
        # One fast execution proves little.
        wanted = min(max(fitting, 1), 2 * self._pace)
        self._pace = distribution.mean_over_workers(self._strategy, wanted)

    def _plan(self, left_of_epoch: int) -> None:
        shown = self._seen - self._begun
        dues = [left_of_epoch, _until(self._log_every, shown)]
        if self._checkpoint_every:
            saved = self._kept.last_saved or 0
            dues.append(_until(self._checkpoint_every, self._seen - saved))
        if self._profiled:
            # Neither begin nor end a profile amid an execution.
            first, last = self._profiled
            dues += [
                x - self._seen for x in (first - 1, last) if x > self._seen
            ]
        self._set(min(self._pace, *dues))

    def _set(self, steps: int) -> None:
        # Keras and the training function read the variable anew each time.
        self.model._steps_per_execution.assign(steps)

    def on_test_begin(self, logs: Any = None) -> None:
        """Lets the function that validates take its batches one by one.

        Keras makes it for one step or for several, once.
        """
        self._before_test = int(self.model._steps_per_execution.numpy())
        self._set(1)

    def on_test_end(self, logs: Any = None) -> None:
        """Returns to what was planned."""
        self._set(self._before_test)


def _until(every: int, done: int) -> int:
    """Steps from `done` to the next multiple of `every`, at least 1."""
    return every - done % every
