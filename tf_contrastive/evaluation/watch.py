"""`evaluate --watch`: scores each new checkpoint of a running job."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints
from tf_contrastive.base import errors, files, terminal
from tf_contrastive.checkpoints import preemption
from tf_contrastive.config import checks
from tf_contrastive.config.evaluate import Scoring, resolve_splits
from tf_contrastive.evaluation import results

# Seconds between two checks for a signal while waiting.
_NAP_SECONDS = 0.2

# (run at a checkpoint, untrained=, cancellable=) -> report.
Score = Callable[..., dict[str, Any]]


class _CancelledError(Exception):
    """A signal ended the watch."""


class Watch:
    """Scores each new checkpoint of a run, once, until the run has ended.

    New are those after the newest that has been scored. The run has ended with
    the checkpoint of its last step. A checkpoint that is deleted before it is
    read is skipped. `score` writes `evaluation.json` in `folder`, whose history
    is used to resume.
    """

    def __init__(
        self, options: Scoring, folder: str | None, score: Score
    ) -> None:
        self._options = options
        self._folder = folder or ""
        self._score = score
        self._run: checkpoints.Run | None = None
        self._scored = 0
        self._skipped: set[int] = set()
        # What "all" stands for is known after the first measurement.
        self._measured: dict[str, Any] | None = None

    def __call__(self) -> int:
        """Watches; returns the exit status."""
        with preemption.PreemptionListener(
            tf.distribute.get_strategy(), action="ending the watch"
        ) as self._listener:
            try:
                while not self._score_new():
                    self._wait(self._options.evaluation.watch_every_seconds)
                reason = "the run has ended"
            except _CancelledError as error:
                reason = f"ended by {error}"
        terminal.info(f"{reason}: {self._scored} checkpoint(s) scored")
        return 0

    def _cancellable(self, batches: Iterable) -> Iterator:
        for batch in batches:
            self._raise_if_cancelled()
            yield batch

    def _raise_if_cancelled(self) -> None:
        if reason := self._listener.stop_reason():
            raise _CancelledError(reason)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._raise_if_cancelled()
            time.sleep(min(left, _NAP_SECONDS))

    def _score_new(self) -> bool:
        """Scores new checkpoints; returns whether the run has ended."""
        workdir = self._options.evaluation.workdir
        # The folder may be gone, or hold another run.
        config = checkpoints.check_run(workdir)
        paths = checkpoints.saved(workdir)
        if self._run is None:
            if not paths:
                return False
            self._run = checkpoints.load_run(workdir)
        elif config != self._run.config:
            raise errors.UserError(
                f"{workdir} holds another run than at the start of the watch:"
                " start it again"
            )
        # Results of a later step are not replaced by those of an earlier one.
        new = itertools.takewhile(
            lambda run: not self._is_done(run),
            map(self._run.at, reversed(paths)),
        )
        for run in reversed([*new]):
            self._raise_if_cancelled()
            self._score_one(run)
        return self._is_done(self._run, self._run.last_step)

    def _is_done(self, run: checkpoints.Run, step: int | None = None) -> bool:
        step = run.step if step is None else step
        if step in self._skipped:
            return True
        options = resolve_splits(self._options, run.config.data)
        evaluation = options.evaluation
        measured = results.measured(
            self._folder,
            {
                "step": step,
                "dataset": evaluation.dataset or run.config.data.dataset,
                "train_split": evaluation.train_split,
                "test_split": evaluation.test_split,
            },
        )
        required = self._required()
        if measured is None or required is None:
            return False
        return measured | required == measured

    def _required(self) -> dict[str, Any] | None:
        """Returns protocol@version -> hyperparameters, if known."""
        names = checks.split_list(self._options.evaluation.protocols)
        if "all" in names:
            return self._measured
        return {
            f"{name}@{self._options.version_of(name)}": files.as_json(
                self._options.recorded(name)
            )
            for name in names
        }

    def _score_one(self, run: checkpoints.Run) -> None:
        if checkpoints.damage_of(run.checkpoint):
            # Deleted, or still being written.
            if not checkpoints.is_present(run.checkpoint):
                self._skip(run)
            return
        try:
            report = self._score(
                run, untrained=not self._scored, cancellable=self._cancellable
            )
        except errors.DivergedError as error:
            # The other results are written; later checkpoints may not diverge.
            self._scored += 1
            self._skipped.add(run.step)
            terminal.warning(f"step {run.step:,}: {error.marked}")
            return
        except checkpoints.DeletedCheckpointError:
            self._skip(run)
            return
        self._scored += 1
        checkpoint = {key: report[key] for key in results.KEYS}
        self._measured = results.measured(self._folder, checkpoint)

    def _skip(self, run: checkpoints.Run) -> None:
        self._skipped.add(run.step)
        terminal.info(
            f"step {run.step:,}: skipped, its checkpoint was deleted before it"
            " could be read"
        )
