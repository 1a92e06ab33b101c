"""The protocol `robustness`: accuracy and calibration on corrupted images.

Khosla et al. 2020, supplementary tables 2 and 3, after Hendrycks and Dietterich
2019: a linear classifier on the frozen encoder, learned from clean images,
meets 15 corruptions at 5 severities. They come from a prepared -C dataset of
TensorFlow Datasets where there is one, and are else made by `corruptions`.
"""

import collections
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers, datasets
from tf_contrastive.config.dataset_names import dataset_family
from tf_contrastive.config.evaluate import Evaluate, Evaluation
from tf_contrastive.config.protocols import RobustnessProtocol
from tf_contrastive.errors import UserError, unknown
from tf_contrastive.evaluation import (
    arrays,
    calibration,
    corruptions,
    plots,
    prepared,
    statistics,
)
from tf_contrastive.evaluation.subject import Subject

# Dataset -> its corrupted twin of TensorFlow Datasets, and the split of it.
_PREPARED = {
    "cifar10": ("cifar10_corrupted", "test"),
    "imagenet2012": ("imagenet2012_corrupted", "validation"),
}
# Where TensorFlow Datasets calls a corruption otherwise.
_OTHER_NAMES = {
    "glass_blur": "frosted_glass_blur",
    "elastic_transform": "elastic",
}


class Cell(NamedTuple):
    """One corruption at one severity; 0 of "clean" is none."""

    corruption: str
    severity: int


CLEAN = Cell("clean", 0)

# (confidences float [n], correct bool [n]) of each cell.
_Found = dict[Cell, tuple[np.ndarray, np.ndarray]]


class _Tally:
    """Which images of a cell were right, and how sure the classifier was."""

    def __init__(self) -> None:
        self.correct: list[np.ndarray] = []
        self.confidences: list[np.ndarray] = []

    def add(self, probabilities, predictions, labels) -> None:
        self.correct.append(predictions == labels)
        self.confidences.append(probabilities.max(axis=1))

    def joined(self) -> tuple[np.ndarray, np.ndarray]:
        """(confidences float [n], correct bool [n])."""
        return np.concatenate(self.confidences), np.concatenate(self.correct)


def measure(
    subject: Subject,
    *,
    corruptions: Sequence[str] = tuple(corruptions.STANDARD),
    examples: int = RobustnessProtocol.examples,
    bins: int = RobustnessProtocol.bins,
    baseline: str = RobustnessProtocol.baseline,
    linear: dict[str, Any] | None = None,
    seed: int = Evaluation.seed,
) -> dict[str, Any]:
    """Scores a linear classifier on corrupted test images.

    Args:
      subject: whose frozen encoder it learns on.
      corruptions: names of `corruptions.CORRUPTIONS`.
      examples: of the test split, from its start; 0: all.
      bins: of confidence, for the calibration error.
      baseline: JSON file {corruption: [error at each severity], "clean":
        error} that errors are divided by; empty: AlexNet's on ImageNet, none
        on other data.
      linear: of `arrays.linear_probe`, on embeddings that are made once; None:
        the options' own.
      seed: of the classifier, and of what the corruptions draw.

    Returns:
      A measurement, see `protocols`: "top1" is the mean accuracy over
      corruptions and severities, and "correct" each image's. "metrics" holds
      "clean_top1" and "accuracy", each with an "_interval" of 95 %, and
      "ece" by severity (means over corruptions), "ece_clean", "mean_error"
      (percent), "mce" and "relative_mce" (percent; None without a baseline),
      "error_CORRUPTION" by severity, and which corruptions were "prepared" and
      "made"; "stand_ins" among those are not the published ones.

    Raises:
      UserError: for an unknown corruption, or a baseline that cannot be read.
    """
    names = list(corruptions)
    for name in names:
        if name not in _KNOWN:
            raise unknown("corruption", name, _KNOWN)
    divisor = _baseline(baseline)
    classifier = _classifier(subject, linear, seed)
    there = _prepared(subject, names)
    made = [name for name in names if name not in there]
    subject.say(
        f"robustness: {len(there)} corruptions prepared, {len(made)} made here"
    )
    batches = _batches(subject, there, made, examples, seed)
    return _report(
        _tallied(subject, classifier, batches),
        names,
        bins,
        divisor,
        imagenet=_family(subject) == "imagenet2012",
        prepared_names=list(there),
    )


