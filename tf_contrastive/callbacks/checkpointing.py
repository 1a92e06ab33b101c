"""Saves checkpoints, and stops a run on non-finite steps and on preemption."""

from typing import Any

import tensorflow as tf

from tf_contrastive import errors, terminal
from tf_contrastive.checkpoints import Checkpoints, newest, preemption
from tf_contrastive.config.runtime import Runtime, skipped_steps


class NonFiniteError(errors.UserError):
    """The loss or a gradient became NaN or infinite."""


class CheckpointCallback(tf.keras.callbacks.Callback):
    """Saves checkpoints, and stops the run on non-finite steps or preemption.

    The checks run after every execution of the training step. After a
    non-finite step the run stops before it saves, unless `runtime.nan_policy`
    allows to skip that many steps. On preemption it saves, then stops.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        runtime: Runtime,
        listener: preemption.PreemptionListener | None = None,
    ) -> None:
        super().__init__()
        self._checkpoints = checkpoints
        self._every = runtime.checkpoint_every_steps
        self._max_skipped = skipped_steps(runtime.nan_policy)
        self._listener = listener
        self._skipped = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks the last steps, and saves if a checkpoint is due.

        Raises:
          NonFiniteError: after too many non-finite steps.
          InterruptedRunError: on preemption.
        """
        self._check_finite()
        last_saved = self._checkpoints.last_saved or 0
        if self._every and self._checkpoints.step - last_saved >= self._every:
            self._checkpoints.save()
        if self._listener and (reason := self._listener.stop_reason()):
            self._checkpoints.finish()
            raise preemption.InterruptedRunError(
                f"ended by {reason}, saved at step"
                f" {self._checkpoints.step:,}: repeat the command to resume"
            )

    def _check_finite(self) -> None:
        bad = self.model.non_finite_steps()
        if bad.count <= self._skipped:
            return
        self._skipped = bad.count
        message = (
            f"the loss or its gradient is not finite at step {bad.step:,} on"
            f" replica(s) {', '.join(map(str, bad.replicas))}"
        )
        if bad.count <= self._max_skipped:
            terminal.warning(
                f"{message}: skipped, {bad.count} of at most"
                f" {self._max_skipped}"
            )
            return
        path, _ = newest(self._checkpoints.directory)
        raise NonFiniteError(
            f"{message}: lower `learning_rate`, raise `temperature` or lengthen"
            " `warmup_epochs`; last good checkpoint:"
            f" {path or 'none was saved yet'}"
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves, unless checkpoints are counted in steps."""
        if not self._every:
            self._checkpoints.save()

    def on_train_end(self, logs: Any = None) -> None:
        """Saves the last step, and waits until it is on disk."""
        self._checkpoints.finish()
