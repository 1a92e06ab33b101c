"""What `evaluate` scores, on which data: a run's encoder, or an export's."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_contrastive import (
    checkpoints,
    datasets,
    distribution,
    embedding,
    exporting,
)
from tf_contrastive.base import errors, terminal
from tf_contrastive.config import checks, fields
from tf_contrastive.config.data import Data as DataOptions
from tf_contrastive.config.data import Reading, check_pod, inherited
from tf_contrastive.config.evaluate import Evaluation, Scoring, resolve_splits
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.protocols import PROTOCOLS
from tf_contrastive.evaluation import protocols
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.data import Data
from tf_contrastive.evaluation.report import Report, check_writable
from tf_contrastive.evaluation.subject import Subject

# Of data that have no test split.
_TEST_FRACTION = 0.2
# A run that made an encoder, and the images that it was trained on.
Training = tuple[Pretrain, datasets.Source]


@dataclasses.dataclass(frozen=True)
class Setting:
    """The options and data of an evaluation, opened once.

    Attributes:
      options: with the run's splits.
      data: the splits to learn from and to score.
      strategy: whose replicas share the images.
      trainings: the runs that made the encoder, whose images are here.
      seen: what the encoder was trained on of the images to score, or "".
    """

    options: Scoring
    data: Data
    strategy: tf.distribute.Strategy
    trainings: Sequence[Training]
    seen: str

    @property
    def folder(self) -> str | None:
        """The folder of all output; None: nothing is written."""
        evaluation = self.options.evaluation
        if not distribution.is_chief(self.strategy):
            return None
        return evaluation.output_dir or evaluation.workdir or None

    def facts(self, step: int | None) -> dict[str, Any]:
        """Returns what identifies the results of a checkpoint."""
        evaluation = self.options.evaluation
        return {
            "dataset": self.data.train.info.name,
            "train_split": evaluation.train_split,
            "test_split": evaluation.test_split,
            "scale": evaluation.scale,
            "step": step,
        }

    def report(
        self, run: checkpoints.Run | None, baseline: Report | None = None
    ) -> Report:
        """Returns an empty report of a checkpoint, or of the export.

        With a `baseline`, an earlier report of the run, its results of a random
        encoder are used.
        """
        facts = self.facts(run.step if run else None)
        return Report(self.folder, facts, self.seen, baseline)

    @property
    def bad_images(self) -> Iterator[str]:
        """Names of images that could not be read."""
        for source in (self.data.train, self.data.test):
            yield from source.info.bad_images


def score(
    setting: Setting,
    run: checkpoints.Run | None,
    report: Report,
    cancellable: Callable[[Iterable], Iterable] = iter,
) -> None:
    """Scores an encoder, prints the results and writes them.

    Args:
      setting: the options and data.
      run: the run at a checkpoint; None: the export.
      report: `setting.report(run)`, which gets the results.
      cancellable: wraps iterables of images.

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
    names = checks.split_list(evaluation.protocols)
    diverged: list[str] = []
    for subject in _subjects(setting, run, report.baseline is None):
        context = EvaluationContext(
            subject,
            setting.data,
            setting.options,
            cancellable=cancellable,
            trainings=setting.trainings if subject.name == "trained" else (),
            log=terminal.info,
        )
        if not report.checksum:
            selected, report.left_out = protocols.select(context, names)
            _suggest_small_scale(selected, evaluation)
            if setting.folder:
                # Before the work, rather than after it.
                check_writable(setting.folder)
            report.checksum = embedding.checksum(subject.encoder)
        try:
            protocols.run(context, names, record=report.add)
        except errors.DivergedError as error:
            diverged.append(f"{subject.name} encoder, {error.marked}")
        if report.rows:
            report.write(finished=False)
    report.finish()
    if report.rows and distribution.is_chief(setting.strategy):
        if run:
            terminal.info(f"step {run.step:,}:")
        print(report.text(), flush=True)
    if diverged:
        raise errors.DivergedError("; ".join(diverged))


def _subjects(
    setting: Setting, run: checkpoints.Run | None, with_untrained: bool
) -> Iterator[Subject]:
    """Yields the encoders to score, one at a time."""
    evaluation, on = setting.options.evaluation, {"strategy": setting.strategy}
    if run:
        yield Subject.of_run(run, **on)
        if evaluation.untrained and with_untrained:
            yield Subject.of_run(run, trained=False, **on)
        return
    yield Subject.of_export(evaluation.saved_model, **on)
    if evaluation.untrained:
        terminal.info("no untrained baseline: only a run (--workdir) has one")


