"""`evaluate`: scores the encoder of a run, or an export, by named protocols."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import (
    checkpoints,
    config,
    datasets,
    exporting,
    training,
    views,
)
from tf_contrastive.evaluation import protocols

RESULTS_FILE = "evaluation.json"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


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
        name: _score(name, encoder, train, test, chosen, found)
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
        _say(f"left out, cannot be read: {bad}")
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
    for source in (train, test):
        if not source.info.has_labels:
            raise config.UserError(
                f"{name} {source.info.split} has no labels to score against:"
                " give --dataset=NAME of a labelled dataset"
            )
    if train.info.num_classes != test.info.num_classes:
        raise config.UserError(
            f"{name}: {chosen.train_split} has {train.info.num_classes} classes"
            f" and {chosen.test_split} {test.info.num_classes}: give splits of"
            " the same classes"
        )
    return train, test


def _encoders(
    chosen: config.Evaluation, found: checkpoints.Run | None
) -> Iterator[tuple[str, Callable]]:
    """Yields (name, encoder), one at a time."""
    if not found:
        yield "trained", exporting.load(chosen.saved_model)
        if chosen.untrained:
            _say("no untrained baseline: only a run (--workdir) has one")
        return
    yield "trained", checkpoints.load_encoder(found)
    if chosen.untrained:
        yield "untrained", checkpoints.load_encoder(found, trained=False)


def _score(
    name: str,
    encoder: Callable,
    train: datasets.Source,
    test: datasets.Source,
    chosen: config.Evaluation,
    found: checkpoints.Run | None,
) -> dict[str, Any]:
    side, extra = exporting.image_size(encoder), exporting.extra(encoder)
    for source in (train, test):
        config.check_encoder_channels(
            extra, source.info.name, source.info.extra_channels
        )
    preprocess = views.evaluation(side)
    train_batches, test_batches = (
        datasets.evaluation_batches(
            source,
            preprocess,
            batch_size=chosen.embedding_batch_size,
            extra_channels=extra,
        )
        for source in (train, test)
    )
    return protocols.run(
        encoder,
        train_batches,
        test_batches,
        config.split_list(chosen.protocols),
        name=name,
        options=chosen,
        views=_views(train, chosen, found, side, extra),
        say=_say,
    )


def _views(
    train: datasets.Source,
    chosen: config.Evaluation,
    found: checkpoints.Run | None,
    side: int,
    extra: int,
) -> tf.data.Dataset | None:
    """Augmented training images for the linear probe, if it wants some."""
    if chosen.probe_augmentation == "none":
        return None
    run = config.replace(
        found.config if found else config.Pretrain(),
        augmentation=chosen.probe_augmentation,
        extra_channels=extra,
    )
    run = dataclasses.replace(
        run, views=config.resolve_views(run.views, train.info.name, side)
    )
    return training.augmented_images(
        train, run, batch_size=chosen.probe_batch_size, seed=chosen.seed
    )


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
    _say(f"written: {path}")
