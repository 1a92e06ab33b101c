"""Calibration of a classifier's confidences."""

from typing import TypedDict

import numpy as np

from tf_contrastive.config.protocols import RobustnessProtocol
from tf_contrastive.errors import UserError

# Rows of probabilities sum to 1 up to half precision.
_SUM_TOLERANCE = 1e-2


class Reliability(TypedDict):
    """Edges [bins + 1], and for each bin [bins]; 0 for an empty bin."""

    edges: np.ndarray
    count: np.ndarray
    accuracy: np.ndarray  # Mean over the bin's examples.
    confidence: np.ndarray  # The same.


def reliability(
    confidences: np.ndarray,
    correct: np.ndarray,
    bins: int = RobustnessProtocol.bins,
) -> Reliability:
    """Accuracy as a function of confidence. Guo et al. 2017, section 2.

    Args:
      confidences: float [n] in [0, 1], probability of the predicted class.
      correct: bool [n], whether the prediction is right.
      bins: number of bins of equal width, (lo, hi]; the first contains 0.
    """
    if bins < 1:
        raise UserError(f"bins={bins}: must be at least 1")
    confidences = np.asarray(confidences, np.float64)
    correct = np.asarray(correct)
    if confidences.ndim != 1 or not confidences.size:
        raise UserError(
            f"confidences have shape {list(confidences.shape)}: pass one for"
            " each example, at least one"
        )
    if correct.shape != confidences.shape:
        raise UserError(
            f"correct has shape {list(correct.shape)}: pass one value for each"
            f" of the {len(confidences)} confidences"
        )
    bad = np.flatnonzero(~((confidences >= 0) & (confidences <= 1)))
    if bad.size:
        raise UserError(
            f"confidence {bad[0]} is {confidences[bad[0]]:g}: pass"
            " probabilities from 0 to 1"
        )
    edges = np.linspace(0, 1, bins + 1)
    rows = np.maximum(np.searchsorted(edges, confidences) - 1, 0)
    count = np.bincount(rows, minlength=bins)
    sizes = np.maximum(count, 1)
    hits = np.bincount(rows, correct.astype(np.float64), bins)
    return {
        "edges": edges,
        "count": count,
        "accuracy": hits / sizes,
        "confidence": np.bincount(rows, confidences, bins) / sizes,
    }


def calibration_error(bins: Reliability) -> float:
    """Expected calibration error of a result of `reliability`."""
    gaps = np.abs(bins["accuracy"] - bins["confidence"])
    return float((gaps * bins["count"]).sum() / bins["count"].sum())


def expected_calibration_error(
    probabilities: np.ndarray,
    labels: np.ndarray,
    bins: int = RobustnessProtocol.bins,
) -> float:
    """Mean distance between confidence and accuracy, a fraction.

    sum_m |B_m| / n |accuracy(B_m) - confidence(B_m)|, where the confidence is
    an example's largest probability. Guo et al. 2017, equation 3.

    Args:
      probabilities: float [n, C], rows that sum to 1.
      labels: int [n], below C.
      bins: see `reliability`.
    """
    p = np.asarray(probabilities, np.float64)
    y = np.asarray(labels)
    if p.ndim != 2 or not p.size:
        raise UserError(
            f"probabilities have shape {list(p.shape)}: pass [examples,"
            " classes], at least one of each"
        )
    sums = p.sum(axis=1)
    good = (p >= 0).all(axis=1) & (np.abs(sums - 1) <= _SUM_TOLERANCE)
    bad = np.flatnonzero(~good)
    if bad.size:
        raise UserError(
            f"row {bad[0]} of probabilities sums to {sums[bad[0]]:g}, its"
            f" minimum is {p[bad[0]].min():g}: pass a softmax of logits"
        )
    if y.shape != (len(p),) or not np.issubdtype(y.dtype, np.integer):
        raise UserError(
            f"labels are {y.dtype} {list(y.shape)}: pass an integer class id"
            f" for each of the {len(p)} rows of probabilities"
        )
    wrong = np.flatnonzero((y < 0) | (y >= p.shape[1]))
    if wrong.size:
        raise UserError(
            f"label {wrong[0]} is {y[wrong[0]]}: pass 0 to {p.shape[1] - 1},"
            " the columns of probabilities"
        )
    # Rows may sum to a little more than 1.
    confidences = np.minimum(p.max(axis=1), 1.0)
    correct = p.argmax(axis=1) == y
    return calibration_error(reliability(confidences, correct, bins))
