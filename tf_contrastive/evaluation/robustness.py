"""The protocol `robustness`: accuracy and calibration on corrupted images.

Khosla et al. 2020 (SupCon), supplementary tables 2 and 3, after Hendrycks and
Dietterich 2019: a classifier that was trained on clean images, that of the run
or one on the frozen encoder, is scored on up to 15 corruptions at 5 severities.
A prepared -C dataset of TensorFlow Datasets has all of them; `corruptions`
makes nine of any images.
"""

import collections
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers, datasets
from tf_contrastive.base.errors import arg
from tf_contrastive.config.data import without_slice
from tf_contrastive.config.dataset import facts
from tf_contrastive.evaluation import (
    classification,
    classification_metrics,
    figures,
    statistics,
)
from tf_contrastive.evaluation.classification_metrics import SEVERITIES
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.corruptions import CORRUPTIONS, corrupt_batch
from tf_contrastive.evaluation.report import Measurement

# Names of corruptions in TensorFlow Datasets, if different.
_OTHER_NAMES = {
    "glass_blur": "frosted_glass_blur",
    "elastic_transform": "elastic",
}

# A corruption and its severity.
_Cell = tuple[str, int]
_CLEAN: _Cell = ("clean", 0)


class _Predictions(NamedTuple):
    """Confidences float [n] of predictions, and whether they are right [n].

    Neighbours have no confidences: [0].
    """

    confidences: np.ndarray
    correct: np.ndarray

    def calibration_error(self) -> float:
        bins = classification_metrics.reliability(*self)
        return classification_metrics.calibration_error(bins)


# Embeddings [n, D] -> (confidences [n] or [0], predicted classes [n]).
_Classify = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def measure(
    context: EvaluationContext,
    *,
    classifier: str,
    corruptions: Sequence[str],
    examples: int,
    linear: dict[str, Any],
    seed: int,
    k: int,
) -> Measurement:
    """Scores a classifier on corrupted test images.

    Hyperparameters are those of `config.protocols.Robustness`, and `linear`,
    options of `classification.fit_linear`. Lists among the metrics are by
    severity, and means over corruptions; mean_error, mce and relative_mce are
    in percent, the latter relative to AlexNet (None unless all 15 corruptions
    of ImageNet are measured). Neighbours have no confidences.
    """
    if classifier == "auto":
        has_head = not classification.lacks_head(context)
        classifier = "head" if has_head else "linear"
    classify = _classifier(context, classifier, linear | {"seed": seed}, k)
    wanted = corruptions or [*classification_metrics.ALEXNET]
    prepared = _prepared_sources(context, wanted)
    corruptions = [x for x in wanted if x in prepared or x in CORRUPTIONS]
    generated = [name for name in corruptions if name not in prepared]
    context.log(
        f"robustness: {len(prepared)} corruptions prepared, {len(generated)}"
        " generated"
    )
    batches = _batches(context, prepared, generated, examples, seed)
    predicted = _predict(context, classify, batches)
    clean = predicted[_CLEAN]
    clean_top1 = float(clean.correct.mean())
    table = [
        [predicted[name, severity] for severity in SEVERITIES]
        for name in corruptions
    ]
    errors = np.array([[1 - p.correct.mean() for p in row] for row in table])
    by_name = dict(zip(corruptions, errors.tolist(), strict=True))
    version = facts(context.data.test.info.name).corrupted
    relative = classification_metrics.mean_corruption_error(
        by_name,
        1 - clean_top1,
        imagenet=version is not None and version.has_published_errors,
    )
    # By severity: for each image, the fraction of the corruptions that are
    # classified right.
    fractions = [
        np.mean([p.correct for p in column], axis=0)
        for column in zip(*table, strict=True)
    ]
    curves = dict(zip(corruptions, (1 - errors).tolist(), strict=True))
    measurement: Measurement = {
        "top1": float((1 - errors).mean()),
        "correct": np.mean(fractions, axis=0),
        "learns": classifier != "head",
        "metrics": {
            "clean_top1": clean_top1,
            "clean_top1_interval": statistics.interval(clean.correct),
            "accuracy": (1 - errors).mean(axis=0).tolist(),
            "accuracy_interval": [statistics.interval(f) for f in fractions],
            "mean_error": 100 * float(errors.mean()),
            **relative,
            **{f"error_{name}": row for name, row in by_name.items()},
            "classifier": classifier,
            "prepared": list(prepared),
            "generated": generated,
        },
        "plots": {"severity": figures.severities(curves, clean_top1)},
        "arrays": {"errors": errors},
        "resolved": {"prepared": sorted(prepared), "corruptions": corruptions},
    }
    if not clean.confidences.size:
        measurement["metrics"]["neighbors"] = k
        return measurement
    ece = np.array([[p.calibration_error() for p in row] for row in table])
    measurement["arrays"]["ece"] = ece
    measurement["metrics"] |= {
        "ece_clean": clean.calibration_error(),
        "ece": ece.mean(axis=0).tolist(),
    }
    return measurement