def _suggest_small_scale(names: Iterable[str], evaluation: Evaluation) -> None:
    """Logs which protocols take long without an accelerator."""
    if evaluation.scale == "cpu" or any(
        tf.config.list_logical_devices(kind) for kind in ("GPU", "TPU")
    ):
        return
    if slow := [name for name in names if PROTOCOLS[name].cpu]:
        terminal.info(
            f"no accelerator: {', '.join(slow)} at the papers' scale may take"
            " long; --scale=cpu has versions for CPUs"
        )


# ---- Data --------------------------------------------------------------------


def open_setting(
    options: Scoring,
    strategy: tf.distribute.Strategy,
    run: checkpoints.Run | None,
) -> Setting:
    """Opens the splits of a run, or of an export; checks that they match.

    Raises:
      UserError: for data that cannot be scored, see `check_seen`.
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
    open_source = functools.cache(_source)

    def opened(split: str) -> datasets.Source:
        # No classifier learns from images without a label, or is scored.
        return open_source(name, split, data_dir, reading).labelled()

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
    trainings = _trainings(options, run, open_source)
    names = checks.split_list(evaluation.protocols)
    names = [*PROTOCOLS] if "all" in names else names
    seen = ""
    for config, trained in trainings:
        is_held_out = (
            name == config.data.dataset
            and reading.test_fraction > config.reading.test_fraction
        )
        text = check_seen(config, trained, test, names, is_held_out)
        if text:
            terminal.warning(text)
        seen = text or seen
    if any(PROTOCOLS[name].learns for name in names):
        splits = "train_split", "test_split"
        if warning := datasets.check_disjoint(train, test, *splits):
            terminal.warning(warning)
    return Setting(options, Data(train, test), strategy, trainings, seen)


def _source(
    name: str, split: str, data_dir: str, reading: Reading
) -> datasets.Source:
    return datasets.source(
        name, split, data_dir=data_dir or None, reading=reading
    )


def _trainings(
    options: Scoring,
    run: checkpoints.Run | None,
    open_source: Callable[..., datasets.Source],
) -> list[Training]:
    """Returns the runs that made an encoder, with their images if here."""
    evaluation, data_dir = options.evaluation, options.evaluation.data_dir
    if run:
        makers = [*exporting.makers(run.config)]
        data_dir = data_dir or run.config.data.data_dir
    else:
        makers = [*exporting.makers_of_export(evaluation.saved_model)]
    trainings = []
    for maker in makers:
        is_own = evaluation.dataset in ("", maker.data.dataset)
        reading = maker.reading
        if is_own:
            reading = dataclasses.replace(
                inherited(options.reading, reading),
                test_fraction=reading.test_fraction,
            )
        try:
            source = open_source(
                maker.data.dataset,
                maker.data.split,
                data_dir if is_own else maker.data.data_dir,
                reading,
            )
            trainings.append((maker, source))
        except errors.UserError as error:
            terminal.info(
                "the images to score are not compared with those that the"
                f" encoder was trained on: {error}"
            )
    if not makers:
        terminal.info(
            f"{evaluation.saved_model} does not say what it was trained on: the"
            " images to score are not compared with those"
        )
    return trainings


def check_seen(
    run: Pretrain,
    trained: datasets.Source,
    test: datasets.Source,
    protocols: Iterable[str],
    is_held_out: bool,
) -> str:
    """Says which images to score the encoder was trained on, if any.

    Images that it has seen without labels are not refused, since papers on
    self-supervised learning pretrain on them, too.

    Args:
      run: of the encoder.
      trained: the images that it was trained on.
      test: to score.
      protocols: that score them.
      is_held_out: whether there were no others to score, so that they were
        held out of the run's images after it.

    Raises:
      UserError: if the encoder was trained on their labels, which protocols
        compare with its features, and there are others.
    """
    labelled = run.loss.needs_labels
    seen = datasets.find_seen(trained, test, labelled)
    scored = test.info.has_labels and any(
        PROTOCOLS[name].needs_labels for name in protocols
    )
    if seen.are_known and scored and not is_held_out:
        theirs = errors.arg("test_split", test.info.split)
        raise errors.UserError(
            f"{test.info.name}: {theirs}: {seen.text}: set another"
            f" {errors.arg('test_split')}, or repeat pretrain without them"
        )
    return seen.text
