"""Intervals of accuracies, and tests of the difference of two of them.

A resample or a permutation is drawn by how often each distinct score occurs in
it: the same distribution as drawing rows one by one, in memory and time that
do not grow with the test set. RandomState, because its stream is frozen.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from tf_contrastive import errors

# Of intervals; and a p-value below 1 - LEVEL is significant.
LEVEL = 0.95
VERDICTS = ("better", "worse", "tied")
# Numbers drawn at a time: 32 MiB of int64.
_BLOCK = 4_194_304
# |d*| >= |d| compares sums of the same terms in another order.
_ROUNDING = 1e-9


def _check_correct(name: str, correct: np.ndarray) -> np.ndarray:
    """Returns `correct` as float64 [n], or says what is wrong."""
    array = np.asarray(correct)
    if array.ndim != 1 or not array.size:
        raise errors.UserError(
            f"{name} has shape {list(array.shape)}: give one value for each"
            " test example, at least one"
        )
    if array.dtype != bool and not np.issubdtype(array.dtype, np.number):
        raise errors.UserError(
            f"{name} are {array.dtype}: give true or false, or numbers from 0"
            " to 1"
        )
    array = array.astype(np.float64)
    bad = np.flatnonzero(~((array >= 0) & (array <= 1)))
    if bad.size:
        raise errors.UserError(
            f"{name}: value {bad[0]} is {array[bad[0]]:g}: give true or false,"
            " or numbers from 0 to 1"
        )
    return array


def _check_pair(correct_a, correct_b):
    a = _check_correct("correct_a", correct_a)
    b = _check_correct("correct_b", correct_b)
    if len(a) != len(b):
        raise errors.UserError(
            f"correct_a has {len(a)} values and correct_b {len(b)}: score both"
            " on the same test examples, in the same order"
        )
    return a, b


def _check_count(name: str, count: int) -> None:
    if count < 1:
        raise errors.UserError(f"{name}={count}: give at least 1")


def _check_seed(seed: int) -> np.random.RandomState:
    if not 0 <= seed < 2**32:
        raise errors.UserError(f"seed={seed}: give 0 to {2**32 - 1}")
    return np.random.RandomState(seed)


class _Cells(NamedTuple):
    """Distinct (class, value) pairs of examples, and how many have each."""

    classes: np.ndarray  # int [k], index from 0
    values: np.ndarray  # float64 [k]
    counts: np.ndarray  # int [k]

    def means(self, counts: np.ndarray) -> np.ndarray:
        """The metric of resamples that hold `counts` [r, k] of each: [r].

        The mean over classes of the mean over their examples; a class that a
        resample misses leaves it out.
        """
        member = np.eye(self.classes.max() + 1)[self.classes]  # [k, C]
        sums = counts @ (member * self.values[:, np.newaxis])
        sizes = counts @ member
        present = sizes > 0
        shares = np.divide(sums, sizes, out=np.zeros(sums.shape), where=present)
        return shares.sum(axis=1) / present.sum(axis=1)


def _cells(values: np.ndarray, labels: np.ndarray | None) -> _Cells:
    if labels is None:
        values, counts = np.unique(values, return_counts=True)
        return _Cells(np.zeros(len(values), np.int64), values, counts)
    labels = np.asarray(labels)
    if labels.shape != values.shape:
        raise errors.UserError(
            f"labels have shape {list(labels.shape)}: give one for each of the"
            f" {len(values)} test examples"
        )
    _, classes = np.unique(labels, return_inverse=True)
    pairs, counts = np.unique(
        np.stack([classes, values], axis=1), axis=0, return_counts=True
    )
    return _Cells(pairs[:, 0].astype(np.int64), pairs[:, 1], counts)


def _bootstrap(
    values: np.ndarray, labels: np.ndarray | None, resamples: int, seed: int
) -> tuple[float, float, float]:
    """Returns the metric of `values`, and the ends of its interval."""
    _check_count("resamples", resamples)
    random = _check_seed(seed)
    cells = _cells(values, labels)
    shares = cells.counts / len(values)
    rows = max(_BLOCK // len(shares), 1)
    drawn = [
        cells.means(
            random.multinomial(
                len(values), shares, size=min(rows, resamples - start)
            )
        )
        for start in range(0, resamples, rows)
    ]
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(np.concatenate(drawn), [tail, 100 - tail])
    whole = cells.means(cells.counts[np.newaxis])[0]
    return float(whole), float(low), float(high)


def bootstrap_interval(
    correct: np.ndarray,
    resamples: int = 1000,
    seed: int = 0,
    *,
    labels: np.ndarray | None = None,
) -> dict[str, float]:
    """The 95 % interval of an accuracy, by resampling the test set.

    Args:
      correct: bool [n], or scores in [0, 1], of each test example.
      resamples: of n examples each, with replacement.
      seed: of the resamples.
      labels: int [n]; if given, the metric is the mean over classes of their
        accuracies (a class that a resample misses leaves it out).

    Returns:
      {"mean": the accuracy, "low", "high": the 2.5 % and the 97.5 % percentile
      of the resamples' accuracies}, fractions.

    Raises:
      UserError: for no example, or values that are no such scores.

    Feeney and Hughes 2024 (SINCERE), section 5; Efron 1979.
    """
    values = _check_correct("correct", correct)
    mean, low, high = _bootstrap(values, labels, resamples, seed)
    return {"mean": mean, "low": low, "high": high}


def interval(
    correct: np.ndarray, labels: np.ndarray | None = None
) -> list[float]:
    """Ends of the 95 % interval of `bootstrap_interval`, as reports hold it.

    Args:
      correct, labels: see there.

    Returns:
      [low, high].
    """
    found = bootstrap_interval(np.asarray(correct), labels=labels)
    return [found["low"], found["high"]]


def bootstrap_difference(
    correct_a: np.ndarray,
    correct_b: np.ndarray,
    resamples: int = 1000,
    seed: int = 0,
    *,
    labels: np.ndarray | None = None,
) -> dict[str, float]:
    """The 95 % interval of the difference of two accuracies, paired.

    Both models are scored on the same resamples. The difference is significant
    where the interval leaves out 0.

    Args:
      correct_a, correct_b: bool [n], or scores in [0, 1], of the same test
        examples in the same order.
      resamples, seed, labels: see `bootstrap_interval`.

    Returns:
      {"difference": mean(a) - mean(b), "low", "high"}, fractions.

    Raises:
      UserError: for arrays that are no scores of the same examples.

    Feeney and Hughes 2024 (SINCERE), section 5.
    """
    a, b = _check_pair(correct_a, correct_b)
    difference, low, high = _bootstrap(a - b, labels, resamples, seed)
    return {"difference": difference, "low": low, "high": high}


def permutation_test(
    correct_a: np.ndarray,
    correct_b: np.ndarray,
    draws: int = 100_000,
    seed: int = 0,
    *,
    labels: np.ndarray | None = None,
) -> dict[str, float]:
    """Tests whether two accuracies differ, by swapping the models' answers.

    Each draw swaps the two answers to each example with probability 1/2; the
    p-value is the share of draws whose |difference| is at least that observed.
    For accuracies it converges to `mcnemar_test`.

    Args:
      correct_a, correct_b: bool [n], or scores in [0, 1], of the same test
        examples in the same order.
      draws: permutations.
      seed: of the permutations.
      labels: int [n]; if given, of the mean over classes.

    Returns:
      {"difference": mean(a) - mean(b), "p_value": two-sided}.

    Raises:
      UserError: for arrays that are no scores of the same examples.

    Chen et al. 2020 (SimCLR), appendix B.8.
    """
    a, b = _check_pair(correct_a, correct_b)
    _check_count("draws", draws)
    random = _check_seed(seed)
    terms = (a - b) * _weights(labels, len(a))
    observed = terms.sum()
    # Of examples that weigh the same, only how many are swapped matters.
    sizes, counts = np.unique(np.abs(terms[terms != 0]), return_counts=True)
    hits, rows = 0, max(_BLOCK // max(len(sizes), 1), 1)
    for start in range(0, draws, rows):
        shape = (min(rows, draws - start), len(sizes))
        kept = random.binomial(counts, 0.5, size=shape)
        drawn = np.abs((2 * kept - counts) @ sizes)
        hits += int((drawn >= abs(observed) - _ROUNDING).sum())
    return {"difference": float(observed), "p_value": hits / draws}


def _weights(labels: np.ndarray | None, count: int) -> np.ndarray:
    """What each example weighs in the metric, [n], summing to 1."""
    if labels is None:
        return np.full(count, 1 / count)
    if np.shape(labels) != (count,):
        raise errors.UserError(
            f"labels have shape {list(np.shape(labels))}: give one for each of"
            f" the {count} test examples"
        )
    _, classes, sizes = np.unique(
        labels, return_inverse=True, return_counts=True
    )
    return 1 / (len(sizes) * sizes[classes])


def mcnemar_test(
    correct_a: np.ndarray, correct_b: np.ndarray
) -> dict[str, float]:
    """McNemar's exact test: what the permutation test of accuracies samples.

    Args:
      correct_a, correct_b: bool [n] of the same test examples.

    Returns:
      {"only_a", "only_b": examples that one model alone has right,
      "difference": mean(a) - mean(b), "p_value": two-sided}.

    Raises:
      UserError: for arrays that are no answers to the same examples.

    McNemar 1947.
    """
    a, b = _check_pair(correct_a, correct_b)
    if not np.isin(np.concatenate([a, b]), [0, 1]).all():
        raise errors.UserError(
            "McNemar's test takes right and wrong, not scores between: give"
            " bool arrays, or use permutation_test"
        )
    only_a, only_b = int((a > b).sum()), int((b > a).sum())
    p_value = 1.0
    if only_a + only_b:
        p_value = scipy.stats.binomtest(only_a, only_a + only_b).pvalue
    return {
        "only_a": only_a,
        "only_b": only_b,
        "difference": float((a - b).mean()),
        "p_value": float(p_value),
    }


def verdict(low: float, high: float, p_value: float) -> str:
    """Says whether A is "better" or "worse" than B, or "tied" with it.

    Args:
      low, high: of `bootstrap_difference`.
      p_value: of `permutation_test`.

    Returns:
      "tied" unless both tests find a difference at 5 %: the interval leaves
      out 0, and p is below 0.05.
    """
    if p_value < 1 - LEVEL:
        if low > 0:
            return "better"
        if high < 0:
            return "worse"
    return "tied"


def compare(
    correct_a: np.ndarray,
    correct_b: np.ndarray,
    *,
    resamples: int = 1000,
    draws: int = 100_000,
    seed: int = 0,
    labels: np.ndarray | None = None,
) -> dict[str, Any]:
    """All that is to be said of two models on one test set.

    Args:
      correct_a, correct_b: bool [n], or scores in [0, 1], of the same test
        examples in the same order.
      resamples, draws, seed, labels: see `bootstrap_difference` and
        `permutation_test`.

    Returns:
      {"difference", "low", "high", "p_value", "verdict": of A against B}.

    Raises:
      UserError: for arrays that are no scores of the same examples.
    """
    found = bootstrap_difference(
        correct_a, correct_b, resamples, seed, labels=labels
    )
    tested = permutation_test(correct_a, correct_b, draws, seed, labels=labels)
    p_value = tested["p_value"]
    return {
        **found,
        "p_value": p_value,
        "verdict": verdict(found["low"], found["high"], p_value),
    }
