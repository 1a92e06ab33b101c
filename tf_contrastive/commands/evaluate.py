"""`evaluate`: scores the encoder of a run, or an export, by named protocols."""

import dataclasses
import itertools
import os
import string
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar

from tf_contrastive.base import files, terminal
from tf_contrastive.base.errors import DivergedError, UserError, arg
from tf_contrastive.config import checks
from tf_contrastive.config.evaluate import Evaluation, Scoring
from tf_contrastive.config.fields import Terminal, group, option
from tf_contrastive.config.runtime import STRATEGIES, Devices

if TYPE_CHECKING:
    import tensorflow as tf

    from tf_contrastive import checkpoints
    from tf_contrastive.checkpoints import preemption
    from tf_contrastive.evaluation import report as reports
    from tf_contrastive.evaluation import scoring

COMPARISON_FILE = "comparison.json"
_LETTERS = string.ascii_uppercase
# Seconds between two checks for a signal while waiting.
_NAP_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class EvaluationDevices(Devices):
    """Devices that share the images."""

    strategy: str = option(
        "auto",
        "tf.distribute strategy, whose replicas share the images; auto: chosen"
        " by the available devices, and default with --watch, beside a running"
        " job",
        choices=STRATEGIES,
    )


@dataclasses.dataclass(frozen=True)
class Evaluate(Scoring):
    """Score a run or an export by the papers' protocols; --compare A B."""

    COMMON: ClassVar = (
        "workdir",
        "saved_model",
        "output_dir",
        "compare",
        "protocols",
        "scale",
        "watch",
        "untrained",
        "dataset",
        "data_dir",
        "train_split",
        "test_split",
        "knn_k",
        "strategy",
        "verbosity",
    )

    devices: EvaluationDevices = group(EvaluationDevices())
    terminal: Terminal = group(Terminal())

    def _check(self) -> None:
        e = self.evaluation
        if e.compare:
            for name in ("workdir", "saved_model", "watch"):
                if value := getattr(e, name):
                    text = arg(name, None if value is True else value)
                    raise UserError(
                        f"{arg('compare', e.compare)} and {text}: set one of"
                        f" them; {arg('compare')} reads results of earlier"
                        " evaluations"
                    )
            return
        if bool(e.workdir) == bool(e.saved_model):
            raise UserError(
                f"set one of {arg('workdir', 'RUN')} and"
                f" {arg('saved_model', 'EXPORT/VERSION')}, or {arg('compare')}"
                " A B"
            )
        if e.saved_model and not e.dataset:
            raise UserError(
                f"{arg('saved_model', e.saved_model)} needs"
                f" {arg('dataset', 'NAME')}: an export does not name its"
                " dataset"
            )
        if e.watch and not e.workdir:
            raise UserError(
                f"{arg('watch')} needs {arg('workdir', 'RUN')}: an export gets"
                " no new checkpoints"
            )
        if e.watch and self.devices.strategy == "multiworker":
            raise UserError(
                f"{arg('watch')} and {arg('strategy', 'multiworker')}: new"
                " checkpoints are scored by one process: set another strategy"
            )
        self.devices.check()
        super()._check()


def run(options: Evaluate) -> int:
    """Prints a table of accuracies and writes `<workdir>/evaluation.json`.

    Arrays and plots go to `<workdir>/evaluation/`, numbers and plots for
    TensorBoard to `<workdir>/events/evaluation/`. The results of an export
    (`saved_model`) are only written if `output_dir` is set. Of several workers
    the chief prints and writes.
    """
    with terminal.without_start_lines():
        from tf_contrastive import checkpoints, distribution
        from tf_contrastive.evaluation import scoring

    evaluation = options.evaluation
    if evaluation.compare:
        return _compare(evaluation)

    def score(run: "checkpoints.Run | None") -> None:
        setting = scoring.open_setting(options, strategy, run)
        scoring.score(setting, run, setting.report(run))
        for name in setting.bad_images:
            terminal.info(f"left out, cannot be read: {name}")

    with distribution.failures.reported():
        strategy = _strategy(options)
        if evaluation.watch:
            return _watch(options, strategy)
        if evaluation.workdir:
            checkpoints.load(evaluation.workdir, score)
        else:
            score(None)
    return 0


def _strategy(options: Evaluate) -> "tf.distribute.Strategy":
    from tf_contrastive import distribution

    devices = options.devices
    name = devices.strategy
    if name == "auto" and options.evaluation.watch:
        # The job has the TPU, and a cluster has no process to spare.
        name = "mirrored" if devices.virtual_devices else "default"
    return distribution.strategy(
        name,
        virtual_devices=devices.virtual_devices,
        tpu=devices.tpu,
    )


# ---- Watching a running job --------------------------------------------------


class _CancelledError(Exception):
    """A signal ended the watch."""


def _watch(options: Evaluate, strategy: "tf.distribute.Strategy") -> int:
    """Scores each new checkpoint of a run, until the run has ended."""
    import tensorflow as tf

    from tf_contrastive.checkpoints import preemption

    with preemption.PreemptionListener(
        tf.distribute.get_strategy(), action="ending the watch"
    ) as listener:
        watch = _Watch(options, strategy, listener)
        try:
            watch()
            reason = "the run has ended"
        except _CancelledError as error:
            reason = f"ended by {error}"
    terminal.info(f"{reason}: {watch.count} checkpoint(s) scored")
    return 0


