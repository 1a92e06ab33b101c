"""The report of an evaluation: its rows, files and table.

`Report.add` writes each result as soon as it is measured:
- `evaluation.json`: the latest results, and a history: for each evaluated
  checkpoint, its numbers once;
- `evaluation/<encoder>-<protocol>.npz`: for each variant of a protocol, which
  test examples were classified correctly, and the facts that say whether two
  evaluations used the same examples (`comparison` reads them);
- `evaluation/<encoder>-<protocol>-<plot>.png`;
- the same numbers for TensorBoard, under `events/evaluation/`.
"""

import functools
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypedDict

import numpy as np
import tensorflow as tf

from tf_contrastive import checkpoints, tensorboard
from tf_contrastive.base import files, terminal
from tf_contrastive.config.dataset import canonical
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.protocols import PROTOCOLS
from tf_contrastive.evaluation import figures, statistics
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.tensorboard import hparams

RESULTS_FILE = "evaluation.json"
# Subfolder of arrays and plots, and of TensorBoard's files, where it is shown
# as a run of its own.
FOLDER = "evaluation"
ADVICE = "set `output_dir` to a folder that you may write"
# The npz entry that describes the other entries, in JSON.
ABOUT = "about"
# Metrics: the accuracy of each class (None: not in the split), and their mean.
_BY_CLASS, _BALANCED = "class_accuracies", "balanced_accuracy"
# Of so many classes the five most likely say little.
_FEW = 10
_DOTS_PER_INCH = 120
# Two history entries with equal values of these describe the same checkpoint.
_KEYS = ("step", "dataset", "train_split", "test_split")
# The accuracies of the default protocols are columns of the HParams page.
_DEFAULTS = Evaluation.protocols


# The forms that readers of the file rely on.
_INTERVAL = (list, type(None))
ROW_FORM = {
    "encoder": str,
    "protocol": str,
    "variant": str,
    "version": str,
    "top1": files.NUMBER_OR_NONE,
    "top1_interval": _INTERVAL,
    "top5": files.NUMBER_OR_NONE,
    "top5_interval": _INTERVAL,
    "examples": int,
    "seconds": (int, float),
    "metrics": dict,
}
_FORM = {
    "results": [ROW_FORM],
    "history": [
        {
            "step": (int, type(None)),
            "checksum": str,
            "protocols": dict,
            "metrics": dict,
        }
    ],
}


class Measurement(TypedDict, total=False):
    """Result of a protocol; each protocol sets the fields that it has."""

    top1: float
    top5: float
    loss: float  # Mean training loss of the last epoch, in nats.
    metrics: dict[str, Any]  # Numbers, lists of numbers, or None.
    predictions: np.ndarray  # Int [n], class ids.
    correct: np.ndarray  # For each scored example, bool or a fraction [n].
    correct5: np.ndarray
    labels: np.ndarray  # [n] or [n, C], if other examples than the test split.
    dataset: str  # Name of the dataset, if other examples are scored.
    learns: bool  # Whether it learnt from train, if not as declared.
    plots: dict[str, Any]  # Figures of matplotlib.
    arrays: dict[str, np.ndarray]  # To be saved.
    # What the protocol chose by the available data: results compare only where
    # it is equal.
    resolved: dict[str, Any]


# Measures one of several results of a protocol.
Part = Callable[[], Measurement]


# ---- Rows --------------------------------------------------------------------


def result_row(
    context: EvaluationContext,
    facts: dict[str, Any],
    part: Measurement,
    seconds: float,
) -> dict[str, Any]:
    """Makes one row of the results; `facts` are its first fields."""
    correct = part.get("correct")
    scored = correct if correct is not None else part.get("labels")
    intervals = {
        name: statistics.interval(hits)
        for name, hits in (("top1", correct), ("top5", part.get("correct5")))
        if hits is not None
    }
    row = {
        "encoder": context.subject.name,
        **facts,
        "top1": part.get("top1"),
        "top1_interval": intervals.get("top1"),
        "top5": part.get("top5"),
        "top5_interval": intervals.get("top5"),
        "metrics": part.get("metrics", {}) | _by_class(context, part),
        "examples": context.data.test.info.num_examples
        if scored is None
        else len(scored),
        "seconds": round(seconds, 3),
    }
    if "dataset" in part:
        row["dataset"] = part["dataset"]
    return files.as_json(row)


