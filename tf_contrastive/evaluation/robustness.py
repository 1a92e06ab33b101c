"""The protocol `robustness`: accuracy and calibration on corrupted images.

Khosla et al. 2020 (SupCon), supplementary tables 2 and 3, after Hendrycks and
Dietterich 2019: a classifier that was trained on clean images, that of the run
or one on the frozen encoder, is scored on 15 corruptions at 5 severities.
Corrupted images come from
a prepared -C dataset of TensorFlow Datasets, or else from `corruptions`.
"""

import collections
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers, datasets
from tf_contrastive.base import files
from tf_contrastive.base.errors import UserError, arg, first_line
from tf_contrastive.config.data import without_slice
from tf_contrastive.config.dataset import facts
from tf_contrastive.config.protocols import Robustness
from tf_contrastive.evaluation import (
    classification,
    classification_metrics,
    other_datasets,
    plots,
    statistics,
)
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.corruptions import (
    SEVERITIES,
    STAND_INS,
    corrupt_batch,
)
from tf_contrastive.evaluation.images import Batches
from tf_contrastive.evaluation.results import Measurement

# What reading an unusable baseline raises.
_UNUSABLE = (
    OSError,
    tf.errors.OpError,
    TypeError,
    ValueError,
    RecursionError,
)
# Names of corruptions in TensorFlow Datasets, if different.
_OTHER_NAMES = {
    "glass_blur": "frosted_glass_blur",
    "elastic_transform": "elastic",
}


class Cell(NamedTuple):
    """One corruption at one severity; `CLEAN` is none."""

    corruption: str
    severity: int


CLEAN = Cell("clean", 0)


class _Predictions(NamedTuple):
    """Confidences float [n] of predictions, and whether they are right [n].

    Neighbours have no confidences: [0].
    """

    confidences: np.ndarray
    correct: np.ndarray


_Options = dict[str, Any]
# Embeddings [n, D] -> (confidences [n] or [0], predicted classes [n]).
_Classify = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def measure(
    context: EvaluationContext,
    *,
    classifier: str,
    corruptions: Sequence[str],
    examples: int,
    bins: int,
    baseline: str,
    linear: dict[str, Any],
    seed: int,
    k: int = Robustness.k,
    neighbors: Mapping[str, Any] | None = None,
) -> Measurement:
    """Scores a classifier on corrupted test images.

    Hyperparameters are those of `config.protocols.Robustness`, `linear`,
    options of `classification.fit_linear`, and `neighbors`, of
    `classifiers.knn`.

    Returns:
      "top1", the mean accuracy over corruptions and severities, "correct", each
      image's, and the metrics "clean_top1" and "accuracy" by severity, "ece" by
      severity (means over corruptions), "ece_clean", "mean_error" (percent),
      "mce" and "relative_mce" (percent; None without a baseline),
      "error_CORRUPTION" by severity, the "classifier", and the names of the
      corruptions that were "prepared" and "generated"; the "stand_ins" among
      the latter are not the published ones. Neighbours have no "ece", but
      their number, "neighbors".

    Raises:
      UserError: for a baseline that cannot be read.
    """
    baseline_errors = _read_baseline(baseline, corruptions)
    if classifier == "auto":
        classifier = next(
            name
            for name, kind in _CLASSIFIERS.items()
            if not kind.lacks(context)
        )
    voters = {"k": k, **(neighbors or {})}
    classify = _CLASSIFIERS[classifier].make(
        context, linear | {"seed": seed}, voters
    )
    prepared = _prepared_sources(context, corruptions)
    generated = [name for name in corruptions if name not in prepared]
    context.log(
        f"robustness: {len(prepared)} corruptions prepared, {len(generated)}"
        " generated"
    )
    batches = _batches(context, prepared, generated, examples, seed)
    predicted = _predict(context, classify, batches)
    clean = predicted[CLEAN]
    clean_top1 = float(clean.correct.mean())
    table = [
        [predicted[Cell(name, severity)] for severity in SEVERITIES]
        for name in corruptions
    ]
    errors = np.array([[1 - p.correct.mean() for p in row] for row in table])
    by_name = dict(zip(corruptions, errors.tolist(), strict=True))
    version = facts(context.data.test.info.name).corrupted
    relative = classification_metrics.mean_corruption_error(
        by_name,
        1 - clean_top1,
        baseline_errors,
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
        "metrics": {
            "clean_top1": clean_top1,
            "clean_top1_interval": statistics.interval(clean.correct),
            "accuracy": (1 - errors).mean(axis=0).tolist(),
            "accuracy_interval": [statistics.interval(f) for f in fractions],
            "mean_error": classification_metrics.mean_error(by_name),
            **relative,
            **{f"error_{name}": row for name, row in by_name.items()},
            "classifier": classifier,
            "prepared": list(prepared),
            "generated": generated,
            "stand_ins": [name for name in generated if name in STAND_INS],
        },
        "plots": {"severity": severity_curves(curves, clean_top1)},
        "arrays": {"errors": errors},
        "resolved": {"prepared": sorted(prepared)},
    }
    if clean.confidences.size:
        _add_calibration(measurement, clean, table, bins)
    else:
        measurement["metrics"]["neighbors"] = k
    return measurement


