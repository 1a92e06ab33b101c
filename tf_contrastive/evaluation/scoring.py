"""What `evaluate` scores, on which data: a run's encoder, or an export's.

`open_setting` opens the data once; `score` measures one encoder on them, and
prints and writes its report.
"""

import dataclasses
from collections.abc import Iterator

import tensorflow as tf

from tf_contrastive import checkpoints, datasets, distribution
from tf_contrastive.base import errors, terminal
from tf_contrastive.config import fields
from tf_contrastive.config.data import Data as DataOptions
from tf_contrastive.config.data import check_pod, inherited
from tf_contrastive.config.evaluate import Scoring, resolve_splits
from tf_contrastive.config.protocols import PROTOCOLS
from tf_contrastive.evaluation import protocols
from tf_contrastive.evaluation.context import Data, EvaluationContext
from tf_contrastive.evaluation.report import Report
from tf_contrastive.evaluation.subject import Subject

# Of data that have no test split.
_TEST_FRACTION = 0.2


@dataclasses.dataclass(frozen=True)
class Setting:
    """The options and data of an evaluation, opened once.

    Attributes:
      options: with the run's splits.
      data: the splits to learn from and to score.
      strategy: whose replicas share the images.
    """

    options: Scoring
    data: Data
    strategy: tf.distribute.Strategy

    @property
    def folder(self) -> str | None:
        """The folder of all output; None: nothing is written."""
        evaluation = self.options.evaluation
        if not distribution.is_chief(self.strategy):
            return None
        return evaluation.output_dir or evaluation.workdir or None

    def facts(self, step: int | None) -> dict[str, object]:
        """Returns what identifies the results of a checkpoint."""
        evaluation = self.options.evaluation
        return {
            "dataset": self.data.train.info.name,
            "train_split": evaluation.train_split,
            "test_split": evaluation.test_split,
            "scale": evaluation.scale,
            "step": step,
        }


def score(setting: Setting, run: checkpoints.Run | None) -> None:
    """Scores an encoder, prints the results and writes them.

    Args:
      setting: the options and data.
      run: the run at a checkpoint; None: the export.

    Raises:
      DivergedError: at the end, if the training of some results diverged.
    """
    evaluation = setting.options.evaluation
    distribution.check_same(
        setting.strategy,
        fields.common(setting.options),
        {
            "the training split": setting.data.train.content,
            "the test split": setting.data.test.content,
        },
    )
    names = evaluation.protocols
    diverged: list[str] = []
    facts = setting.facts(run.step if run else None)
    report = Report(setting.folder, facts)
    for subject in _subjects(setting, run):
        context = EvaluationContext(
            subject,
            setting.data,
            setting.options,
            log=terminal.info,
        )
        try:
            protocols.run(context, names, report)
        except errors.DivergedError as error:
            diverged.append(f"{subject.name} encoder, {error.marked}")
        report.write(finished=False)
    report.write()
    if report.rows and distribution.is_chief(setting.strategy):
        if run:
            terminal.info(f"step {run.step:,}:")
        print(report.text(), flush=True)
    if diverged:
        raise errors.DivergedError("; ".join(diverged))


def _subjects(
    setting: Setting, run: checkpoints.Run | None
) -> Iterator[Subject]:
    """Yields the encoders to score, one at a time."""
    evaluation, strategy = setting.options.evaluation, setting.strategy
    if run is None:
        yield Subject.of_export(evaluation.saved_model, strategy=strategy)
        return
    yield Subject.of_run(run, strategy=strategy)
    if evaluation.untrained and not evaluation.watch:
        yield Subject.of_run(run, trained=False, strategy=strategy)


# ---- Data --------------------------------------------------------------------


def open_setting(
    options: Scoring,
    strategy: tf.distribute.Strategy,
    run: checkpoints.Run | None,
) -> Setting:
    """Opens the splits of a run, or of an export; checks that they match.

    Raises:
      UserError: for data that cannot be scored, such as images that a
        classifier, or the run with their labels, learns from.
    """
    options = resolve_splits(options, run.config.data if run else None)
    evaluation, reading = options.evaluation, options.reading
    name, data_dir = evaluation.dataset, evaluation.data_dir
    if run:
        name = name or run.config.data.dataset
        if name == run.config.data.dataset:
            reading = inherited(reading, run.config.reading)
        data_dir = data_dir or run.config.data.data_dir
    if distribution.is_pod(strategy):
        check_pod(
            evaluation.workdir, DataOptions(dataset=name, data_dir=data_dir)
        )

    def opened(split: str) -> datasets.Source:
        source = datasets.source(
            name, split, data_dir=data_dir or None, reading=reading
        )
        # No classifier learns from images without a label, or is scored.
        return source.labelled()

    splits = evaluation.train_split, evaluation.test_split
    try:
        train, test = map(opened, splits)
    except errors.AbsentSplitError:
        if splits != ("train", "test"):
            raise
        reading = dataclasses.replace(reading, test_fraction=_TEST_FRACTION)
        # First test: data of which nothing is held out still lack it.
        test, train = map(opened, reversed(splits))
        terminal.warning(
            f"{name} has no split test: scoring {_TEST_FRACTION:.0%} of the"
            " images of each class, on which the encoder may have been"
            " trained; set"
            f" {errors.arg('test_fraction', format(_TEST_FRACTION, 'g'))}"
            " in pretrain to hold them out"
        )
    if train.info.has_labels and test.info.has_labels:
        info = datasets.check_scorable(train.info, test.info)
        test = dataclasses.replace(test, info=info)
    names = evaluation.protocols
    wanted = [PROTOCOLS[x] for x in names if x != "all"]
    wanted = [*PROTOCOLS.values()] if "all" in names else wanted
    config = run.config if run else None
    if (
        config
        and config.data.dataset == name
        and config.loss.needs_labels
        and any(protocol.needs_labels for protocol in wanted)
    ):
        own = config.data.split
        learned = train if own == evaluation.train_split else opened(own)
        datasets.check_disjoint(learned, test)
    if any(protocol.learns for protocol in wanted):
        splits = "train_split", "test_split"
        if warning := datasets.check_disjoint(train, test, *splits):
            terminal.warning(str(warning))
    return Setting(options, Data(train, test), strategy)
