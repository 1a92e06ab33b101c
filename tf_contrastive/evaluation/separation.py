"""Separation of classes: similarity to the own class and to other classes.

The protocol `separation`: margins per class and neighbour histograms of Feeney
and Hughes 2024 (SINCERE), section 4.1 and figure 2.
"""

from typing import Any

import numpy as np

from tf_contrastive import classifiers
from tf_contrastive.base import errors
from tf_contrastive.evaluation import figures
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.report import Measurement

# 1024 x 8192 cosines of float32 are 32 MiB, whatever the sizes of the splits.
QUERY_BLOCK = 1024
BANK_BLOCK = 8192
# As the authors' code draws them.
HISTOGRAM_RANGE = (-0.1, 1.0)
HISTOGRAM_BINS = 100
# Class ids are places in `per_class`, 128 MiB at most.
_MAX_CLASSES = 2**24


def separation_margin(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    test_labels: np.ndarray,
) -> dict[str, Any]:
    """Margin between the similarity to the own class and to other classes.

    The margin of a class is the median, over its test images, of the largest
    cosine to train images of the class, minus the median of the largest cosine
    to train images of other classes. Embeddings are float [m, D] and [n, D],
    l2-normalized inside; labels are int, from 0. Train needs two classes, and
    one that test has.

    Returns:
      {"mean": over the classes that have a margin, "per_class" [C], NaN if
      train or test lacks a class, "target" and "noise": the largest cosines
      float32 [n] to the own class and to others, NaN without such images}.

    Feeney and Hughes 2024 (SINCERE), section 4.1 and table 1, per class as its
    caption says (the authors' code takes medians over all images).
    """
    train, labels, test = classifiers.check_train_and_test(
        train_embeddings, train_labels, test_embeddings
    )
    test_labels = classifiers.check_labels("test_labels", test_labels, test)
    classes = int(max(labels.max(), test_labels.max())) + 1
    if classes > _MAX_CLASSES:
        raise errors.UserError(
            f"labels hold {classes - 1:,}: pass class ids from 0, below"
            f" {_MAX_CLASSES:,}"
        )
    # Sorted by class, so that a class's largest cosine is a running maximum.
    order = np.argsort(labels, kind="stable")
    queries = classifiers.normalize(test)
    target = np.full(len(test), -np.inf, np.float32)
    noise = np.full(len(test), -np.inf, np.float32)
    for start in range(0, len(order), BANK_BLOCK):
        rows = order[start : start + BANK_BLOCK]
        bank = classifiers.normalize(train[rows])
        present, starts = np.unique(labels[rows], return_index=True)
        for first in range(0, len(queries), QUERY_BLOCK):
            part = slice(first, first + QUERY_BLOCK)
            best = np.maximum.reduceat(
                queries[part] @ bank.T, starts, axis=1
            )  # [b, present]
            own = test_labels[part, np.newaxis] == present
            for largest, mask in ((target, own), (noise, ~own)):
                masked = np.where(mask, best, -np.inf).max(axis=1)
                largest[part] = np.maximum(largest[part], masked)
    for largest in (target, noise):
        largest[np.isneginf(largest)] = np.nan
    if len(np.unique(labels)) < 2:
        raise errors.UserError(
            f"train_labels hold only class {labels[0]}: a margin needs"
            " at least two classes"
        )
    per_class = np.full(classes, np.nan)
    for label in np.intersect1d(labels, test_labels):
        rows = test_labels == label
        per_class[label] = np.median(target[rows]) - np.median(noise[rows])
    if np.isnan(per_class).all():
        raise errors.UserError(
            "no class of test_labels is in train_labels: pass two splits of"
            " one dataset"
        )
    return {
        "mean": float(np.nanmean(per_class)),
        "per_class": per_class,
        "target": target,
        "noise": noise,
    }


def neighbor_histograms(
    target: np.ndarray, noise: np.ndarray, bins: int = HISTOGRAM_BINS
) -> dict[str, Any]:
    """Histograms of the cosines of `separation_margin`, float [n].

    NaN is ignored; values outside of [-0.1, 1] go into the first or last bin.
    Returns {"edges" [bins + 1], "target", "noise" (fractions [bins]),
    "target_median", "noise_median"}; zeros and NaN without any value.
    """
    edges = np.linspace(*HISTOGRAM_RANGE, bins + 1)

    def histogram(values: np.ndarray) -> tuple[np.ndarray, float]:
        values = np.asarray(values)[np.isfinite(values)]
        counts, _ = np.histogram(np.clip(values, *HISTOGRAM_RANGE), edges)
        median = np.median(values) if len(values) else np.nan
        return counts / max(len(values), 1), float(median)

    (target, target_median), (noise, noise_median) = map(
        histogram, (target, noise)
    )
    return {
        "edges": edges,
        "target": target,
        "noise": noise,
        "target_median": target_median,
        "noise_median": noise_median,
    }


def measure(context: EvaluationContext) -> Measurement:
    """The protocol `separation`, of the embeddings h and the projections z.

    The paper measures the space in which the loss compares images, which is z;
    users of an encoder get h. "margin_of_medians" is |median - median| over all
    test images, as the authors' code computes it. If train has one class only,
    or none of test's classes, there is only "margin": None.
    """
    train_labels = context.data.labels("train")
    labels = context.data.labels("test")
    classes = np.unique(train_labels)
    if len(classes) < 2 or not np.isin(labels, classes).any():
        context.log(
            f"separation: train has {len(classes)} class(es), test has"
            f" {np.isin(classes, labels).sum()} of them: no margin"
        )
        return {"metrics": {"margin": None}}
    measurement: Measurement = {"metrics": {}, "plots": {}, "arrays": {}}
    spaces = {"": context.embeddings}
    if context.subject.projection is not None:
        spaces["projection_"] = context.projections
    for prefix, embeddings in spaces.items():
        train, test = embeddings("train")[0], embeddings("test")[0]
        margin = separation_margin(train, train_labels, test, labels)
        target, noise = margin["target"], margin["noise"]
        histograms = neighbor_histograms(target, noise)
        titles = context.data.test.info.label_names
        panels = {"all classes": histograms}
        for label in np.unique(labels):
            rows = labels == label
            title = titles[label] if label < len(titles) else f"class {label}"
            panels[title] = neighbor_histograms(target[rows], noise[rows])
        medians = histograms["target_median"], histograms["noise_median"]
        metrics = {
            "margin": margin["mean"],
            "margin_per_class": margin["per_class"],
            "margin_of_medians": abs(medians[0] - medians[1]),
            "target_median": medians[0],
            "noise_median": medians[1],
        }
        measurement["metrics"] |= {f"{prefix}{k}": metrics[k] for k in metrics}
        measurement["plots"][f"{prefix}neighbors"] = figures.neighbors(panels)
        measurement["arrays"][f"{prefix}target"] = target
        measurement["arrays"][f"{prefix}noise"] = noise
    return measurement
