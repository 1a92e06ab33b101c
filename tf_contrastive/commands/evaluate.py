"""`evaluate`: scores the encoder of a run, or an export, by named protocols."""

import itertools
import os
import time
from typing import TYPE_CHECKING, ClassVar

from tf_contrastive.base import files, terminal
from tf_contrastive.base.errors import DivergedError, UserError, arg
from tf_contrastive.config.checks import check_encoder
from tf_contrastive.config.command import Terminal
from tf_contrastive.config.evaluate import Evaluation, Scoring
from tf_contrastive.config.fields import group
from tf_contrastive.config.runtime import Devices

if TYPE_CHECKING:
    import tensorflow as tf

    from tf_contrastive import checkpoints
    from tf_contrastive.evaluation import scoring

COMPARISON_FILE = "comparison.json"


class Evaluate(Scoring):
    """Score a run or an export by the papers' protocols; --compare A B."""

    COMMON: ClassVar = (
        *("workdir", "saved_model", "output_dir", "compare", "protocols"),
        *("scale", "watch", "untrained", "dataset", "data_dir", "train_split"),
        *("test_split", "knn_k", "strategy", "verbosity"),
    )

    devices: Devices = group(Devices())
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
        check_encoder(e, "dataset", f", or {arg('compare')} A B")
        if e.watch and not e.workdir:
            raise UserError(
                f"{arg('watch')} needs {arg('workdir', 'RUN')}: an export gets"
                " no new checkpoints"
            )
        if e.watch and "all" in e.protocols:
            raise UserError(
                f"{arg('watch')} and {arg('protocols', e.protocols)}: name the"
                " protocols"
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

    Arrays and plots go to `<workdir>/evaluation/`, numbers for TensorBoard to
    `<workdir>/events/evaluation/`. The results of an export
    (`saved_model`) are only written if `output_dir` is set. Of several workers
    the chief prints and writes.
    """
    with terminal.without_start_lines():
        from tf_contrastive import checkpoints, distribution
        from tf_contrastive.evaluation import scoring

    evaluation = options.evaluation
    if evaluation.compare:
        return _compare(evaluation)
    with distribution.failures.reported():
        strategy = _strategy(options)
        if evaluation.watch:
            _watch(options, strategy)
            return 0
        run = None
        if evaluation.workdir:
            run = checkpoints.load_run(evaluation.workdir)
        scoring.score(scoring.open_setting(options, strategy, run), run)
    return 0


def _strategy(options: Evaluate) -> "tf.distribute.Strategy":
    from tf_contrastive import distribution

    devices = options.devices
    name = devices.strategy
    if name == "auto" and options.evaluation.watch:
        # The job has the TPU, and a cluster has no process to spare.
        name = "mirrored" if devices.virtual_devices else "default"
    return distribution.strategy(
        name, virtual_devices=devices.virtual_devices, tpu=devices.tpu
    )


# ---- Watching a running job --------------------------------------------------


def _watch(options: Evaluate, strategy: "tf.distribute.Strategy") -> None:
    """Scores each new checkpoint of a run once, until the run has ended.

    New are those after the newest that has been scored, as the history in
    `evaluation.json` says. The run has ended with the checkpoint of its last
    step. A checkpoint that is deleted before it is read is skipped.
    """
    from tf_contrastive import checkpoints
    from tf_contrastive.evaluation import scoring

    workdir = options.evaluation.workdir
    required = {
        f"{x}@{options.version_of(x)}": files.as_json(options.recorded(x))
        for x in options.evaluation.protocols
    }
    run: checkpoints.Run | None = None
    ended: set[int] = set()  # Steps that were scored here, or skipped.
    count = 0

    def is_done(step: int) -> bool:
        if step in ended:
            return True
        measured = setting.report(step).measured()
        return measured is not None and measured | required == measured

    while True:
        # The folder may be gone, or hold another run.
        config = checkpoints.check_run(workdir)
        paths = checkpoints.saved(workdir)
        # The first one may still be written.
        whole = (x for x in paths if checkpoints.damage_of(x) is None)
        if run is None and any(whole):
            run = checkpoints.load_run(workdir)
            setting = scoring.open_setting(options, strategy, run)
        if run:
            if config != run.config:
                raise UserError(
                    f"{workdir} holds another run than at the start of the"
                    " watch: start it again"
                )
            # Results of a later step are not replaced by earlier ones.
            new = itertools.takewhile(
                lambda at: not is_done(at.step), map(run.at, reversed(paths))
            )
            for at in reversed([*new]):
                if checkpoints.damage_of(at.checkpoint) and (
                    checkpoints.is_present(at.checkpoint)
                ):
                    continue  # It is still being written.
                ended.add(at.step)
                count += _scored(setting, at)
            if is_done(run.last_step):
                break
        time.sleep(options.evaluation.watch_every_seconds)
    terminal.info(f"the run has ended: {count} checkpoint(s) scored")


def _scored(setting: "scoring.Setting", run: "checkpoints.Run") -> bool:
    """Scores a checkpoint; returns whether it could be read."""
    from tf_contrastive import checkpoints
    from tf_contrastive.evaluation import scoring

    try:
        scoring.score(setting, run)
    except DivergedError as error:
        # The other results are written, and later checkpoints may not diverge.
        terminal.warning(f"step {run.step:,}: {error.marked}")
    except checkpoints.DeletedCheckpointError:
        terminal.info(
            f"step {run.step:,}: skipped, its checkpoint was deleted before it"
            " could be read"
        )
        return False
    return True


# ---- Comparing ---------------------------------------------------------------


def _compare(evaluation: Evaluation) -> int:
    """Prints which of two encoders is better, by each protocol."""
    from tf_contrastive.evaluation import comparison
    from tf_contrastive.evaluation.report import ADVICE, row_name

    a, b = evaluation.compare
    report = comparison.compare(a, b, evaluation.seed)
    headings = ("protocol", "version", "A is", "A", "B")
    numbers = ("A - B", "95 %", "p", "images")
    rows = [
        (
            row_name(row),
            row["version"],
            row["verdict"],
            f"{row['top1_a']:.4f}",
            f"{row['top1_b']:.4f}",
            f"{row['difference']:+.4f}",
            f"{row['low']:+.4f}..{row['high']:+.4f}",
            f"{row['p_value']:.5f}",
            f"{row['examples']:,}",
        )
        for row in report["results"]
    ]
    for line in report["warnings"]:
        terminal.warning(line)
    print(f"A: {a}\nB: {b}")
    print(terminal.format_table([(*headings, *numbers), *rows], texts=range(3)))
    for row in report["left_out"]:
        print(f"left out: {row_name(row)} ({row['reason']})")
    print(
        "better, worse: the 95 % interval of a paired bootstrap excludes 0, and"
        " a paired permutation test has p <= 0.05; otherwise tied"
    )
    if evaluation.output_dir:
        path = os.path.join(evaluation.output_dir, COMPARISON_FILE)
        files.write_json(path, report, ADVICE)
        terminal.info(f"written: {path}")
    return 0
