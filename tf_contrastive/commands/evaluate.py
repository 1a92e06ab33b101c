"""`evaluate`: scores the encoder of a run, or an export, by named protocols."""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, datasets, errors, terminal, training
from tf_contrastive.commands import extensions, watch
from tf_contrastive.config import fields
from tf_contrastive.config.data import stand_in, standing_in, whole
from tf_contrastive.config.evaluate import (
    Evaluate,
    Evaluation,
    evaluate,
    read_sides,
)
from tf_contrastive.config.smoke import smoke_evaluation
from tf_contrastive.evaluation import (
    comparison,
    opening,
    protocols,
    records,
    reports,
)
from tf_contrastive.evaluation.subject import Subject

COMPARISON_FILE = "comparison.json"
# Under the run's folder of TensorBoard's files, where it is a run of its own.
EVENTS = "evaluation"


def run(options: Evaluate) -> int:
    """Prints a table of accuracies and writes `<workdir>/evaluation.json`.

    Arrays and plots go into `<workdir>/evaluation/`, points and plots for
    TensorBoard into `<workdir>/events/evaluation/`. An export (`--saved_model`)
    is scored without a file, unless there is an `--output_dir`: its folder
    belongs to whoever serves it.

    Args:
      options: validated.

    Returns:
      0.

    Raises:
      UserError: for no run or export, no checkpoint yet, or data that cannot
        be scored.
    """
    extensions.add_papers()
    chosen = options.evaluation
    if chosen.compare:
        return _compare(chosen)
    if chosen.smoke:
        options = _shrunk(options)
        options.validate()
        chosen = options.evaluation
    scores = _Scores(options)
    if chosen.watch:
        return watch.Watch(options, scores.place, scores)()
    found = checkpoints.load_run(chosen.workdir) if chosen.workdir else None
    scores(found)
    for bad in scores.bad_images:
        terminal.info(f"left out, cannot be read: {bad}")
    return 0


def _shrunk(options: Evaluate) -> Evaluate:
    """Makes what `--smoke` does of the options, and says how they differ."""
    chosen = options.evaluation
    name, data_dir = chosen.dataset, chosen.data_dir
    if chosen.workdir:
        data = checkpoints.load_run(chosen.workdir).config.data
        name, data_dir = name or data.dataset, data_dir or data.data_dir
    train = whole(chosen.train_split)
    test = whole(chosen.test_split)
    try:
        counts = _counts(name, data_dir, train, test)
    except errors.AbsentDataError:
        terminal.info(f"smoke: {standing_in(name)}")
        name, train, test = stand_in(name), "train", "test"
        counts = _counts(name, data_dir, train, test)
    small = smoke_evaluation(
        options,
        dataset=name,
        train=(train, counts[0]),
        test=(test, counts[1]),
    )
    before = fields.replace(options, smoke=False)
    changes = fields.differences(before, small)
    terminal.info(
        f"smoke: {len(changes)} smaller options, such as"
        f" {', '.join(changes[:4])}"
    )
    return small


def _counts(name: str, data_dir: str, *splits: str) -> list[int]:
    """How many examples each split of a dataset has."""
    opened = (
        datasets.source(name, split, data_dir=data_dir or None)
        for split in splits
    )
    return [source.info.num_examples for source in opened]


