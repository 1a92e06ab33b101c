"""`evaluate`: scores the encoder of a run, or an export, by named protocols."""

import dataclasses
import os
import string
from typing import TYPE_CHECKING, ClassVar

from tf_contrastive.base import files, terminal
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config import checks
from tf_contrastive.config.evaluate import Evaluation, Scoring
from tf_contrastive.config.fields import Terminal, group, option
from tf_contrastive.config.runtime import STRATEGIES, Devices

if TYPE_CHECKING:
    import tensorflow as tf

COMPARISON_FILE = "comparison.json"
_LETTERS = string.ascii_uppercase


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
        from tf_contrastive.evaluation import scorer as scoring
        from tf_contrastive.evaluation import watch

    evaluation = options.evaluation
    if evaluation.compare:
        return _compare(evaluation)
    with distribution.failures.reported():
        scorer = scoring.Scorer(options, _strategy(options))
        if evaluation.watch:
            return watch.Watch(options, scorer.folder, scorer)()
        workdir = evaluation.workdir
        if workdir:
            checkpoints.load(workdir, scorer)
        else:
            scorer(None)
    for name in scorer.bad_images:
        terminal.info(f"left out, cannot be read: {name}")
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


def _compare(evaluation: Evaluation) -> int:
    """Prints which of each two encoders is better, by each protocol."""
    from tf_contrastive.evaluation import comparison, results

    names = checks.split_list(evaluation.compare)
    report = comparison.compare_all(names, evaluation.seed)
    letters = dict(zip(names, _LETTERS, strict=False))
    headings = ("protocol", "version", "encoders", "the first is")
    numbers = ("first", "second", "difference", "95 %", "p", "images")
    rows = [
        (
            results.row_name(row),
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
            f" {results.row_name(row)} ({row['reason']})"
        )
    print(
        "better, worse: the 95 % interval of a paired bootstrap excludes 0, and"
        " a paired permutation test has p <= 0.05"
        + " by Holm's correction for the pairs of a protocol" * (len(names) > 2)
        + "; otherwise tied"
    )
    if evaluation.output_dir:
        path = os.path.join(evaluation.output_dir, COMPARISON_FILE)
        files.write_json(path, report, results.ADVICE)
        terminal.info(f"written: {path}")
    return 0