def _scored_labels(context: EvaluationContext, part: Measurement) -> np.ndarray:
    """Returns the labels of the examples that a measurement scored, [n]."""
    labels = part.get("labels")
    return context.data.labels("test") if labels is None else labels


def _by_class(context: EvaluationContext, part: Measurement) -> dict[str, Any]:
    """Returns accuracies by class, and their mean, if each answer is known."""
    if "predictions" not in part:
        return {}
    labels = _scored_labels(context, part)
    classes, index = np.unique(labels, return_inverse=True)
    hits = np.bincount(index, part["correct"], minlength=len(classes))
    accuracies = np.full([classes.max() + 1], np.nan)
    accuracies[classes] = hits / np.bincount(index)
    return {_BALANCED: float(np.nanmean(accuracies)), _BY_CLASS: accuracies}


def row_name(row: Mapping[str, Any]) -> str:
    """Returns a row's protocol and variant, such as "knn k=1"."""
    return " ".join(filter(None, (row["protocol"], row["variant"])))


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns TensorBoard tag -> number; tags start with the encoder's name."""
    prefix = [row["encoder"], row["protocol"], row["variant"]]
    values = {"top1": row["top1"], "top5": row["top5"], **row["metrics"]}
    return {
        "/".join(filter(None, (*prefix, name))): float(value)
        for name, value in values.items()
        if isinstance(value, (int, float))
    }


# ---- The report --------------------------------------------------------------


