"""Confidence intervals of accuracies, and tests of their difference.

Where every answer is right or wrong, they are exact: what resampling converges
to. Means over classes and fractions are resampled; a resample or permutation is
drawn as the number of times that each distinct score occurs in it, which takes
time and memory that do not grow with the test set. RandomState is used because
its stream is stable across NumPy versions.
"""

from typing import Any

import numpy as np

from tf_contrastive.base import errors
from tf_contrastive.config.evaluate import Evaluation

# Confidence level of intervals, and the largest p-value that is significant.
LEVEL = 0.95
SIGNIFICANCE = 0.05
# Numbers drawn at a time: 32 MiB of int64.
_BLOCK = 4_194_304
# |d*| >= |d| compares sums of the same terms in another order.
_ROUNDING = 1e-9
# Resamples of confidence intervals, and draws of permutation tests.
_RESAMPLES = 1000
_DRAWS = 100_000


def _scores(name: str, correct: np.ndarray) -> np.ndarray:
    """Returns `correct` as float64 [n]."""
    scores = np.asarray(correct, np.float64)
    if scores.ndim != 1 or not np.all((scores >= 0) & (scores <= 1)):
        raise errors.UserError(
            f"{name} {list(scores.shape)}: pass true or false, or numbers from"
            " 0 to 1, one for each test example"
        )
    return scores