class _Scores:
    """Scores a run at a checkpoint, or an export; shows and keeps the report.

    Attributes:
      place: folder of all that is written; None: nothing is.
    """

    def __init__(self, options: Evaluate) -> None:
        self._options = options
        chosen = options.evaluation
        self.place = chosen.output_dir or chosen.workdir or None
        self._folder = self._events = None
        if self.place:
            self._folder = os.path.join(self.place, comparison.FOLDER)
            self._events = os.path.join(self.place, training.EVENTS, EVENTS)
        self._recorder = records.Recorder(self._folder, self._events)
        self._opened: tuple[datasets.Source, ...] | None = None
        self._of_untrained: list[dict[str, Any]] = []

    @property
    def bad_images(self) -> Iterator[str]:
        """Names of images that could not be read."""
        for source in self._opened or ():
            yield from source.info.bad_images

    def __call__(
        self,
        found: checkpoints.Run | None,
        *,
        untrained: bool = True,
        heed: Callable[[Iterable], Iterable] = iter,
    ) -> dict[str, Any]:
        """Scores, shows and keeps.

        Args:
          found: the run at a checkpoint; None: the export.
          untrained: whether to score a random encoder, too, if that is wanted;
            False: the one before stands for it.
          heed: wraps walks over images.

        Returns:
          What is written to `evaluation.json`, but for the history.
        """
        chosen = self._options.evaluation
        self._opened = self._opened or self._open(found)
        self._recorder.step = found.step if found else 0
        results, first = [], None
        for subject in self._subjects(found, untrained, heed):
            names = fields.split_list(chosen.protocols)
            if first is None:
                wanted, _ = protocols.choose(subject, names)
                _hint(wanted, chosen)
                if self.place:
                    # Now, lest what took long be lost.
                    reports.check(self.place)
            part = protocols.run(subject, names, record=self._recorder)
            results += part["results"]
            first = first or part
            # After each, lest what took long be lost with the next.
            report = self._report(found, first, results)
        if untrained:
            of = [r for r in results if r["encoder"] == "untrained"]
            self._of_untrained = of
        elif self._of_untrained:
            report = self._report(found, first, results + self._of_untrained)
        _show(report)
        if self.place:
            path = os.path.join(self.place, reports.RESULTS_FILE)
            terminal.info(f"written: {path}")
        return report

    def _report(
        self,
        found: checkpoints.Run | None,
        first: dict[str, Any],
        results: list[dict[str, Any]],
    ) -> dict[str, Any]:
        """Puts a report together, and keeps it where there is a place."""
        chosen = self._options.evaluation
        report = {
            "dataset": self._opened[0].info.name,
            "train_split": chosen.train_split,
            "test_split": chosen.test_split,
            "scale": chosen.scale,
            "step": found.step if found else None,
            "checksum": first["checksum_after"],
            "left_out": first["left_out"],
            "results": results,
        }
        if self.place:
            reports.write(self.place, report)
        return report

    def _open(
        self, found: checkpoints.Run | None
    ) -> tuple[datasets.Source, datasets.Source]:
        """Opens the two splits, and checks that they belong together."""
        chosen = self._options.evaluation
        name, data_dir = chosen.dataset, chosen.data_dir
        if found:
            name = name or found.config.data.dataset
            data_dir = data_dir or found.config.data.data_dir
        train, test = (
            datasets.source(name, split, data_dir=data_dir or None)
            for split in (chosen.train_split, chosen.test_split)
        )
        if train.info.has_labels and test.info.has_labels:
            training.check_scored(train.info, test.info)
        return train, test

    def _subjects(
        self,
        found: checkpoints.Run | None,
        untrained: bool,
        heed: Callable[[Iterable], Iterable],
    ) -> Iterator[Subject]:
        """Yields what is scored, one at a time."""
        chosen = self._options.evaluation
        data = (*self._opened, self._options)
        others = {"folder": self._folder, "heed": heed, "say": terminal.info}
        if not found:
            yield opening.of_export(chosen.saved_model, *data, **others)
            if chosen.untrained:
                terminal.info(
                    "no untrained baseline: only a run (--workdir) has one"
                )
            return
        yield opening.of_run(found, *data, **others)
        if chosen.untrained and untrained:
            yield opening.of_run(found, *data, trained=False, **others)


def _hint(names: Iterable[str], chosen: Evaluation) -> None:
    """Tells whoever waits on a CPU that they need not."""
    if chosen.scale == "cpu" or any(
        tf.config.list_logical_devices(kind) for kind in ("GPU", "TPU")
    ):
        return
    small = evaluate(scale="cpu")
    slow = [
        name
        for name in names
        if "-" in protocols.PROTOCOLS[name].version_of(small)
    ]
    if slow:
        terminal.info(
            f"no accelerator: {', '.join(slow)} at the papers' scale may take"
            " long; --scale=cpu has versions for CPUs"
        )


def _show(report: dict[str, Any]) -> None:
    if report["step"] is not None:
        terminal.info(f"step {report['step']:,}:")
    print(reports.table(report["results"]))
    for line in reports.numbers(report["results"]):
        print(line)
    for name, reason in report["left_out"].items():
        print(f"left out: {name} ({reason})")
    checksum = report["checksum"][:12]
    print(f"encoder checksum unchanged: {checksum}", flush=True)


def _compare(chosen: Evaluation) -> int:
    """Prints which of two encoders is better, by each protocol."""
    a, b = read_sides(chosen.compare)
    report = comparison.compare(a, b, chosen.seed)
    headings = ("protocol", "version", "A is", "A", "B", "A - B", "95 %", "p")
    rows = [
        (
            records.name_of(result),
            result["version"],
            result["verdict"],
            f"{result['top1_a']:.4f}",
            f"{result['top1_b']:.4f}",
            f"{result['difference']:+.4f}",
            f"{result['low']:+.4f}..{result['high']:+.4f}",
            f"{result['p_value']:.5f}",
            f"{result['examples']:,}",
        )
        for result in report["results"]
    ]
    print(f"A: {a}\nB: {b}")
    print(terminal.format_table([(*headings, "images"), *rows], texts=range(3)))
    for left in report["left_out"]:
        print(f"left out: {records.name_of(left)} ({left['reason']})")
    print(
        "better, worse: the 95 % interval of a paired bootstrap leaves 0 out,"
        " and a paired permutation test has p <= 0.05; else tied"
    )
    if chosen.output_dir:
        path = os.path.join(chosen.output_dir, COMPARISON_FILE)
        reports.write_json(path, report)
        terminal.info(f"written: {path}")
    return 0
