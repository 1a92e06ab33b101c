"""Scores the encoder of a run at a checkpoint, or an export, by protocols."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import (
    checkpoints,
    datasets,
    distribution,
    embedding,
    exporting,
    tensorboard,
)
from tf_contrastive.base import errors, terminal
from tf_contrastive.config import checks, fields
from tf_contrastive.config.data import Data, Reading, check_pod, inherited
from tf_contrastive.config.evaluate import Evaluation, Scoring, resolve_splits
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.protocols import PROTOCOLS
from tf_contrastive.evaluation import (
    artifacts,
    comparison,
    judgement,
    make_context,
    protocols,
    results,
    seen_images,
)
from tf_contrastive.evaluation.context import EvaluationContext

# Subfolder of a run's TensorBoard files, shown as a run of its own.
EVENTS = "evaluation"
# Of data that have no test split.
_TEST_FRACTION = 0.2


class Scorer:
    """Scores a run at a checkpoint, or an export; prints and writes a report.

    Attributes:
      folder: folder of all output; None: nothing is written.
    """

    def __init__(
        self, options: Scoring, strategy: tf.distribute.Strategy
    ) -> None:
        self._options = options
        self._strategy = strategy
        self._is_chief = distribution.is_chief(strategy)
        evaluation = options.evaluation
        self.folder = evaluation.output_dir or evaluation.workdir or None
        if not self._is_chief:
            self.folder = None
        artifacts_folder = events = None
        if self.folder:
            artifacts_folder = os.path.join(self.folder, comparison.FOLDER)
            events = os.path.join(self.folder, tensorboard.EVENTS, EVENTS)
        self._recorder = artifacts.Recorder(artifacts_folder, events)
        self._source = functools.cache(_source)
        self._sources: tuple[datasets.Source, datasets.Source] | None = None
        self._trained: list[tuple[Pretrain, datasets.Source]] | None = None
        self._untrained_results: list[dict[str, Any]] = []
        self._judgement = judgement.Judgement()

    @property
    def bad_images(self) -> Iterator[str]:
        """Names of images that could not be read."""
        for source in self._sources or ():
            yield from source.info.bad_images

    def __call__(
        self,
        run: checkpoints.Run | None,
        *,
        untrained: bool = True,
        cancellable: Callable[[Iterable], Iterable] = iter,
    ) -> dict[str, Any]:
        """Scores, prints and writes; returns `evaluation.json` without history.

        Args:
          run: the run at a checkpoint; None: the export.
          untrained: whether to score a random encoder, if the options ask for
            it; False: reuse its previous results.
          cancellable: wraps iterables of images.

        Raises:
          DivergedError: at the end, if the training of some results diverged.
        """
        self._options = resolve_splits(
            self._options, run.config.data if run else None
        )
        sources = self._sources = self._sources or self._open(run)
        train, test = sources
        distribution.check_same(
            self._strategy,
            fields.common(self._options),
            {
                "the training split": train.content,
                "the test split": test.content,
            },
        )
        self._recorder.step = run.step if run else 0
        names = checks.split_list(self._options.evaluation.protocols)
        rows: list[dict[str, Any]] = []
        report: dict[str, Any] = {}
        diverged: list[str] = []

        def record(
            context: EvaluationContext,
            new_rows: list[dict[str, Any]],
            parts: list[results.Measurement],
        ) -> None:
            self._recorder(context, new_rows, parts)
            self._judgement.add(context, new_rows, parts)
            rows.extend(new_rows)
            if self.folder:
                protocol = new_rows[0]["protocol"]
                results.write(
                    self.folder, report, finished=False, unfinished=protocol
                )

        for context in self._contexts(run, sources, untrained, cancellable):
            if not report:
                selected, left_out = protocols.select(context, names)
                _suggest_small_scale(selected, self._options.evaluation)
                if self.folder:
                    # Before the work, rather than after it.
                    results.check_writable(self.folder)
                report = {
                    "dataset": sources[0].info.name,
                    "train_split": self._options.evaluation.train_split,
                    "test_split": self._options.evaluation.test_split,
                    "scale": self._options.evaluation.scale,
                    "step": run.step if run else None,
                    "checksum": embedding.checksum(context.subject.encoder),
                    "seen": self._recorder.seen,
                    "left_out": left_out,
                    "results": rows,
                }
            try:
                protocols.run(context, names, record=record)
            except errors.DivergedError as error:
                diverged.append(
                    f"{context.subject.name} encoder, {error.marked}"
                )
            if self.folder and rows:
                results.write(self.folder, report, finished=False)
        if untrained:
            self._untrained_results = [
                row for row in rows if row["encoder"] == "untrained"
            ]
        else:
            rows += self._untrained_results
        if self.folder and rows:
            results.write(self.folder, report)
        if self._is_chief and rows:
            _print(report, self._judgement.line())
        if self.folder and rows:
            path = os.path.join(self.folder, results.RESULTS_FILE)
            terminal.info(f"written: {path}")
        if diverged:
            raise errors.DivergedError("; ".join(diverged))
        return report

    def _open(
        self, run: checkpoints.Run | None
    ) -> tuple[datasets.Source, datasets.Source]:
        """Opens the two splits, and checks that they match."""
        evaluation = self._options.evaluation
        name, data_dir = evaluation.dataset, evaluation.data_dir
        reading = self._options.reading
        if run:
            name = name or run.config.data.dataset
            if name == run.config.data.dataset:
                reading = inherited(reading, run.config.reading)
            data_dir = data_dir or run.config.data.data_dir
        if distribution.is_pod(self._strategy):
            check_pod(evaluation.workdir, Data(dataset=name, data_dir=data_dir))

        def opened(split: str) -> datasets.Source:
            # No classifier learns from images without a label, or is scored.
            return self._source(name, split, data_dir, reading).labelled()

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
        names = checks.split_list(evaluation.protocols)
        names = [*PROTOCOLS] if "all" in names else names
        for config, trained in self._trainings(run):
            seen = seen_images.of_encoder(
                config,
                trained,
                test,
                names,
                are_held_out=name == config.data.dataset
                and reading.test_fraction > config.reading.test_fraction,
            )
            if seen:
                self._recorder.seen = seen
                terminal.warning(seen)
        seen_images.check(train, test, names)
        return train, test

    def _trainings(
        self, run: checkpoints.Run | None
    ) -> list[tuple[Pretrain, datasets.Source]]:
        """Returns the runs that made an encoder, with their images."""
        if self._trained is None:
            path = self._options.evaluation.saved_model
            configs, data_dir = exporting.makers_of_export(path), ""
            if run:
                configs = exporting.makers(run.config)
                data_dir = run.config.data.data_dir
            opened = [(c, self._trained_on(c, data_dir)) for c in configs]
            self._trained = [(c, source) for c, source in opened if source]
            if not opened:
                terminal.info(
                    f"{path} does not say what it was trained on: the images to"
                    " score are not compared with those"
                )
        return self._trained

    def _trained_on(
        self, run: Pretrain, data_dir: str
    ) -> datasets.Source | None:
        """Opens what a run was trained on, if it is here."""
        data_dir = self._options.evaluation.data_dir or data_dir
        own = self._options.evaluation.dataset in ("", run.data.dataset)
        reading = run.reading
        if own:
            reading = inherited(self._options.reading, reading)
        try:
            return self._source(
                run.data.dataset,
                run.data.split,
                data_dir if own else run.data.data_dir,
                dataclasses.replace(
                    reading, test_fraction=run.reading.test_fraction
                ),
            )
        except errors.UserError as error:
            terminal.info(
                "the images to score are not compared with those that the"
                f" encoder was trained on: {error}"
            )
            return None

    def _contexts(
        self,
        run: checkpoints.Run | None,
        sources: tuple[datasets.Source, datasets.Source],
        untrained: bool,
        cancellable: Callable[[Iterable], Iterable],
    ) -> Iterator[EvaluationContext]:
        """Yields the encoders to score, one at a time."""
        evaluation = self._options.evaluation
        data = (*sources, self._options)
        hooks: Any = {
            "strategy": self._strategy,
            "cancellable": cancellable,
            "log": terminal.info,
        }
        trainings = functools.partial(self._trainings, run)
        if not run:
            yield make_context.from_export(
                evaluation.saved_model, *data, trainings=trainings, **hooks
            )
            if evaluation.untrained:
                terminal.info(
                    "no untrained baseline: only a run (--workdir) has one"
                )
            return
        yield make_context.from_run(run, *data, trainings=trainings, **hooks)
        if evaluation.untrained and untrained:
            yield make_context.from_run(run, *data, trained=False, **hooks)


def _source(
    name: str, split: str, data_dir: str, reading: Reading
) -> datasets.Source:
    return datasets.source(
        name, split, data_dir=data_dir or None, reading=reading
    )


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


def _print(report: dict[str, Any], judged: str) -> None:
    if report["step"] is not None:
        terminal.info(f"step {report['step']:,}:")
    print(results.table(report["results"]))
    for line in results.metric_lines(report["results"]):
        print(line)
    for name, reason in report["left_out"].items():
        print(f"left out: {name} ({reason})")
    if report["seen"]:
        print(f"warning: {report['seen']}")
    checksum = report["checksum"][:12]
    print(f"encoder checksum unchanged: {checksum}")
    if judged:
        print(judged, flush=True)
