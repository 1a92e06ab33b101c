"""What an evaluation says: a table for people, `evaluation.json` for the rest.

The file holds the latest results, and a history: of every checkpoint that was
ever evaluated the numbers, once.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, errors, terminal
from tf_contrastive.evaluation import records

RESULTS_FILE = "evaluation.json"
# What makes two entries of the history ones of the same thing.
KEYS = ("step", "dataset", "train_split", "test_split")


# ---- The file ----------------------------------------------------------------


def read(folder: str) -> dict[str, Any]:
    """Reads a folder's `evaluation.json`; empty if there is none.

    Raises:
      UserError: if it is no such file.
    """
    path = os.path.join(folder, RESULTS_FILE)
    if not tf.io.gfile.exists(path):
        return {}
    return checkpoints.read_json(path)


def check(folder: str) -> None:
    """Raises `UserError` if `write` could not write there."""
    read(folder)
    path = os.path.join(folder, RESULTS_FILE)
    with _told(path, "give an `output_dir` that you may write"):
        tf.io.gfile.makedirs(folder)
        probe = f"{path}.part"
        with tf.io.gfile.GFile(probe, "w") as file:
            file.write("")
        tf.io.gfile.remove(probe)


def write(folder: str, report: dict[str, Any]) -> str:
    """Writes a report, with the history of those before it; returns its path.

    Raises:
      UserError: if it cannot be written.
    """
    history = _appended(read(folder).get("history", []), report)
    path = os.path.join(folder, RESULTS_FILE)
    write_json(path, report | {"history": history})
    return path


def write_json(path: str, content: dict[str, Any]) -> None:
    """Writes JSON so that a reader sees the old file or the new one.

    Raises:
      UserError: if it cannot be written.
    """
    advice = (
        "the table above is complete; give an `output_dir` that you may write"
        " to keep it"
    )
    with _told(path, advice):
        tf.io.gfile.makedirs(os.path.dirname(path) or ".")
        checkpoints.write_text(path, json.dumps(content, indent=2) + "\n")


@contextlib.contextmanager
def _told(path: str, advice: str) -> Iterator[None]:
    """Says in one line why something cannot be written."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise errors.cannot_write(path, error, advice) from error


def _appended(
    history: list[dict[str, Any]], report: dict[str, Any]
) -> list[dict[str, Any]]:
    entry = {
        **{key: report[key] for key in KEYS},
        "checksum": report["checksum"],
        "protocols": {
            _versioned(r): r["hyperparameters"] for r in report["results"]
        },
        "metrics": {
            tag: value
            for result in report["results"]
            for tag, value in records.scalars(result).items()
        },
    }
    others = []
    for old in history:
        if not _same(old, entry):
            others.append(old)
        elif old["checksum"] == entry["checksum"]:
            for part in ("protocols", "metrics"):
                entry[part] = old[part] | entry[part]
    return sorted([*others, entry], key=lambda e: e["step"] or 0)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one.get(key) == other[key] for key in KEYS)


def _versioned(result: dict[str, Any]) -> str:
    return f"{result['protocol']}@{result['version']}"


def measured(
    folder: str, of: dict[str, Any]
) -> dict[str, dict[str, Any]] | None:
    """What the history says that a checkpoint was measured by.

    Args:
      folder: of `evaluation.json`.
      of: "step", "dataset", "train_split", "test_split".

    Returns:
      "protocol@version" -> hyperparameters; None if it was not measured.
    """
    for entry in read(folder).get("history", []):
        if _same(entry, of):
            return entry["protocols"]
    return None


# ---- The table ---------------------------------------------------------------

_HEADINGS = (
    "encoder",
    "protocol",
    "version",
    "top-1",
    "95 %",
    "top-5",
    "images",
    "seconds",
)


def table(results: list[dict[str, Any]]) -> str:
    """Lays results out for people, a line each."""
    rows = [
        (
            result["encoder"],
            records.name_of(result),
            result["version"],
            _share(result["top1"]),
            _interval(result["top1_interval"]),
            _share(result["top5"]),
            f"{result['examples']:,}",
            f"{result['seconds']:.1f}",
        )
        for result in results
    ]
    return terminal.format_table([_HEADINGS, *rows], texts=range(3))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _interval(interval: list[float] | None) -> str:
    return "-" if interval is None else f"{interval[0]:.4f}..{interval[1]:.4f}"


def numbers(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yields a line for each result that has more than accuracies."""
    for result in results:
        metrics = result["metrics"]
        found = [
            f"{name} {value:.4g}{_within(metrics.get(f'{name}_interval'))}"
            for name, value in metrics.items()
            if isinstance(value, (int, float))
        ]
        if found:
            name = records.name_of(result)
            yield f"{result['encoder']} {name}: {', '.join(found)}"


def _within(interval: list[float] | None) -> str:
    return "" if interval is None else f" ({_interval(interval)})"
