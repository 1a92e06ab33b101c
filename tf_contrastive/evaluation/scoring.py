"""What `evaluate` scores, on which data: a run's encoder, or an export's.

`open_setting` opens the data once; `score` measures one encoder on them, and
prints and writes its report.
"""

import dataclasses
from collections.abc import Iterator

import tensorflow as tf

from tf_contrastive import checkpoints, datasets, distribution
from tf_contrastive.base import errors, terminal
from tf_contrastive.config.data import Data as DataOptions
from tf_contrastive.config.data import Reading, check_pod
from tf_contrastive.config.evaluate import Scoring, resolve_splits
from tf_contrastive.config.protocols import PROTOCOLS
from tf_contrastive.evaluation import protocols
from tf_contrastive.evaluation.context import Data, EvaluationContext
from tf_contrastive.evaluation.report import Report
from tf_contrastive.evaluation.subject import Subject


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

    def report(self, step: int | None) -> Report:
        """Returns the report of a checkpoint, which the chief writes."""
        evaluation, folder = self.options.evaluation, None
        if distribution.is_chief(self.strategy):
            folder = evaluation.output_dir or evaluation.workdir or None
        facts = {
            "dataset": self.data.train.info.name,
            "train_split": evaluation.train_split,
            "test_split": evaluation.test_split,
            "scale": evaluation.scale,
            "step": step,
        }
        return Report(folder, facts)


def score(setting: Setting, run: checkpoints.Run | None) -> None:
    """Scores an encoder, prints the results and writes them.

    Args:
      setting: the options and data.
      run: the run at a checkpoint; None: the export.

    Raises:
      DivergedError: at the end, if the training of some results diverged.
    """
    distribution.check_same(
        setting.strategy,
        setting.options.shared_options(),
        {
            "the training split": setting.data.train.content,
            "the test split": setting.data.test.content,
        },
    )
    names = setting.options.evaluation.protocols
    diverged: list[str] = []
    report = setting.report(run.step if run else None)
    for subject in _subjects(setting, run):
        context = EvaluationContext(
            subject, setting.data, setting.options, log=terminal.info
        )
        try:
            protocols.run(context, names, report)
        except errors.DivergedError as error:
            diverged.append(f"{subject.name} encoder, {error.marked}")
    report.write()
    if report.rows and distribution.is_chief(setting.strategy):
        if run:
            terminal.info(f"step {run.step:,}:")
        print(report.text(), flush=True)
    for source in (setting.data.train, setting.data.test):
        for name in source.info.bad_images:
            terminal.info(f"left out, cannot be read: {name}")
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
    config = run.config if run else None
    options = resolve_splits(options, config.data if config else None)
    evaluation, reading = options.evaluation, options.reading
    name, data_dir = evaluation.dataset, evaluation.data_dir
    if config:
        name, data_dir, reading = config.input(name, data_dir, reading)
    if distribution.is_pod(strategy):
        check_pod(
            evaluation.workdir, DataOptions(dataset=name, data_dir=data_dir)
        )

    def opened(split: str, reading: Reading = reading) -> datasets.Source:
        source = datasets.source(
            name, split, data_dir=data_dir or None, reading=reading
        )
        # No classifier learns from images without a label, or is scored.
        return source.labelled()

    train, test = map(opened, (evaluation.train_split, evaluation.test_split))
    if train.info.has_labels and test.info.has_labels:
        info = datasets.check_scorable(train.info, test.info)
        test = dataclasses.replace(test, info=info)
    names = evaluation.protocols
    wanted = [
        protocol
        for key, protocol in PROTOCOLS.items()
        if key in names or "all" in names
    ]
    warning = None
    if (
        config
        and config.data.dataset == name
        and config.learns_labels
        and any(protocol.needs_labels for protocol in wanted)
    ):
        learned, own = train, config.data.split
        if (own, config.reading) != (evaluation.train_split, reading):
            learned = opened(own, config.reading)
        warning = datasets.check_disjoint(learned, test)
    if any(protocol.learns for protocol in wanted):
        splits = "train_split", "test_split"
        warning = datasets.check_disjoint(train, test, *splits) or warning
    if warning:
        terminal.warning(str(warning))
    return Setting(options, Data(train, test), strategy)
