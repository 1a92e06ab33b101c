"""`evaluate`: scores the encoder of a run, or an export, by named protocols."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import (
    checkpoints,
    config,
    datasets,
    exporting,
    stages,
    training,
)

RESULTS_FILE = "evaluation.json"


def run(options: config.Evaluate) -> int:
    """Prints a table of accuracies and writes `<workdir>/evaluation.json`.

    An export (`--saved_model`) is scored without a file: its folder belongs to
    whoever serves it.

    Args:
      options: validated.

    Returns:
      0.

    Raises:
      UserError: for no run or export, no checkpoint yet, or data that cannot
        be scored.
    """
    chosen = options.evaluation
    found = checkpoints.load_run(chosen.workdir) if chosen.workdir else None
    train, test = _sources(chosen, found)
    reports = {
        name: stages.score(
            encoder,
            train,
            test,
            options,
            name=name,
            run=found.config if found else None,
        )
        for name, encoder in _encoders(chosen, found)
    }
    report = {
        "dataset": train.info.name,
        "train_split": chosen.train_split,
        "test_split": chosen.test_split,
        "step": found.step if found else None,
        "checksum": reports["trained"]["checksum_after"],
        "results": [r for part in reports.values() for r in part["results"]],
    }
    print(table(report["results"]))
    print(f"encoder checksum unchanged: {report['checksum'][:12]}")
    if found:
        _write(os.path.join(chosen.workdir, RESULTS_FILE), report)
    for bad in (*train.info.bad_images, *test.info.bad_images):
        stages.say(f"left out, cannot be read: {bad}")
    return 0


def _sources(
    chosen: config.Evaluation, found: checkpoints.Run | None
) -> tuple[datasets.Source, datasets.Source]:
    """Opens the two splits, and checks that they can be scored."""
    name, data_dir = chosen.dataset, chosen.data_dir
    if found:
        name = name or found.config.data.dataset
        data_dir = data_dir or found.config.data.data_dir
    train, test = (
        datasets.source(name, split, data_dir=data_dir or None)
        for split in (chosen.train_split, chosen.test_split)
    )
    training.check_scored(train.info, test.info)
    return train, test


def _encoders(
    chosen: config.Evaluation, found: checkpoints.Run | None
) -> Iterator[tuple[str, Callable]]:
    """Yields (name, encoder), one at a time."""
    if not found:
        yield "trained", exporting.load(chosen.saved_model)
        if chosen.untrained:
            stages.say("no untrained baseline: only a run (--workdir) has one")
        return
    yield "trained", checkpoints.load_encoder(found)
    if chosen.untrained:
        yield "untrained", checkpoints.load_encoder(found, trained=False)


def table(results: list[dict[str, Any]]) -> str:
    """Lays results out for people, a line each."""
    lines = [
        f"{'encoder':<10} {'protocol':<10} {'top-1':>7} {'top-5':>7}"
        f" {'images':>8} {'seconds':>8}"
    ]
    for result in results:
        top5 = "-" if result["top5"] is None else f"{result['top5']:.4f}"
        lines.append(
            f"{result['encoder']:<10} {result['protocol']:<10}"
            f" {result['top1']:>7.4f} {top5:>7} {result['examples']:>8}"
            f" {result['seconds']:>8.1f}"
        )
    return "\n".join(lines)


def _write(path: str, report: dict[str, Any]) -> None:
    try:
        checkpoints.write_text(path, json.dumps(report, indent=2) + "\n")
    except (OSError, tf.errors.OpError) as error:
        raise config.cannot_write(
            path,
            error,
            "the table above is complete; give a --workdir that you may write"
            " to keep it",
        ) from error
    stages.say(f"written: {path}")
