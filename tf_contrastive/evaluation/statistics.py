"""Confidence intervals of accuracies, and tests of their difference.

A resample or permutation is drawn as the number of times that each distinct
score occurs in it: the same distribution as drawing row by row, with time and
memory that do not grow with the test set. RandomState is used because its
stream is stable across NumPy versions.
"""

from typing import Literal, TypedDict

import numpy as np

from tf_contrastive import errors
from tf_contrastive.config.evaluate import (
    BOOTSTRAP_RESAMPLES,
    PERMUTATION_DRAWS,
    Evaluation,
)

# Confidence level of intervals, and the largest p-value that is significant.
LEVEL = 0.95
SIGNIFICANCE = 0.05
# Numbers drawn at a time: 32 MiB of int64.
_BLOCK = 4_194_304
# |d*| >= |d| compares sums of the same terms in another order.
_ROUNDING = 1e-9

Verdict = Literal["better", "worse", "tied"]


class Interval(TypedDict):
    """Mean, and the 2.5 % and the 97.5 % percentile of its resamples."""

    mean: float
    low: float
    high: float


class DifferenceInterval(TypedDict):
    """mean(a) - mean(b), and the ends of its 95 % interval."""

    difference: float
    low: float
    high: float


class DifferenceTest(TypedDict):
    """mean(a) - mean(b), and the two-sided p-value."""

    difference: float
    p_value: float


class Comparison(DifferenceInterval):
    """Interval and test of A against B."""

    p_value: float
    verdict: Verdict


# ---- Validation --------------------------------------------------------------


def _check_correct(name: str, correct: np.ndarray) -> np.ndarray:
    """Returns `correct` as float64 [n]."""
    array = np.asarray(correct)
    if array.ndim != 1 or not array.size:
        raise errors.UserError(
            f"{name} has shape {list(array.shape)}: pass one value for each"
            " test example, at least one"
        )
    is_number = np.issubdtype(array.dtype, np.number) or array.dtype == bool
    values = array.astype(np.float64) if is_number else np.full(len(array), -1)
    bad = np.flatnonzero(~((values >= 0) & (values <= 1)))
    if bad.size:
        raise errors.UserError(
            f"{name}: value {bad[0]} is {array[bad[0]]}: pass true or false, or"
            " numbers from 0 to 1"
        )
    return values