_KNOWN = corruptions.CORRUPTIONS


def _tallied(
    subject: Subject, classifier: classifiers.Linear, batches: Iterable[tuple]
) -> _Found:
    """What the classifier finds of the batches (see `_batches`) of each cell.

    All are embedded as one stream: one graph of the encoder fits them.
    """
    tallies: dict[Cell, _Tally] = collections.defaultdict(_Tally)
    cells: collections.deque[Cell] = collections.deque()

    def noted() -> Iterator[tuple]:
        for cell, images, labels in batches:
            cells.append(cell)
            yield images, labels

    for h, labels in subject.embed_batches(noted()):
        scores = classifier.scores(h)
        predictions = scores.top(1)[:, 0]
        probabilities = tf.nn.softmax(scores.scores).numpy()
        tallies[cells.popleft()].add(probabilities, predictions, labels)
    return {cell: tally.joined() for cell, tally in tallies.items()}


def _family(subject: Subject) -> str:
    return dataset_family(subject.test.info.name)


def _baseline(path: str) -> dict[str, Any] | None:
    if not path:
        return None
    try:
        with tf.io.gfile.GFile(path) as file:
            read = json.load(file)
    except (OSError, tf.errors.OpError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"robustness_baseline={path} cannot be read ({reason}): give a"
            ' JSON file {"gaussian_noise": [five errors], ..., "clean": error}'
        ) from error
    if not isinstance(read, dict):
        raise UserError(
            f"robustness_baseline={path} holds no object: give a JSON file"
            ' {"gaussian_noise": [five errors], ..., "clean": error}'
        )
    return read


def _classifier(
    subject: Subject, linear: dict[str, Any] | None, seed: int
) -> classifiers.Linear:
    """Trains softmax regression on the embeddings of clean train images."""
    if linear is None:
        linear = linear_hyperparameters(subject.options)
    hyperparameters = dict(linear)
    own = {
        key: hyperparameters.pop(key)
        for key in ("batch_size", "label_smoothing")
    } | {"epochs": hyperparameters["epochs"]}
    train, labels = subject.embeddings("train")
    model, _ = classifiers.train_linear(
        train,
        labels,
        optimizer=arrays.linear_optimizer(**hyperparameters),
        seed=seed,
        **own,
    )
    return model


def linear_hyperparameters(options: Evaluate) -> dict[str, Any]:
    """The linear protocol's hyperparameters, but for views and choices."""
    hyperparameters = options.linear.hyperparameters()
    rates = hyperparameters.pop("learning_rates", ())
    hyperparameters.pop("augmentation", None)
    if hyperparameters["learning_rate"] is None and rates:
        hyperparameters["learning_rate"] = rates[0]
    return hyperparameters


# ---- Corrupted images --------------------------------------------------------


def _prepared(
    subject: Subject, names: Sequence[str]
) -> dict[str, list[datasets.Source]]:
    """Corruption -> its datasets of severity 1 to 5, where all are prepared."""
    family = _family(subject)
    if family not in _PREPARED or subject.channels != 3:
        return {}
    base, split = _PREPARED[family]
    found = {}
    for name in names:
        for alias in (name, _OTHER_NAMES.get(name, name)):
            sources = [
                prepared.source(subject, f"{base}/{alias}_{severity}", split)
                for severity in _SEVERITIES
            ]
            if None not in sources:
                found[name] = sources
    return found


_SEVERITIES = corruptions.SEVERITIES


