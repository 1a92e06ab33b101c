"""Intervals and tests against slow resampling, SciPy, the papers' numbers."""

import numpy as np
import pytest
import scipy.stats

from tf_contrastive import evaluation
from tf_contrastive.evaluation import statistics


def _answers(n=400, gain=0.08, seed=0):
    """Two models' answers, of which one is better by about `gain`."""
    random = np.random.RandomState(seed)
    b = random.uniform(size=n) < 0.6
    a = np.where(random.uniform(size=n) < 0.75, b, random.uniform(size=n) < 0.6)
    return a | (random.uniform(size=n) < gain), b


def _golden():
    """b = 10, c = 3: what one model alone has right, of 73."""
    a = np.repeat([True, False, True, False], [10, 3, 40, 20])
    b = np.repeat([False, True, True, False], [10, 3, 40, 20])
    return a, b


# ---- Permutations ------------------------------------------------------------


def test_accuracies_have_mcnemars_exact_test():
    found = evaluation.permutation_test(*_golden())
    assert found["p_value"] == pytest.approx(0.0922851563, abs=1e-10)
    assert found["difference"] == pytest.approx(7 / 73)


def _fractions(n=60):
    random = np.random.RandomState(3)
    return [x * random.uniform(size=n) for x in _answers(n, gain=0.05)]


def test_fractions_are_swapped():
    a, b = _fractions()
    random = np.random.RandomState(5)
    hits = 0
    for _ in range(4000):
        swap = random.uniform(size=len(a)) < 0.5
        left, right = np.where(swap, b, a), np.where(swap, a, b)
        hits += abs((left - right).mean()) >= abs((a - b).mean()) - 1e-12
    p_value = hits / 4000
    found = evaluation.permutation_test(a, b)
    assert found["difference"] == pytest.approx((a - b).mean())
    error = np.sqrt(p_value * (1 - p_value) / 4000)
    assert 0.01 < p_value < 0.99
    assert abs(found["p_value"] - p_value) < 4 * error


def test_what_equals_the_difference_but_for_rounding_counts():
    a = [0.1, 0.2, 0.3]
    # All signs equal: 2 of 8 permutations.
    found = evaluation.permutation_test(a, [0.0] * 3)
    assert found["p_value"] == pytest.approx(0.25, abs=0.03)


def test_equal_models_are_tied_for_certain():
    a, _ = _answers()
    found = evaluation.compare(a, a)
    assert found["p_value"] == 1.0
    assert found["difference"] == found["low"] == found["high"] == 0.0
    assert found["verdict"] == "tied"


# ---- The bootstrap -----------------------------------------------------------


@pytest.mark.parametrize(("hits", "n"), [(260, 400), (0, 7), (7, 7), (1, 2000)])
def test_intervals_of_accuracies_are_exact(hits, n):
    found = evaluation.bootstrap_interval(np.arange(n) < hits)
    ends = scipy.stats.binom.ppf([0.025, 0.975], n, hits / n) / n
    assert [found["low"], found["high"]] == pytest.approx(ends, abs=1e-12)
    assert found["mean"] == hits / n


def _resample(values, labels=None, resamples=3000):
    """Ends of the interval by drawing rows one by one."""
    random = np.random.RandomState(7)
    drawn = []
    for _ in range(resamples):
        rows = random.randint(len(values), size=len(values))
        x = values[rows]
        if labels is None:
            drawn.append(x.mean())
        else:
            y = labels[rows]
            drawn.append(np.mean([x[y == c].mean() for c in np.unique(y)]))
    return np.percentile(drawn, [2.5, 97.5]), np.std(drawn)


def test_intervals_equal_resampling_rows():
    labels = np.repeat([0, 1, 9], [300, 95, 5])
    a, b = _answers()
    found = evaluation.bootstrap_interval(a, 3000, labels=labels)
    each = [a[labels == c].mean() for c in (0, 1, 9)]
    assert found["mean"] == pytest.approx(np.mean(each))
    share = np.random.RandomState(2).uniform(size=400)
    for ends, expected in (
        (found, _resample(a.astype(float), labels)),
        (evaluation.bootstrap_interval(a * share, 3000), _resample(a * share)),
        (evaluation.bootstrap_difference(a, b), _resample(a.astype(float) - b)),
    ):
        (low, high), deviation = expected
        assert ends["low"] == pytest.approx(low, abs=0.2 * deviation)
        assert ends["high"] == pytest.approx(high, abs=0.2 * deviation)


# ---- The verdict -------------------------------------------------------------


def test_verdicts():
    a, b = _answers(2000, gain=0.1)
    assert evaluation.compare(a, b)["verdict"] == "better"
    assert evaluation.compare(b, a)["verdict"] == "worse"
    assert evaluation.compare(*_golden())["verdict"] == "tied"
    # Both tests must say so. The 5 % level includes its end, whatever 1 - 0.95
    # is in floating point.
    for low, p_value, expected in (
        (0.01, 0.05, "better"),
        (0.01, np.nextafter(0.05, 1), "tied"),
        (-0.01, 0.01, "tied"),
        (0.0, 0.01, "tied"),
    ):
        assert statistics.verdict(low, 0.2, p_value) == expected


def test_every_name_of_the_package_is_there():
    for name in evaluation.__all__:
        assert getattr(evaluation, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = evaluation.nothing