def _check_pair(
    correct_a: np.ndarray, correct_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    a = _check_correct("correct_a", correct_a)
    b = _check_correct("correct_b", correct_b)
    if len(a) != len(b):
        raise errors.UserError(
            f"correct_a has {len(a)} values and correct_b {len(b)}: score both"
            " on the same test examples, in the same order"
        )
    return a, b


def _check_labels(
    labels: np.ndarray | None, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (class index of each example [n], size of each class)."""
    if labels is None:
        return np.zeros(count, np.int64), np.array([count])
    if np.shape(labels) != (count,):
        raise errors.UserError(
            f"labels have shape {list(np.shape(labels))}: pass one for each of"
            f" the {count} test examples"
        )
    _, index, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return index, sizes


def _random(name: str, count: int, seed: int) -> np.random.RandomState:
    if count < 1:
        raise errors.UserError(f"{name}={count}: must be at least 1")
    if not 0 <= seed < 2**32:
        raise errors.UserError(
            f"{errors.arg('seed', seed)}: must be 0 to {2**32 - 1}"
        )
    return np.random.RandomState(seed)


# ---- Bootstrap ---------------------------------------------------------------


def _bootstrap(
    values: np.ndarray, labels: np.ndarray | None, resamples: int, seed: int
) -> tuple[float, float, float]:
    """Returns the metric of `values`, and the ends of its interval."""
    random = _random("resamples", resamples, seed)
    index, _ = _check_labels(labels, len(values))
    # The k distinct (class, value) pairs.
    pairs, counts = np.unique(
        np.stack([index, values], axis=1), axis=0, return_counts=True
    )
    classes = pairs[:, 0].astype(np.int64)
    member = np.eye(classes.max() + 1)[classes]  # [k, C]

    def metric(counts: np.ndarray) -> np.ndarray:
        """Means over classes [r] of resamples with `counts` [r, k] of each."""
        sums = counts @ (member * pairs[:, 1:])
        sizes = counts @ member
        present = sizes > 0
        means = np.divide(sums, sizes, out=np.zeros(sums.shape), where=present)
        return means.sum(axis=1) / present.sum(axis=1)

    fractions = counts / len(values)
    rows = max(_BLOCK // len(fractions), 1)
    sizes = [
        min(rows, resamples - start) for start in range(0, resamples, rows)
    ]
    means = [
        metric(random.multinomial(len(values), fractions, size=size))
        for size in sizes
    ]
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(np.concatenate(means), [tail, 100 - tail])
    return float(metric(counts[np.newaxis])[0]), float(low), float(high)


def bootstrap_interval(
    correct: np.ndarray,
    resamples: int = BOOTSTRAP_RESAMPLES,
    seed: int = Evaluation.seed,
    *,
    labels: np.ndarray | None = None,
) -> Interval:
    """Computes the 95 % interval of an accuracy, by resampling the test set.

    Args:
      correct: bool [n], or scores in [0, 1], of each test example.
      resamples: number of resamples of n examples, with replacement.
      seed: seed of the resamples.
      labels: int [n]; if set, the metric is the mean over classes of their
        accuracies, without classes that a resample lacks.

    Feeney and Hughes 2024 (SINCERE), section 5; Efron 1979.
    """
    values = _check_correct("correct", correct)
    mean, low, high = _bootstrap(values, labels, resamples, seed)
    return {"mean": mean, "low": low, "high": high}


def interval(
    correct: np.ndarray, labels: np.ndarray | None = None
) -> list[float]:
    """Returns [low, high] of `bootstrap_interval`."""
    ends = bootstrap_interval(correct, labels=labels)
    return [ends["low"], ends["high"]]


def bootstrap_difference(
    correct_a: np.ndarray,
    correct_b: np.ndarray,
    resamples: int = BOOTSTRAP_RESAMPLES,
    seed: int = Evaluation.seed,
    *,
    labels: np.ndarray | None = None,
) -> DifferenceInterval:
    """Computes the 95 % interval of the difference of two accuracies, paired.

    Both models are scored on the same resamples of the same test examples, in
    the same order. Other arguments: see `bootstrap_interval`. The difference is
    significant if the interval excludes 0.

    Feeney and Hughes 2024 (SINCERE), section 5.
    """
    a, b = _check_pair(correct_a, correct_b)
    difference, low, high = _bootstrap(a - b, labels, resamples, seed)
    return {"difference": difference, "low": low, "high": high}


# ---- Tests -------------------------------------------------------------------


def permutation_test(
    correct_a: np.ndarray,
    correct_b: np.ndarray,
    draws: int = PERMUTATION_DRAWS,
    seed: int = Evaluation.seed,
    *,
    labels: np.ndarray | None = None,
) -> DifferenceTest:
    """Tests whether two accuracies differ, by swapping the models' answers.

    Each draw swaps the two answers to each example with probability 1/2; the
    p-value is the fraction of draws whose |difference| is at least the observed
    one. For accuracies it converges to that of McNemar's exact test. Arguments:
    see `bootstrap_difference`.

    Chen et al. 2020 (SimCLR), appendix B.8.
    """
    a, b = _check_pair(correct_a, correct_b)
    random = _random("draws", draws, seed)
    index, sizes = _check_labels(labels, len(a))
    terms = (a - b) * (1 / (len(sizes) * sizes[index]))
    observed = terms.sum()
    # Of examples with equal weights, only the number of swaps matters.
    weights, counts = np.unique(np.abs(terms[terms != 0]), return_counts=True)
    hits, rows = 0, max(_BLOCK // max(len(weights), 1), 1)
    for start in range(0, draws, rows):
        shape = (min(rows, draws - start), len(weights))
        unswapped = random.binomial(counts, 0.5, size=shape)
        differences = np.abs((2 * unswapped - counts) @ weights)
        hits += int((differences >= abs(observed) - _ROUNDING).sum())
    return {"difference": float(observed), "p_value": hits / draws}


def verdict(low: float, high: float, p_value: float) -> Verdict:
    """Returns whether A is "better" or "worse" than B, or "tied" with it.

    It is "tied" unless both find a difference at the 5 % level: the interval
    (low, high) excludes 0, and p <= 0.05.
    """
    if p_value <= SIGNIFICANCE:
        if low > 0:
            return "better"
        if high < 0:
            return "worse"
    return "tied"


def compare(
    correct_a: np.ndarray,
    correct_b: np.ndarray,
    *,
    resamples: int = BOOTSTRAP_RESAMPLES,
    draws: int = PERMUTATION_DRAWS,
    seed: int = Evaluation.seed,
    labels: np.ndarray | None = None,
) -> Comparison:
    """Compares two models on one test set, by interval and test.

    Arguments: see `bootstrap_difference` and `permutation_test`.
    """
    ends = bootstrap_difference(
        correct_a, correct_b, resamples, seed, labels=labels
    )
    test = permutation_test(correct_a, correct_b, draws, seed, labels=labels)
    return {
        **ends,
        "p_value": test["p_value"],
        "verdict": verdict(ends["low"], ends["high"], test["p_value"]),
    }
