"""Accuracies of predictions: what the protocols choose by and report."""

from collections.abc import Callable

import numpy as np

from tf_contrastive import config


def top1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Share of the examples whose prediction is right.

    Args:
      predictions, labels: int [n].
    """
    return float(np.mean(np.asarray(predictions) == labels))


def mean_per_class(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Mean over the classes present of the share that is right of each.

    Args:
      predictions, labels: int [n].
    """
    classes, index = np.unique(labels, return_inverse=True)
    right = (np.asarray(predictions) == labels).astype(np.float64)
    hits = np.bincount(index, right, minlength=len(classes))
    return float(np.mean(hits / np.bincount(index)))


# (predictions int [n], labels int [n]) -> fraction.
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "top1": top1,
    "mean_per_class": mean_per_class,
}


def metric(name: str) -> Callable[[np.ndarray, np.ndarray], float]:
    """The metric of a name.

    Raises:
      UserError: for an unknown one.
    """
    if name not in METRICS:
        raise config.unknown("metric", name, METRICS)
    return METRICS[name]