class _Watch:
    """Scores each new checkpoint of a run, once.

    New are those after the newest that has been scored, as the history in
    `evaluation.json` says. The run has ended with the checkpoint of its last
    step. A checkpoint that is deleted before it is read is skipped.
    """

    def __init__(
        self,
        options: Evaluate,
        strategy: "tf.distribute.Strategy",
        listener: "preemption.PreemptionListener",
    ) -> None:
        self.count = 0
        self._options = options
        self._strategy = strategy
        self._listener = listener
        self._skipped: set[int] = set()
        self._setting: scoring.Setting | None = None
        # The first one, which has the results of a random encoder.
        self._report: reports.Report | None = None

    def __call__(self) -> None:
        """Watches until the run has ended."""
        from tf_contrastive import checkpoints
        from tf_contrastive.evaluation import scoring

        workdir, run = self._options.evaluation.workdir, None
        while True:
            # The folder may be gone, or hold another run.
            config = checkpoints.check_run(workdir)
            paths = checkpoints.saved(workdir)
            if paths and run is None:
                run = checkpoints.load_run(workdir)
                self._setting = scoring.open_setting(
                    self._options, self._strategy, run
                )
            if run:
                if config != run.config:
                    raise UserError(
                        f"{workdir} holds another run than at the start of the"
                        " watch: start it again"
                    )
                # Results of a later step are not replaced by earlier ones.
                new = itertools.takewhile(
                    lambda at: not self._is_done(at.step),
                    map(run.at, reversed(paths)),
                )
                for at in reversed([*new]):
                    self._score(at)
                if self._is_done(run.last_step):
                    return
            self._wait(self._options.evaluation.watch_every_seconds)

    def _score(self, run: "checkpoints.Run") -> None:
        from tf_contrastive import checkpoints
        from tf_contrastive.evaluation import scoring

        self._end_if_cancelled()
        assert self._setting
        if checkpoints.damage_of(run.checkpoint):
            # Deleted, or still being written.
            if not checkpoints.is_present(run.checkpoint):
                self._skip(run)
            return
        report = self._setting.report(run, self._report)
        try:
            scoring.score(self._setting, run, report, self._cancellable)
        except DivergedError as error:
            # The other results are written; later checkpoints may not diverge.
            self._skipped.add(run.step)
            terminal.warning(f"step {run.step:,}: {error.marked}")
        except checkpoints.DeletedCheckpointError:
            self._skip(run)
            return
        self._report = self._report or report
        self.count += 1

    def _skip(self, run: "checkpoints.Run") -> None:
        self._skipped.add(run.step)
        terminal.info(
            f"step {run.step:,}: skipped, its checkpoint was deleted before it"
            " could be read"
        )

    def _is_done(self, step: int) -> bool:
        """Whether a step has been scored by these protocols, or skipped."""
        from tf_contrastive.evaluation import report as reports

        assert self._setting
        options, folder = self._setting.options, self._setting.folder
        if step in self._skipped:
            return True
        measured = reports.measured(folder or "", self._setting.facts(step))
        names = checks.split_list(options.evaluation.protocols)
        if "all" not in names:
            required = {
                f"{name}@{options.version_of(name)}": files.as_json(
                    options.recorded(name)
                )
                for name in names
            }
        elif self._report:
            # What "all" stands for is known after the first measurement.
            required = self._report.protocols
        else:
            return False
        return measured is not None and measured | required == measured

    def _cancellable(self, batches: Iterable) -> Iterator:
        for batch in batches:
            self._end_if_cancelled()
            yield batch

    def _end_if_cancelled(self) -> None:
        if reason := self._listener.stop_reason():
            raise _CancelledError(reason)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._end_if_cancelled()
            time.sleep(min(left, _NAP_SECONDS))


# ---- Comparing ---------------------------------------------------------------


def _compare(evaluation: Evaluation) -> int:
    """Prints which of each two encoders is better, by each protocol."""
    from tf_contrastive.evaluation import comparison
    from tf_contrastive.evaluation.report import ADVICE, row_name

    names = checks.split_list(evaluation.compare)
    report = comparison.compare_all(names, evaluation.seed)
    letters = dict(zip(names, _LETTERS, strict=False))
    headings = ("protocol", "version", "encoders", "the first is")
    numbers = ("first", "second", "difference", "95 %", "p", "images")
    rows = [
        (
            row_name(row),
            row["version"],
            f"{letters[row['a']]} - {letters[row['b']]}",
            row["verdict"],
            f"{row['top1_a']:.4f}",
            f"{row['top1_b']:.4f}",
            f"{row['difference']:+.4f}",
            f"{row['low']:+.4f}..{row['high']:+.4f}",
            f"{row['p_corrected']:.5f}",
            f"{row['examples']:,}",
        )
        for row in report["results"]
    ]
    for line in report["warnings"]:
        terminal.warning(line)
    for name, letter in letters.items():
        print(f"{letter}: {name}")
    print(terminal.format_table([(*headings, *numbers), *rows], texts=range(4)))
    for row in report["left_out"]:
        print(
            f"left out: {letters[row['a']]} - {letters[row['b']]}"
            f" {row_name(row)} ({row['reason']})"
        )
    print(
        "better, worse: the 95 % interval of a paired bootstrap excludes 0, and"
        " a paired permutation test has p <= 0.05"
        + " by Holm's correction for the pairs of a protocol" * (len(names) > 2)
        + "; otherwise tied"
    )
    if evaluation.output_dir:
        path = os.path.join(evaluation.output_dir, COMPARISON_FILE)
        files.write_json(path, report, ADVICE)
        terminal.info(f"written: {path}")
    return 0