def _predict(
    context: EvaluationContext,
    classify: _Classify,
    batches: Iterable[tuple[_Cell, Any, Any]],
) -> dict[_Cell, _Predictions]:
    """Classifies the images of all cells, in one stream.

    The encoder is traced once.
    """
    cells: collections.deque[_Cell] = collections.deque()

    def stream() -> Iterator[tuple[Any, Any]]:
        for cell, images, labels in batches:
            cells.append(cell)
            yield images, labels

    parts: dict[_Cell, list[_Predictions]] = collections.defaultdict(list)
    for h, labels in context.subject.embed_batches(stream()):
        confidences, classes = classify(h)
        correct = classes == labels
        parts[cells.popleft()].append(_Predictions(confidences, correct))
    return {
        cell: _Predictions(*map(np.concatenate, zip(*part, strict=True)))
        for cell, part in parts.items()
    }


# ---- Classifiers -------------------------------------------------------------


def _classifier(
    context: EvaluationContext, name: str, linear: dict[str, Any], k: int
) -> _Classify:
    """Makes a classifier of clean images: head, linear or knn.

    `linear` has the options of a linear classifier; k neighbours vote.
    """
    scores: Callable[[np.ndarray], classifiers.Scores]
    if name == "head":
        scores = functools.partial(classification.head_scores, context)
    else:
        train = context.embeddings("train")
        if name == "knn":
            return lambda h: (np.empty(0), classifiers.knn(*train, h, [k])[0])
        scores = classification.fit_linear(*train, **linear)[0].scores

    def classify(h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits = scores(h)
        probabilities = tf.nn.softmax(logits.scores).numpy()
        return probabilities.max(axis=1), logits.top(1)[:, 0]

    return classify


def lacks_classifier_or_images(context: EvaluationContext) -> str | None:
    """Returns which classifier or images `robustness` lacks, or None."""
    options = context.options.robustness
    classifier, no_head = options.classifier, classification.lacks_head(context)
    if classifier == "head" and no_head:
        return no_head
    too_many = classification.too_many_neighbors(
        context, "robustness_k", (options.k,)
    )
    if classifier == "knn" and too_many:
        return too_many
    is_linear = classifier == "linear" or (classifier == "auto" and no_head)
    if is_linear and (rates := context.options.linear.learning_rates):
        return (
            f"{arg('linear_learning_rates', rates)} are not tried here: set"
            f" {arg('linear_learning_rate', 'R')} instead"
        )
    absent = [x for x in options.corruptions if x not in CORRUPTIONS]
    prepared = _prepared_sources(context, absent)
    if absent := [name for name in absent if name not in prepared]:
        info = context.data.test.info
        version = facts(info.name).corrupted
        prepare = version and f"; {version.name}, prepared, has 15"
        return (
            f"{arg('robustness_corruptions', absent)}: only"
            f" {', '.join(CORRUPTIONS)} can be made of {info.name}"
            f" {info.split}{prepare or ''}"
        )
    return None


# ---- Corrupted images --------------------------------------------------------


def _prepared_sources(
    context: EvaluationContext, names: Sequence[str]
) -> dict[str, list[datasets.Source]]:
    """Returns corruption -> its prepared datasets, severity 1 to 5."""
    version = facts(context.data.test.info.name).corrupted
    split = context.data.test.info.split
    if version is None or context.subject.channels != 3:
        return {}
    if without_slice(split) != version.split:
        return {}
    prepared = {}
    for name in names:
        for alias in (name, _OTHER_NAMES.get(name, name)):
            parts = [f"{version.name}/{alias}_{s}" for s in SEVERITIES]
            opened = [context.prepared(part, split) for part in parts]
            available = [source for source in opened if source is not None]
            if len(available) == len(SEVERITIES):
                prepared[name] = available
    return prepared


def _batches(
    context: EvaluationContext,
    prepared: Mapping[str, list[datasets.Source]],
    generated: Sequence[str],
    examples: int,
    seed: int,
) -> Iterator[tuple[_Cell, Any, Any]]:
    """Yields (cell, images [b, S, S, K], labels [b]) of all cells.

    Each image is decoded once, and then corrupted in every way.
    """
    first = 0
    clean = _first(context.data.test, examples)
    for images, labels in context.images(clean):
        yield _CLEAN, images, labels
        pixels = np.around(images[..., :3].numpy() * 255).astype(np.uint8)
        for name in generated:
            for severity in SEVERITIES:
                corrupted = corrupt_batch(pixels, name, severity, first, seed)
                corrupted = tf.constant(corrupted.astype(np.float32) / 255)
                corrupted = tf.concat([corrupted, images[..., 3:]], axis=-1)
                yield (name, severity), corrupted, labels
        first += len(pixels)
    for name, sources in prepared.items():
        for severity, source in zip(SEVERITIES, sources, strict=True):
            for images, labels in context.images(_first(source, examples)):
                yield (name, severity), images, labels


def _first(source: datasets.Source, examples: int) -> datasets.Source:
    """Returns the first examples of a source; 0: all."""
    if not 0 < examples < source.info.num_examples:
        return source
    return source.select(np.arange(examples))
