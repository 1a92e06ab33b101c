"""What protocols score, checked, and what they choose by and report."""

from collections.abc import Callable

import numpy as np

from tf_contrastive import classifiers, errors


def check(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    test_labels: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """Returns the four arrays of a protocol, checked.

    Args:
      train_embeddings: float [m, D].
      train_labels: int [m], from 0.
      test_embeddings: float [n, D].
      test_labels: int [n], from 0.

    Raises:
      UserError: for NaN, negative labels, or shapes that do not fit.
    """
    train = classifiers.check_embeddings("train_embeddings", train_embeddings)
    labels = classifiers.check_labels("train_labels", train_labels, train)
    test = classifiers.check_embeddings("test_embeddings", test_embeddings)
    wanted = classifiers.check_labels("test_labels", test_labels, test)
    if train.shape[1] != test.shape[1]:
        raise errors.UserError(
            f"train_embeddings have {train.shape[1]} features and"
            f" test_embeddings {test.shape[1]}: embed both with one encoder"
        )
    return train, labels, test, wanted


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
        raise errors.unknown("metric", name, METRICS)
    return METRICS[name]