def _predict(
    context: EvaluationContext,
    classify: _Classify,
    batches: Iterable[tuple[Cell, Any, Any]],
) -> dict[Cell, _Predictions]:
    """Classifies the images of all cells, in one stream.

    The encoder is traced once.
    """
    cells: collections.deque[Cell] = collections.deque()

    def stream() -> Iterator[tuple[Any, Any]]:
        for cell, images, labels in batches:
            cells.append(cell)
            yield images, labels

    parts: dict[Cell, list[_Predictions]] = collections.defaultdict(list)
    for h, labels in context.subject.embed_batches(stream()):
        confidences, classes = classify(h)
        correct = classes == labels
        parts[cells.popleft()].append(_Predictions(confidences, correct))
    return {cell: _joined(part) for cell, part in parts.items()}


def _joined(parts: Sequence[_Predictions]) -> _Predictions:
    return _Predictions(*map(np.concatenate, zip(*parts, strict=True)))


def _add_calibration(
    measurement: Measurement,
    clean: _Predictions,
    table: Sequence[Sequence[_Predictions]],
    bins: int,
) -> None:
    """Adds calibration errors and a diagram; the table is by corruption."""
    reliability = classification_metrics.reliability
    error = classification_metrics.calibration_error
    panels = {"clean": reliability(*clean, bins)}
    for place in (0, -1):
        joined = _joined([row[place] for row in table])
        title = f"severity {SEVERITIES[place]}"
        panels[title] = reliability(*joined, bins)
    ece = np.array([[error(reliability(*p, bins)) for p in r] for r in table])
    measurement["arrays"]["ece"] = ece
    measurement["metrics"] |= {
        "ece_clean": error(panels["clean"]),
        "ece": ece.mean(axis=0).tolist(),
    }
    measurement["plots"]["reliability"] = reliability_diagram(panels)


# ---- Classifiers -------------------------------------------------------------


class _Classifier(NamedTuple):
    """A classifier, trained on clean images: see `_Classify`."""

    # (context, options of the linear classifier, of neighbours) -> classifier.
    make: Callable[[EvaluationContext, _Options, _Options], _Classify]
    lacks: Callable[[EvaluationContext], str | None] = lambda context: None


