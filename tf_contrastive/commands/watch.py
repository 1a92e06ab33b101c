"""`evaluate --watch`: scores each new checkpoint of a job that is running."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, terminal
from tf_contrastive.checkpoints import preemption
from tf_contrastive.config import fields
from tf_contrastive.config.evaluate import Evaluate
from tf_contrastive.evaluation import entries, protocols, reports

# Seconds within which a signal is heeded while nothing goes on.
_NAP_SECONDS = 0.2

# (run at a checkpoint, whether to score an untrained encoder too, what wraps
# walks over images) -> the report.
Score = Callable[..., dict[str, Any]]


class _EndedError(Exception):
    """A signal ended the watch."""


class Watch:
    """Scores each new checkpoint of a run, once, until the run has ended.

    The run has ended with the checkpoint of its last step. A checkpoint that
    is deleted before it could be read is passed over.

    Args:
      options: validated.
      folder: of `evaluation.json`, whose history tells what was scored.
      score: (run, untrained=, heed=) -> report, which it has shown and kept.
    """

    def __init__(self, options: Evaluate, folder: str, score: Score) -> None:
        self._options = options
        self._folder = folder
        self._score = score
        self._run: checkpoints.Run | None = None
        self._scored = 0
        self._passed_over: set[int] = set()
        # Of `all` it is known once they were measured.
        self._measured: dict[str, Any] | None = None

    def __call__(self) -> int:
        """Watches; returns the exit status.

        Raises:
          UserError: for no run, or data that cannot be scored.
        """
        with preemption.PreemptionListener(
            tf.distribute.get_strategy(), action="ending the watch"
        ) as self._heard:
            try:
                while not self._look():
                    self._wait(self._options.evaluation.watch_every_seconds)
                told = "the run has ended"
            except _EndedError as ended:
                told = f"ended by {ended}"
        terminal.info(f"{told}: {self._scored} checkpoint(s) scored")
        return 0

    def _heed(self, batches: Iterable) -> Iterator:
        for batch in batches:
            self._end_if_told()
            yield batch

    def _end_if_told(self) -> None:
        if reason := self._heard.stop_reason():
            raise _EndedError(reason)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._end_if_told()
            time.sleep(min(left, _NAP_SECONDS))

    def _look(self) -> bool:
        """Scores what is new; returns whether the run has ended."""
        workdir = self._options.evaluation.workdir
        paths = checkpoints.saved(workdir)
        if self._run is None:
            checkpoints.check_run(workdir)
            if not paths:
                return False
            self._run = checkpoints.load_run(workdir)
        for path in paths:
            self._end_if_told()
            found = self._run.at(path)
            if not self._is_done(found.step):
                self._score_one(found)
        return self._is_done(self._run.last_step)

    def _is_done(self, step: int) -> bool:
        if step in self._passed_over:
            return True
        chosen = self._options.evaluation
        done = reports.measured(
            self._folder,
            {
                "step": step,
                "dataset": chosen.dataset or self._run.config.data.dataset,
                "train_split": chosen.train_split,
                "test_split": chosen.test_split,
            },
        )
        wanted = self._wanted()
        return None not in (done, wanted) and all(
            done.get(name) == hyperparameters
            for name, hyperparameters in wanted.items()
        )

    def _wanted(self) -> dict[str, Any] | None:
        """What each checkpoint is measured by, as the history has it."""
        names = fields.split_list(self._options.evaluation.protocols)
        if "all" in names:
            return self._measured
        chosen = [(name, protocols.PROTOCOLS[name]) for name in names]
        return {
            f"{name}@{p.version_of(self._options)}": entries.plain(
                p.hyperparameters(self._options)
            )
            for name, p in chosen
        }

    def _score_one(self, found: checkpoints.Run) -> None:
        if not checkpoints.is_whole(found.checkpoint):
            # Deleted, or not written to its end yet.
            self._pass_over_if_gone(found)
            return
        try:
            report = self._score(
                found, untrained=not self._scored, heed=self._heed
            )
        except (tf.errors.OpError, ValueError, IndexError):
            if not self._pass_over_if_gone(found):
                raise
            return
        self._scored += 1
        done = {key: report[key] for key in reports.KEYS}
        self._measured = reports.measured(self._folder, done)

    def _pass_over_if_gone(self, found: checkpoints.Run) -> bool:
        if tf.io.gfile.exists(f"{found.checkpoint}.index"):
            return False
        self._passed_over.add(found.step)
        terminal.info(
            f"step {found.step:,}: its checkpoint was deleted before it could"
            " be read, and is passed over"
        )
        return True
