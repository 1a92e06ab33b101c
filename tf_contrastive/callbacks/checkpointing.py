"""Saving checkpoints, ending a run where it must, warning where it is lost."""

import sys
from typing import Any, TextIO

import tensorflow as tf

from tf_contrastive import checkpoints, errors, terminal
from tf_contrastive.checkpoints import preemption as interruptions
from tf_contrastive.config.loss import (
    COLLAPSE_EPOCHS,
    COLLAPSE_STD,
    GUESSING_MARGIN,
)
from tf_contrastive.config.runtime import Runtime, skipped_steps


class NonFiniteError(errors.UserError):
    """The loss or a gradient became NaN or infinite."""


class Keeper(tf.keras.callbacks.Callback):
    """Saves checkpoints, and ends the run where it must, with all saved.

    It looks after every execution of the step. A step whose loss or gradient
    is not finite ends the run before anything of it is saved, unless the
    policy is to pass over it; a signal ends it with a checkpoint.

    Args:
      kept: the run's checkpoints.
      runtime: how often; 0 steps: at the end of every epoch.
      interruption: tells whether the run should end.
    """

    def __init__(
        self,
        kept: checkpoints.Checkpoints,
        runtime: Runtime,
        interruption: interruptions.Interruption | None = None,
    ) -> None:
        super().__init__()
        self._kept = kept
        self._every = runtime.checkpoint_every_steps
        self._allowed = skipped_steps(runtime.nan_policy)
        self._interruption = interruption
        self._told = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Checks the step, and saves where a checkpoint is due."""
        self._check_finite()
        last = self._kept.last_saved or 0
        if self._every and self._kept.step - last >= self._every:
            self._kept.save()
        if self._interruption and (reason := self._interruption.agreed()):
            self._kept.finish()
            raise interruptions.InterruptedRunError(
                f"ended by {reason}, saved at step {self._kept.step:,}: repeat"
                " the command to go on"
            )

    def _check_finite(self) -> None:
        bad = self.model.non_finite_steps()
        if bad.count <= self._told:
            return
        self._told = bad.count
        where = (
            f"the loss or its gradient is not finite at step {bad.step:,} on"
            f" replica(s) {', '.join(map(str, bad.replicas))}"
        )
        if bad.count <= self._allowed:
            terminal.warning(
                f"{where}: passed over, {bad.count} of at most {self._allowed}"
            )
            return
        kept, _ = checkpoints.newest(self._kept.directory)
        raise NonFiniteError(
            f"{where}: lower `learning_rate`, raise `temperature` or lengthen"
            f" `warmup_epochs`; last good checkpoint:"
            f" {kept or 'none was saved yet'}"
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves, unless checkpoints are counted in steps."""
        if not self._every:
            self._kept.save()

    def on_train_end(self, logs: Any = None) -> None:
        """Saves what was trained last."""
        self._kept.finish()


class CollapseAlarm(tf.keras.callbacks.Callback):
    """Warns on stderr when embeddings fall together, or nothing is learned.

    After so many epochs in a row in which the normalised projections have next
    to no spread, or the loss is that of a guess among all candidates.

    Args:
      guess: loss of an encoder that tells nothing apart; None: not known.
      epochs: in a row, before it warns; it does so once.
      stream: where to, stderr by default.
    """

    def __init__(
        self,
        guess: float | None,
        epochs: int = COLLAPSE_EPOCHS,
        stream: TextIO | None = None,
    ) -> None:
        super().__init__()
        self._guess = guess
        self._epochs = epochs
        self._stream = stream or sys.stderr
        self._collapsed, self._guessing = 0, 0

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Looks at the means of an epoch."""
        spread, loss = logs["embedding_std"], logs["loss"]
        small = spread < COLLAPSE_STD
        self._collapsed = self._collapsed + 1 if small else 0
        stuck = self._guess is not None and (
            abs(loss - self._guess) < GUESSING_MARGIN
        )
        self._guessing = self._guessing + 1 if stuck else 0
        if self._collapsed == self._epochs:
            self._tell(
                f"collapse: the standard deviation of the embeddings has been"
                f" {spread:.3f} or the like (0: one point; 1: spread out)"
            )
        elif self._guessing == self._epochs:
            self._tell(
                f"nothing is learned: the loss has been {loss:.3f}, that of a"
                " guess"
            )

    def _tell(self, what: str) -> None:
        text = (
            f"{what} for {self._epochs} epochs: lower `learning_rate`, lengthen"
            " `warmup_epochs`, or look at the views in TensorBoard"
        )
        self._stream.write(terminal.paint(text, "warning", self._stream) + "\n")
        self._stream.flush()
