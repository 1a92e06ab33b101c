"""Saves checkpoints, and stops a run on non-finite steps and on preemption."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive.base import errors, terminal
from tf_contrastive.checkpoints import Checkpoints, NonFiniteError, preemption
from tf_contrastive.config.runtime import Runtime, skipped_steps


class CheckpointCallback(tf.keras.callbacks.Callback):
    """Saves checkpoints, and stops the run on non-finite steps or preemption.

    It checks after every execution of the training step, as the last callback:
    what is saved was reported. After a non-finite step the run stops before it
    saves, unless `runtime.nan_policy` allows to skip that many steps. On
    preemption it saves, then stops. As long as all steps are skipped there is
    nothing to save. The last step of an epoch is saved after its validation.

    Args:
      checkpoints: of the run, restored.
      runtime: its options.
      steps_per_epoch: of a whole epoch.
      listener: says when to stop, if anything does.
      flush: called before each save.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        runtime: Runtime,
        steps_per_epoch: int,
        listener: preemption.PreemptionListener | None = None,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._checkpoints = checkpoints
        self._every = runtime.checkpoint_every_steps
        self._max_skipped = skipped_steps(runtime.nan_policy)
        self._steps_per_epoch = steps_per_epoch
        self._listener = listener
        self._flush = flush
        self._skipped = 0
        self._start: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes where this process started; `fit` may be called twice."""
        if self._start is None:
            self._start = self._checkpoints.step

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Goes on with the means of an epoch that was interrupted."""
        self._checkpoints.means.begin(resumed=self._is_within_epoch())

    def _is_within_epoch(self) -> bool:
        return self._checkpoints.step % self._steps_per_epoch > 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks the last steps, and saves if a checkpoint is due."""
        self._check_finite()
        if self._is_within_epoch():
            self._save_or_stop(is_due=False)

    def on_test_begin(self, logs: Any = None) -> None:
        """Keeps the means of training."""
        self._checkpoints.means.close()

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Saves, with the means of the epoch."""
        self._checkpoints.means.finish(logs)
        self._save_or_stop(is_due=not self._every)

    def _save_or_stop(self, is_due: bool) -> None:
        last_saved = self._checkpoints.last_saved or 0
        if self._every:
            is_due = self._checkpoints.step - last_saved >= self._every
        if is_due and not self._skipped_all():
            self._flush()
            self._checkpoints.save()
        if self._listener and (reason := self._listener.stop_reason()):
            self._flush()
            self._checkpoints.finish()
            raise errors.InterruptedRunError(
                f"ended by {reason}, saved at step"
                f" {self._checkpoints.step:,}: repeat the command to resume"
            )

    def _check_finite(self) -> None:
        bad = self.model.non_finite_steps()
        if bad.count <= self._skipped:
            return
        self._skipped = bad.count
        loss = "probe's loss" if bad.only_probe else "loss"
        message = (
            f"the {loss} or its gradient is not finite at step {bad.step:,} on"
            f" replica(s) {', '.join(map(str, bad.replicas))}"
        )
        if bad.count <= self._max_skipped:
            terminal.warning(
                f"{message}: skipped, {bad.count} of at most"
                f" {self._max_skipped}"
            )
            return
        raise NonFiniteError(message, self._checkpoints.directory)

    def _skipped_all(self) -> int:
        """Number of this process's steps if all were skipped, else 0."""
        steps = self._checkpoints.step - (self._start or 0)
        return steps if self.model.skipped_steps() >= steps else 0

    def on_train_end(self, logs: Any = None) -> None:
        """Saves the last step, and waits until it is on disk."""
        if not self._skipped_all():
            self._checkpoints.finish()

    def check_trained(self) -> None:
        """Raises `NonFiniteError` if all steps of this process were skipped."""
        if self.model and (steps := self._skipped_all()):
            raise NonFiniteError(
                f"all {steps:,} steps were skipped, since their gradients were"
                " not finite, and nothing was trained",
                self._checkpoints.directory,
            )
