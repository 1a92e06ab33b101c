"""Results of protocols: measurements, rows, tables and `evaluation.json`.

`evaluation.json` holds the latest results and a history: for each evaluated
checkpoint, its numbers once.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

import numpy as np

from tf_contrastive import checkpoints
from tf_contrastive.base import files, terminal
from tf_contrastive.evaluation import statistics
from tf_contrastive.evaluation.context import EvaluationContext

RESULTS_FILE = "evaluation.json"
ADVICE = "set `output_dir` to a folder that you may write"
# Metrics: the accuracy of each class (None: not in the split), and their mean.
_BY_CLASS, _BALANCED = "class_accuracies", "balanced_accuracy"
# Of so many classes the five most likely say little.
_FEW = 10
# Two history entries with equal values of these describe the same checkpoint.
KEYS = ("step", "dataset", "train_split", "test_split")


def _is_metrics(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    intervals: list[Any] = []
    for key, item in value.items():
        if key.endswith("_interval"):
            # Of a list of numbers, such as one per severity: one for each.
            is_list = isinstance(value.get(key.removesuffix("_interval")), list)
            many = is_list and isinstance(item, list)
            intervals += item if many else [item]
    return all(map(files.is_interval_or_none, intervals))


# The forms that readers of the file rely on.
ROW_FORM = {
    "encoder": str,
    "protocol": str,
    "variant": str,
    "version": str,
    "top1": files.NUMBER_OR_NONE,
    "top1_interval": files.is_interval_or_none,
    "top5": files.NUMBER_OR_NONE,
    "top5_interval": files.is_interval_or_none,
    "examples": int,
    "seconds": (int, float),
    "metrics": _is_metrics,
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
    metrics: dict[str, Any]  # Numbers, lists of numbers, or None.
    predictions: np.ndarray  # Int [n], class ids.
    correct: np.ndarray  # For each scored example, bool or a fraction [n].
    correct5: np.ndarray
    labels: np.ndarray  # Int [n], if other examples than the test split.
    dataset: str  # Name of the dataset, if other examples are scored.
    seen: str  # What the encoder was trained on of those.
    plots: dict[str, Any]  # Figures of matplotlib.
    arrays: dict[str, np.ndarray]  # To be saved.
    # What the protocol chose by the available data: results compare only where
    # it is equal.
    resolved: dict[str, Any]
    # By variant, for a protocol with several results, without other fields.
    parts: dict[str, "Measurement"]


# ---- Rows --------------------------------------------------------------------


def scored_labels(context: EvaluationContext, part: Measurement) -> np.ndarray:
    """Returns the labels of the examples that a measurement scored, [n]."""
    labels = part.get("labels")
    return context.labels("test") if labels is None else labels


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
    for name in ("dataset", "seen"):
        if name in part:
            row[name] = part[name]
    return files.as_json(row)


def _by_class(context: EvaluationContext, part: Measurement) -> dict[str, Any]:
    """Returns accuracies by class, and their mean, if each answer is known."""
    if "predictions" not in part or "correct" not in part:
        return {}
    labels = scored_labels(context, part)
    classes, index = np.unique(labels, return_inverse=True)
    hits = np.bincount(index, part["correct"], minlength=len(classes))
    accuracies = np.full([classes.max() + 1], np.nan)
    accuracies[classes] = hits / np.bincount(index)
    return {
        _BALANCED: float(np.nanmean(accuracies)),
        _BY_CLASS: accuracies,
    }


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


# ---- Files -------------------------------------------------------------------


def check_writable(folder: str) -> None:
    """Raises `UserError` if `write` could not write into `folder`."""
    read(folder)
    files.check_writable(os.path.join(folder, RESULTS_FILE), ADVICE)


def read(folder: str) -> dict[str, Any]:
    """Reads a folder's `evaluation.json`; empty if there is none."""
    path = os.path.join(folder, RESULTS_FILE)
    return files.read_json(path, {}, _FORM)


def write(
    folder: str,
    report: dict[str, Any],
    *,
    finished: bool = True,
    unfinished: str = "",
) -> None:
    """Writes a report, with the history of the previous ones.

    One that is not `finished` does not replace a finished one, so that a killed
    evaluation leaves the previous results: it only adds to the history, which
    does not list the protocol `unfinished` as measured.
    """
    results = report["results"]
    entry = {
        **{key: report[key] for key in KEYS},
        "checksum": report["checksum"],
        "protocols": {
            f"{row['protocol']}@{row['version']}": row["hyperparameters"]
            for row in results
            if row["protocol"] != unfinished
        },
        "metrics": {
            tag: value for row in results for tag, value in scalars(row).items()
        },
    }
    # Another evaluation, such as one with `watch`, may write its own entry.
    with checkpoints.FolderLock(folder, "evaluation", wait_seconds=60.0):
        before, others = read(folder), []
        for previous in before.get("history", []):
            if not _is_same(previous, entry):
                others.append(previous)
            elif previous["checksum"] == entry["checksum"]:
                for field in ("protocols", "metrics"):
                    entry[field] = previous[field] | entry[field]
        history = sorted([*others, entry], key=lambda e: e["step"] or 0)
        if finished or not before.get("finished", "results" in before):
            before = report | {"finished": finished}
        path = os.path.join(folder, RESULTS_FILE)
        files.write_json(path, before | {"history": history}, ADVICE)


def _is_same(entry: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(entry.get(key) == other[key] for key in KEYS)


def measured(
    folder: str, checkpoint: Mapping[str, Any]
) -> dict[str, dict[str, Any]] | None:
    """Looks up which protocols a checkpoint, values of `KEYS`, was measured by.

    Returns "protocol@version" -> hyperparameters; None if it was not measured.
    """
    for entry in read(folder).get("history", []):
        if _is_same(entry, checkpoint):
            return entry["protocols"]
    return None