class Report:
    """Results of one checkpoint of a run, or of an export.

    Attributes:
      rows: the results, see `result_row`.
      left_out: protocol -> what it lacks.
      checksum: of the first encoder.
    """

    def __init__(
        self, folder: str | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Prepares the report; nothing is written if `folder` is None.

        Args:
          folder: of all output.
          facts: "dataset", "train_split", "test_split", "scale", "step".
        """
        self.rows: list[dict[str, Any]] = []
        self.left_out: dict[str, str] = {}
        self.checksum = self._measured = ""
        self._folder = folder
        self._facts = dict(facts or {})
        # Encoder and protocol of the current npz file, and its content so far.
        self._current: tuple[str, ...] = ()
        self._about: dict[str, dict[str, Any]] = {}
        self._entries: dict[str, Any] = {}

    @functools.cached_property
    def _writer(self) -> tf.summary.SummaryWriter:
        assert self._folder
        events = os.path.join(self._folder, tensorboard.EVENTS, FOLDER)
        return tf.summary.create_file_writer(events)

    def begin(self, checksum: str, left_out: dict[str, str]) -> None:
        """Takes the checksum of the encoder whose results follow.

        The first encoder's, and what it leaves out, are those of the report.
        Raises `UserError` if the results could not be written: before the work,
        rather than after it.
        """
        self._measured = checksum
        if not self.checksum:
            self.checksum, self.left_out = checksum, left_out
            if self._folder:
                read(self._folder)
                path = os.path.join(self._folder, RESULTS_FILE)
                files.check_writable(path, ADVICE)
                files.remove_leftovers(os.path.join(self._folder, FOLDER))

    def add(
        self,
        context: EvaluationContext,
        facts: dict[str, Any],
        part: Measurement,
        seconds: float,
    ) -> dict[str, Any]:
        """Adds and writes one result; see `result_row`, which is returned.

        Consecutive results of a protocol are in one npz file.
        """
        row = result_row(context, facts, part, seconds)
        self.rows.append(row)
        if self._folder:
            self._save(self._folder, context, row, part)
            self._summarize(self._folder, context, row)
            self.write(finished=False)
        return row

    # ---- Files ----

    def write(self, *, finished: bool = True) -> None:
        """Writes `evaluation.json`, if there are results and a folder.

        Results that are not `finished` do not replace finished ones, so that a
        killed evaluation leaves the previous results: they only add to the
        history, which does not list the last one's protocol as measured.
        """
        if not (self._folder and self.rows):
            return
        unfinished = "" if finished else self.rows[-1]["protocol"]
        entry = {
            **{key: self._facts[key] for key in _KEYS},
            "checksum": self.checksum,
            "protocols": {
                f"{row['protocol']}@{row['version']}": row["hyperparameters"]
                for row in self.rows
                if row["protocol"] != unfinished
            },
            "metrics": {
                tag: value
                for row in self.rows
                for tag, value in scalars(row).items()
            },
        }
        # Another evaluation, such as one with `watch`, may write its own entry.
        with checkpoints.FolderLock(
            self._folder, "evaluation", wait_seconds=60.0
        ):
            content, others = read(self._folder), []
            for previous in content.get("history", []):
                if not self._is_of(previous):
                    others.append(previous)
                elif previous["checksum"] == entry["checksum"]:
                    for field in ("protocols", "metrics"):
                        entry[field] = previous[field] | entry[field]
            history = sorted([*others, entry], key=lambda e: e["step"] or 0)
            if finished or not content.get("finished", "results" in content):
                content = {
                    **self._facts,
                    "checksum": self.checksum,
                    "left_out": self.left_out,
                    "results": self.rows,
                    "finished": finished,
                }
            path = os.path.join(self._folder, RESULTS_FILE)
            files.write_json(path, content | {"history": history}, ADVICE)

    def _is_of(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry of the history is of this checkpoint."""
        return all(entry.get(key) == self._facts[key] for key in _KEYS)

    def measured(self) -> dict[str, dict[str, Any]] | None:
        """Looks up which protocols the checkpoint was measured by.

        Returns "protocol@version" -> hyperparameters; None if it was not
        measured.
        """
        history = read(self._folder).get("history", []) if self._folder else []
        entries = filter(self._is_of, history)
        return next((entry["protocols"] for entry in entries), None)

    def _save(
        self,
        folder: str,
        context: EvaluationContext,
        row: dict[str, Any],
        part: Measurement,
    ) -> None:
        """Writes arrays and plots."""
        current = (context.subject.name, row["protocol"])
        if current != self._current:
            self._current, self._about, self._entries = current, {}, {}
        base = os.path.join(folder, FOLDER, "-".join(current))
        variant = row["variant"]
        self._about[variant] = self._facts_of(context, row, part)
        arrays: dict[str, Any] = {**part.get("arrays", {})}
        for name in ("predictions", "correct"):
            if name in part:
                arrays[name] = np.asarray(part[name])
        for name, array in arrays.items():
            self._entries[entry_name(variant, name)] = array
        for name, figure in part.get("plots", {}).items():
            plot = "-".join(filter(None, (variant, name)))
            image = figures.png(figure, _DOTS_PER_INCH)
            files.write(f"{base}-{plot}.png", image, ADVICE)
        stream = io.BytesIO()
        about: dict[str, Any] = {ABOUT: json.dumps(self._about)}
        np.savez_compressed(stream, **about, **self._entries)
        files.write(f"{base}.npz", stream.getvalue(), ADVICE)

    def _facts_of(
        self, context: EvaluationContext, row: dict[str, Any], part: Measurement
    ) -> dict[str, Any]:
        """Returns what says whether two results can be compared."""
        facts = {key: row[key] for key in ("encoder", "protocol", "version")}
        facts |= {
            "hyperparameters": row["hyperparameters"]
            | part.get("resolved", {}),
            "step": self._facts["step"] or 0,
            "checksum": self._measured,
        }
        if "correct" in part:
            train, test = context.data.train.info, context.data.test.info
            facts["dataset"] = canonical(part.get("dataset", test.name))
            facts["labels"] = digest(_scored_labels(context, part))
            if "dataset" not in part:  # It has the context's own splits.
                facts["split"] = test.split
                if part.get("learns", PROTOCOLS[row["protocol"]].learns):
                    facts["train_split"] = train.split
                    facts["train_labels"] = digest(context.data.labels("train"))
        return facts

    def _summarize(
        self, folder: str, context: EvaluationContext, row: dict[str, Any]
    ) -> None:
        """Writes numbers for TensorBoard.

        Tags start with the dataset if it is not the run's own, whose curves the
        others are.
        """
        step = self._facts["step"] or 0
        run, dataset = context.subject.run, context.data.test.info.name
        is_own = run is None or run.data.dataset == dataset
        prefix = "" if is_own else f"{dataset}/"
        with self._writer.as_default(step=step):
            for tag, value in scalars(row).items():
                tf.summary.scalar(f"{prefix}{tag}", value)
        self._writer.flush()
        is_column = row["protocol"] in _DEFAULTS and row["top1"] is not None
        if is_own and run and row["encoder"] == "trained" and is_column:
            events = os.path.join(folder, tensorboard.EVENTS)
            hparams.write_scores(events, {row_name(row): row["top1"]}, step)

    # ---- For people ----

    def text(self) -> str:
        """Returns the table, and what was left out."""
        lines = [table(self.rows), *metric_lines(self.rows)]
        for name, reason in self.left_out.items():
            lines.append(f"left out: {name} ({reason})")
        lines.append(f"encoder checksum unchanged: {self.checksum[:12]}")
        return "\n".join(lines)


def entry_name(variant: str, name: str) -> str:
    """Returns the name of a variant's array in an npz file."""
    return f"{variant}.{name}" if variant else name


def digest(labels: np.ndarray) -> str:
    """Returns the SHA-256 of labels in order, to compare test sets."""
    return hashlib.sha256(np.asarray(labels, "<i8").tobytes()).hexdigest()


# ---- Tables ------------------------------------------------------------------


def table(results: list[dict[str, Any]]) -> str:
    """Formats results as a table, a line per row.

    Columns without a value are left out; top-5 is of more than ten classes.
    """
    columns = {
        "encoder": [row["encoder"] for row in results],
        "protocol": [row_name(row) for row in results],
        "version": [row["version"] for row in results],
        "top-1": [_fraction(row["top1"]) for row in results],
        "95 %": [_interval(row["top1_interval"]) for row in results],
        "balanced": [
            _fraction(row["metrics"].get(_BALANCED)) for row in results
        ],
        "top-5": [_fraction(shown_top5(row)) for row in results],
        "images": [f"{row['examples']:,}" for row in results],
        "seconds": [f"{row['seconds']:.1f}" for row in results],
    }
    shown = {name: x for name, x in columns.items() if {*x} - {"-"}}
    rows = zip(*shown.values(), strict=True)
    return terminal.format_table([(*shown,), *rows], texts=range(3))


def shown_top5(row: Mapping[str, Any]) -> float | None:
    """Returns a row's top-5 accuracy, if there are enough classes for it."""
    classes = row["metrics"].get(_BY_CLASS)
    return row["top5"] if classes is None or len(classes) > _FEW else None


def metric_lines(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yields a line for each result that has other metrics than accuracies."""
    for result in results:
        metrics = result["metrics"]
        numbers = []
        for name, value in metrics.items():
            if isinstance(value, (int, float)) and name != _BALANCED:
                interval = metrics.get(f"{name}_interval")
                suffix = f" ({_interval(interval)})" if interval else ""
                numbers.append(f"{name} {value:.4g}{suffix}")
        if numbers:
            name = f"{result['encoder']} {row_name(result)}"
            yield f"{name}: {', '.join(numbers)}"


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _interval(interval: list[float] | None) -> str:
    return "-" if interval is None else f"{interval[0]:.4f}..{interval[1]:.4f}"


# ---- evaluation.json ---------------------------------------------------------


def read(folder: str) -> dict[str, Any]:
    """Reads a folder's `evaluation.json`; empty if there is none."""
    path = os.path.join(folder, RESULTS_FILE)
    return files.read_json(path, {}, _FORM)