def _pair(
    correct_a: np.ndarray, correct_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    a, b = _scores("correct_a", correct_a), _scores("correct_b", correct_b)
    if len(a) != len(b) or not len(a):
        raise errors.UserError(
            f"correct_a has {len(a)} values and correct_b {len(b)}: score both"
            " on the same test examples, in the same order"
        )
    return a, b


# ---- Bootstrap ---------------------------------------------------------------


def _ends(
    values: np.ndarray, resamples: int, seed: int, labels: np.ndarray | None
) -> tuple[float, float]:
    """Returns the ends of the interval of the mean of `values` in [-1, 1]."""
    tail = (1 - LEVEL) / 2
    if labels is None and np.isin(values, (-1, 0, 1)).all():
        # The distribution of a sum of n draws is the n-th power of the one of a
        # draw, as polynomials are multiplied.
        n = len(values)
        of_one = np.bincount(values.astype(np.int64) + 1, minlength=3) / n
        of_sum = np.fft.irfft(np.fft.rfft(of_one, 2 * n + 2) ** n, 2 * n + 2)
        ends = (np.searchsorted(np.cumsum(of_sum), [tail, 1 - tail]) - n) / n
    else:
        means = _resampled(values, resamples, seed, labels)
        ends = np.percentile(means, [100 * tail, 100 * (1 - tail)])
    return float(ends[0]), float(ends[1])


def _resampled(
    values: np.ndarray, resamples: int, seed: int, labels: np.ndarray | None
) -> np.ndarray:
    """Returns the means (over classes of their means) of resamples."""
    random = np.random.RandomState(seed)
    index = np.zeros(len(values), np.int64)
    if labels is not None:
        index = np.unique(labels, return_inverse=True)[1]
    # The k distinct (class, value) pairs.
    pairs, counts = np.unique(
        np.stack([index, values], axis=1), axis=0, return_counts=True
    )
    classes = pairs[:, 0].astype(np.int64)
    member = np.eye(classes.max() + 1)[classes]  # [k, C]
    means = []
    rows = max(_BLOCK // len(counts), 1)
    for start in range(0, resamples, rows):
        drawn = random.multinomial(
            len(values), counts / len(values), min(rows, resamples - start)
        )
        sums, sizes = drawn @ (member * pairs[:, 1:]), drawn @ member
        # A class that a resample lacks is left out.
        of_classes = np.divide(
            sums, sizes, out=np.full(sums.shape, np.nan), where=sizes > 0
        )
        means.append(np.nanmean(of_classes, axis=1))
    return np.concatenate(means)


def bootstrap_interval(
    correct: np.ndarray,
    resamples: int = _RESAMPLES,
    seed: int = Evaluation.seed,
    *,
    labels: np.ndarray | None = None,
) -> dict[str, float]:
    """Computes the 95 % interval of an accuracy, by resampling the test set.

    Returns {"mean", "low", "high"}, the 2.5 % and the 97.5 % percentile.

    Args:
      correct: bool [n], or scores in [0, 1], of each test example.
      resamples: number of resamples of n examples, with replacement, of a mean
        over classes or of fractions; accuracies have all of them.
      seed: seed of the resamples.
      labels: int [n]; if set, the metric is the mean over classes of their
        accuracies, without classes that a resample lacks.

    Feeney and Hughes 2024 (SINCERE), section 5; Efron 1979.
    """
    values = _scores("correct", correct)
    low, high = _ends(values, resamples, seed, labels)
    mean = values.mean()
    if labels is not None:
        of = np.asarray(labels)
        mean = np.mean([values[of == c].mean() for c in np.unique(of)])
    return {"mean": float(mean), "low": low, "high": high}


def interval(
    correct: np.ndarray, labels: np.ndarray | None = None
) -> list[float]:
    """Returns [low, high] of `bootstrap_interval`."""
    ends = bootstrap_interval(correct, labels=labels)
    return [ends["low"], ends["high"]]


def bootstrap_difference(
    correct_a: np.ndarray,
    correct_b: np.ndarray,
    resamples: int = _RESAMPLES,
    seed: int = Evaluation.seed,
) -> dict[str, float]:
    """Computes the 95 % interval of the difference of two accuracies, paired.

    Returns {"difference": mean(a) - mean(b), "low", "high"}.

    Both models are scored on the same resamples of the same test examples, in
    the same order. Other arguments: see `bootstrap_interval`. The difference is
    significant if the interval excludes 0.

    Feeney and Hughes 2024 (SINCERE), section 5.
    """
    a, b = _pair(correct_a, correct_b)
    low, high = _ends(a - b, resamples, seed, None)
    return {"difference": float((a - b).mean()), "low": low, "high": high}


# ---- Tests -------------------------------------------------------------------


def permutation_test(
    correct_a: np.ndarray,
    correct_b: np.ndarray,
    draws: int = _DRAWS,
    seed: int = Evaluation.seed,
) -> dict[str, float]:
    """Tests whether two accuracies differ, by swapping the models' answers.

    Returns {"difference": mean(a) - mean(b), "p_value": two-sided}.

    Each draw swaps the two answers to each example with probability 1/2; the
    p-value is the fraction of draws whose |difference| is at least the observed
    one. That of accuracies is exact, McNemar's test; fractions are drawn.
    Arguments: see `bootstrap_difference`.

    Chen et al. 2020 (SimCLR), appendix B.8.
    """
    import scipy.stats

    a, b = _pair(correct_a, correct_b)
    # Of examples with equal differences, only the number of swaps matters.
    sizes, counts = np.unique(np.abs((a - b)[a != b]), return_counts=True)
    observed = float((a - b).mean())
    if not len(sizes):
        return {"difference": observed, "p_value": 1.0}
    if np.isin(sizes, 1).all():
        test = scipy.stats.binomtest(int((a > b).sum()), int(counts[0]))
        return {"difference": observed, "p_value": float(test.pvalue)}
    random = np.random.RandomState(seed)
    hits, rows = 0, max(_BLOCK // len(sizes), 1)
    for start in range(0, draws, rows):
        shape = (min(rows, draws - start), len(sizes))
        unswapped = random.binomial(counts, 0.5, size=shape)
        differences = np.abs((2 * unswapped - counts) @ sizes) / len(a)
        hits += int((differences >= abs(observed) - _ROUNDING).sum())
    return {"difference": observed, "p_value": hits / draws}


def verdict(low: float, high: float, p_value: float) -> str:
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
    resamples: int = _RESAMPLES,
    draws: int = _DRAWS,
    seed: int = Evaluation.seed,
) -> dict[str, Any]:
    """Compares two models on one test set, by interval and test.

    Arguments and results are those of `bootstrap_difference` and
    `permutation_test`; "verdict": see `verdict`.
    """
    ends = bootstrap_difference(correct_a, correct_b, resamples, seed)
    test = permutation_test(correct_a, correct_b, draws, seed)
    return {
        **ends,
        "p_value": test["p_value"],
        "verdict": verdict(ends["low"], ends["high"], test["p_value"]),
    }