def _confident(scores: Callable[[np.ndarray], classifiers.Scores]) -> _Classify:
    """Returns the classifier of logits."""

    def classify(h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits = scores(h)
        probabilities = tf.nn.softmax(logits.scores).numpy()
        return probabilities.max(axis=1), logits.top(1)[:, 0]

    return classify


def _head(
    context: EvaluationContext, linear: _Options, neighbors: _Options
) -> _Classify:
    del linear, neighbors
    return _confident(lambda h: classification.head_scores(context, h))


def _linear(
    context: EvaluationContext, linear: _Options, neighbors: _Options
) -> _Classify:
    del neighbors
    train = context.embeddings("train")
    model, _ = classification.fit_linear(*train, **linear)
    return _confident(model.scores)


def _neighbors(
    context: EvaluationContext, linear: _Options, neighbors: _Options
) -> _Classify:
    del linear
    train = context.embeddings("train")
    return lambda h: (
        np.empty(0),
        np.asarray(classifiers.knn(*train, h, **neighbors)),
    )


# In the order that `auto` tries them in.
_CLASSIFIERS = {
    "head": _Classifier(_head, classification.lacks_head),
    "linear": _Classifier(_linear),
    "knn": _Classifier(
        _neighbors,
        lambda context: classification.lacks_neighbors(
            context, "robustness_k", context.options.robustness.k
        ),
    ),
}


def lacks_classifier(context: EvaluationContext) -> str | None:
    """Returns why `robustness` has no classifier to score, or None.

    Raises `UserError` for a baseline that cannot be used.
    """
    chosen = context.options.robustness.hyperparameters()
    _read_baseline(chosen["baseline"], chosen["corruptions"])
    kind = _CLASSIFIERS.get(chosen["classifier"])  # None: auto.
    return kind.lacks(context) if kind else None


def _read_baseline(
    path: str, corruptions: Sequence[str]
) -> dict[str, Any] | None:
    """Reads a baseline's errors, and checks that mCE can be computed."""
    if not path:
        return None
    try:
        content = json.loads(files.read(path))
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        ours = dict.fromkeys(corruptions, [1.0] * len(SEVERITIES))
        classification_metrics.mean_corruption_error(ours, 0.0, content)
    except _UNUSABLE as error:
        raise UserError(
            f"{arg('robustness_baseline', path)} cannot be used"
            f" ({first_line(error)}):"
            ' use a JSON file {"gaussian_noise": [five errors], ..., "clean":'
            " error}"
        ) from error
    return content


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
            sources = [
                other_datasets.source(
                    context, f"{version.name}/{alias}_{s}", split
                )
                for s in SEVERITIES
            ]
            available = [source for source in sources if source is not None]
            if len(available) == len(SEVERITIES):
                prepared[name] = available
    return prepared


def _batches(
    context: EvaluationContext,
    prepared: Mapping[str, list[datasets.Source]],
    generated: Sequence[str],
    examples: int,
    seed: int,
) -> Iterator[tuple[Cell, Any, Any]]:
    """Yields (cell, images [b, S, S, K], labels [b]) of all cells.

    Each image is decoded once, and then corrupted in every way.
    """
    first = 0
    for images, labels in _take(
        context.images.plain(context.data.test), examples
    ):
        yield CLEAN, images, labels
        pixels = np.around(images[..., :3].numpy() * 255).astype(np.uint8)
        for name in generated:
            for severity in SEVERITIES:
                corrupted = corrupt_batch(pixels, name, severity, first, seed)
                corrupted = tf.constant(corrupted.astype(np.float32) / 255)
                corrupted = tf.concat([corrupted, images[..., 3:]], axis=-1)
                yield Cell(name, severity), corrupted, labels
        first += len(pixels)
    for name, sources in prepared.items():
        for severity, source in zip(SEVERITIES, sources, strict=True):
            batches = _take(context.images.plain(source), examples)
            for images, labels in batches:
                yield Cell(name, severity), images, labels


def _take(batches: Batches, examples: int) -> Iterator[tuple[Any, Any]]:
    """Yields the batches of the first examples; 0: all."""
    left = examples or None
    for images, labels in batches:
        yield images[:left], labels[:left]
        if left is not None:
            left -= len(images)
            if left <= 0:
                return


# ---- Figures -----------------------------------------------------------------


def reliability_diagram(
    parts: Mapping[str, classification_metrics.Reliability],
) -> "plots.Figure":
    """Accuracy by confidence, and their distribution, by title of a panel."""
    figure, axes = plots.panels(
        2, len(parts), 3.2, 2.2, sharex=True, sharey="row", height_ratios=[3, 1]
    )
    for column, (title, bins) in zip(axes.T, parts.items(), strict=True):
        edges, full = bins["edges"], bins["count"] > 0
        widths, left = np.diff(edges), edges[:-1]
        middle = left + widths / 2
        top, bottom = column
        top.plot([0, 1], [0, 1], color=plots.QUIET, linestyle=":", linewidth=1)
        top.bar(
            middle[full],
            bins["accuracy"][full],
            widths[full],
            color=plots.FIRST,
            alpha=0.8,
            edgecolor="white",
            linewidth=0.5,
            label="accuracy",
        )
        top.plot(
            middle[full],
            bins["confidence"][full],
            color=plots.SECOND,
            marker="o",
            markersize=3,
            linestyle="none",
            label="mean confidence",
        )
        error = classification_metrics.calibration_error(bins)
        top.set_title(f"{title}: ECE {error:.3f}")
        top.set_ylim(0, 1)
        fractions = bins["count"] / bins["count"].sum()
        bottom.bar(
            middle, fractions, widths, color=plots.QUIET, edgecolor="white"
        )
        bottom.set_xlabel("confidence", fontsize=9)
        bottom.set_xlim(0, 1)
    axes[0, 0].set_ylabel("accuracy", fontsize=9)
    axes[1, 0].set_ylabel("fraction", fontsize=9)
    # The axes may be full of bars.
    plots.legend(figure, axes[0, 0], "lower center", ncols=2)
    return figure


def severity_curves(
    accuracies: Mapping[str, Sequence[float]], clean: float
) -> "plots.Figure":
    """Accuracy at severity 0 (clean), 1, 2, ... of each corruption."""
    from matplotlib import colormaps

    figure, axes = plots.panels(1, 1, 6.4, 3.8)
    axis = axes[0, 0]
    colors = colormaps["tab20"]
    curves = {name: [clean, *values] for name, values in accuracies.items()}
    for number, (name, values) in enumerate(curves.items()):
        axis.plot(
            values,
            color=colors(number % 20),
            marker="o",
            markersize=3,
            linewidth=1.2,
            label=name.replace("_", " "),
        )
    lengths = {len(values) for values in curves.values()}
    if len(curves) > 1 and len(lengths) == 1:
        mean = np.mean(list(curves.values()), axis=0)
        axis.plot(mean, color="black", linewidth=2.5, label="mean")
    severities = range(1, max(lengths))
    axis.set_xticks([0, *severities], ["clean", *map(str, severities)])
    axis.set_xlabel("severity")
    axis.set_ylabel("accuracy")
    axis.set_ylim(bottom=0)
    plots.legend(figure, axis, "right upper", borderaxespad=0.2)
    return figure