def _batches(
    subject: Subject,
    there: dict[str, list[datasets.Source]],
    made: Sequence[str],
    examples: int,
    seed: int,
) -> Iterator[tuple[Cell, np.ndarray, np.ndarray]]:
    """Yields (cell, images [b, S, S, K], labels [b]) of all cells.

    Every image is decoded once, and corrupted in every way while it is there.
    """
    first = 0
    for images, labels in _limited(subject.images("test"), examples):
        yield CLEAN, images, labels
        pixels = np.around(images[..., :3].numpy() * 255).astype(np.uint8)
        for name in made:
            for severity in _SEVERITIES:
                changed = corruptions.corrupt_batch(
                    pixels, name, severity, first, seed
                )
                changed = tf.constant(changed.astype(np.float32) / 255)
                whole = tf.concat([changed, images[..., 3:]], axis=-1)
                yield Cell(name, severity), whole, labels
        first += len(pixels)
    for name, sources in there.items():
        for severity, source in zip(_SEVERITIES, sources, strict=True):
            found = _limited(subject.images("test", source), examples)
            for images, labels in found:
                yield Cell(name, severity), images, labels


def _limited(batches: Iterable[tuple], examples: int) -> Iterator[tuple]:
    """The batches of the first so many examples; 0: all."""
    left = examples
    for images, labels in batches:
        if not examples:
            yield images, labels
            continue
        yield images[:left], labels[:left]
        left -= len(images)
        if left <= 0:
            return


# ---- What is reported --------------------------------------------------------


def _report(
    found: _Found,
    names: Sequence[str],
    bins: int,
    baseline: dict[str, Any] | None,
    *,
    imagenet: bool,
    prepared_names: Sequence[str],
) -> dict[str, Any]:
    """Makes the measurement of what was found of all cells."""
    diagrams = {
        cell: calibration.reliability(*both, bins)
        for cell, both in found.items()
    }
    table = [[Cell(name, s) for s in _SEVERITIES] for name in names]
    miscalibrated = {
        cell: calibration.calibration_error(diagram)
        for cell, diagram in diagrams.items()
    }
    miscalibration = np.array([[miscalibrated[c] for c in r] for r in table])
    errors = np.array([[1 - found[c][1].mean() for c in r] for r in table])
    clean = float(found[CLEAN][1].mean())
    by_name = dict(zip(names, errors.tolist(), strict=True))
    relative = calibration.mean_corruption_error(
        by_name, 1 - clean, baseline, imagenet=imagenet
    )
    # Of each image the share of the corruptions that left it right.
    shares = [
        np.mean([found[Cell(n, s)][1] for n in names], axis=0)
        for s in _SEVERITIES
    ]
    made = [name for name in names if name not in prepared_names]
    return {
        "top1": float((1 - errors).mean()),
        "correct": np.mean(shares, axis=0),
        "metrics": {
            "clean_top1": clean,
            "clean_top1_interval": statistics.interval(found[CLEAN][1]),
            "accuracy": (1 - errors).mean(axis=0).tolist(),
            "accuracy_interval": [statistics.interval(s) for s in shares],
            "ece_clean": miscalibrated[CLEAN],
            "ece": miscalibration.mean(axis=0).tolist(),
            "mean_error": calibration.mean_error(by_name),
            **relative,
            **{f"error_{name}": row for name, row in by_name.items()},
            "prepared": list(prepared_names),
            "made": made,
            "stand_ins": [n for n in made if n in corruptions.STAND_INS],
        },
        "plots": {
            "reliability": plots.reliability_diagram(
                {"clean": diagrams[CLEAN], **_extremes(found, names, bins)}
            ),
            "severity": plots.severity_curves(
                dict(zip(names, (1 - errors).tolist(), strict=True)), clean
            ),
        },
        "arrays": {"errors": errors, "ece": miscalibration},
    }


def _extremes(
    found: _Found, names: Sequence[str], bins: int
) -> dict[str, dict[str, np.ndarray]]:
    """Reliability at the lowest and the highest severity, of all corruptions.

    Returns:
      Title of a panel -> what `calibration.reliability` returns.
    """
    return {
        f"severity {severity}": calibration.reliability(
            *(
                np.concatenate([found[Cell(n, severity)][part] for n in names])
                for part in (0, 1)
            ),
            bins,
        )
        for severity in (_SEVERITIES[0], _SEVERITIES[-1])
    }
