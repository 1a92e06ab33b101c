"""Intervals and tests against slow resampling, SciPy, the papers' numbers."""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from tf_contrastive import errors, evaluation
from tf_contrastive.evaluation import statistics

_PACKAGE = Path(__file__).resolve().parents[2]


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


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_permutations_sample_the_exact_test(seed):
    found = evaluation.permutation_test(*_golden(), seed=seed)
    p = scipy.stats.binomtest(10, 13).pvalue  # McNemar's exact test.
    assert p == pytest.approx(0.0922851563, abs=1e-10)
    error = np.sqrt(p * (1 - p) / 100_000)
    assert abs(found["p_value"] - p) < 4 * error
    assert found["difference"] == pytest.approx(7 / 73)


def _swapped(a, b, draws, labels=None):
    """The p-value by swapping answers one by one."""
    random = np.random.RandomState(5)

    def metric(x):
        if labels is None:
            return x.mean()
        return np.mean([x[labels == c].mean() for c in np.unique(labels)])

    observed = metric(a) - metric(b)
    hits = 0
    for _ in range(draws):
        swap = random.uniform(size=len(a)) < 0.5
        left, right = np.where(swap, b, a), np.where(swap, a, b)
        hits += abs(metric(left) - metric(right)) >= abs(observed) - 1e-12
    return observed, hits / draws


@pytest.mark.parametrize("kind", ["right", "shares", "per_class"])
def test_permutations_equal_swapping_answers(kind):
    a, b = _answers(60, gain=0.05)
    labels = None
    if kind == "shares":
        random = np.random.RandomState(3)
        a, b = (np.clip(x * random.uniform(size=60), 0, 1) for x in (a, b))
    if kind == "per_class":
        labels = np.repeat([0, 4, 7], [35, 20, 5])
    observed, p_value = _swapped(a.astype(float), b.astype(float), 4000, labels)
    found = evaluation.permutation_test(a, b, labels=labels)
    assert found["difference"] == pytest.approx(observed)
    error = np.sqrt(p_value * (1 - p_value) / 4000)
    assert 0.01 < p_value < 0.99
    assert abs(found["p_value"] - p_value) < 4 * error


def test_equal_models_are_tied_for_certain():
    a, _ = _answers()
    found = evaluation.compare(a, a)
    assert found["p_value"] == 1.0
    assert found["difference"] == found["low"] == found["high"] == 0.0
    assert found["verdict"] == "tied"


def test_permutations_take_little_memory():
    a, b = _answers(10_000)
    shares = np.random.RandomState(0).uniform(size=10_000)
    tracemalloc.start()
    evaluation.permutation_test(a, b)
    # Scores that all differ are the worst case.
    evaluation.permutation_test(a * shares, b * shares, draws=2000)
    evaluation.bootstrap_difference(a * shares, b * shares)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6  # 100,000 draws of 10,000 bool would be 1 GB.


# ---- The bootstrap -----------------------------------------------------------


def _resampled(values, labels=None, resamples=3000):
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


@pytest.mark.parametrize("labels", [None, np.repeat([0, 1, 9], [300, 95, 5])])
def test_intervals_equal_resampling_rows(labels):
    a, b = _answers()
    found = evaluation.bootstrap_interval(a, 3000, labels=labels)
    (low, high), deviation = _resampled(a.astype(float), labels)
    assert found["low"] == pytest.approx(low, abs=0.2 * deviation)
    assert found["high"] == pytest.approx(high, abs=0.2 * deviation)
    paired = evaluation.bootstrap_difference(a, b, 3000, labels=labels)
    (low, high), deviation = _resampled(a.astype(float) - b, labels)
    assert paired["low"] == pytest.approx(low, abs=0.2 * deviation)
    assert paired["high"] == pytest.approx(high, abs=0.2 * deviation)
    if labels is None:
        assert found["mean"] == a.mean()
        assert paired["difference"] == pytest.approx(a.mean() - b.mean())
    else:
        each = [a[labels == c].mean() for c in (0, 1, 9)]
        assert found["mean"] == pytest.approx(np.mean(each))


def test_an_interval_covers_as_often_as_it_says():
    covered = []
    for seed in range(300):
        correct = np.random.RandomState(seed).uniform(size=200) < 0.7
        found = evaluation.bootstrap_interval(correct, 500, seed=seed)
        covered.append(found["low"] <= 0.7 <= found["high"])
    assert 0.90 < np.mean(covered) < 0.98


def test_an_interval_is_that_of_scipy():
    a, _ = _answers()
    theirs = scipy.stats.bootstrap(
        (a.astype(float),),
        np.mean,
        n_resamples=4000,
        method="percentile",
        random_state=0,
    ).confidence_interval
    ours = evaluation.bootstrap_interval(a, 4000)
    assert ours["low"] == pytest.approx(theirs.low, abs=0.005)
    assert ours["high"] == pytest.approx(theirs.high, abs=0.005)


def test_pairing_tells_what_separate_intervals_do_not():
    a, b = _answers(500, gain=0.1)
    paired = evaluation.bootstrap_difference(a, b)
    width = paired["high"] - paired["low"]
    apart = np.sqrt(a.var() / 500 + b.var() / 500) * 2 * 1.96
    assert width < 0.75 * apart


def test_one_seed_gives_one_result():
    a, b = _answers()
    assert evaluation.compare(a, b, seed=3) == evaluation.compare(a, b, seed=3)
    assert evaluation.compare(a, b, seed=3) != evaluation.compare(a, b, seed=4)


# ---- The verdict -------------------------------------------------------------


def test_verdicts():
    a, b = _answers(2000, gain=0.1)
    assert evaluation.compare(a, b)["verdict"] == "better"
    assert evaluation.compare(b, a)["verdict"] == "worse"
    assert evaluation.compare(*_golden())["verdict"] == "tied"
    # Both tests must say so.
    assert statistics.verdict(0.01, 0.2, 0.04) == "better"
    assert statistics.verdict(-0.2, -0.01, 0.04) == "worse"
    assert statistics.verdict(0.01, 0.2, 0.06) == "tied"
    # The 5 % level includes its end, whatever 1 - 0.95 is in floating point.
    assert statistics.SIGNIFICANCE == 0.05
    assert statistics.verdict(0.01, 0.2, 0.05) == "better"
    assert statistics.verdict(0.01, 0.2, np.nextafter(0.05, 1)) == "tied"
    assert statistics.verdict(-0.01, 0.2, 0.01) == "tied"
    assert statistics.verdict(0.0, 0.2, 0.01) == "tied"


# ---- Bad input ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([], [], "correct_a"),
        ([[1]], [1], "correct_a"),
        ([1, 0], [1], "correct_b"),
        ([1, np.nan], [1, 0], "correct_a: value 1 is nan"),
        ([1, 0], [1, 2], "correct_b: value 1 is 2"),
        (["a"], ["b"], "correct_a: value 0 is a"),
    ],
)
def test_what_are_no_answers_is_refused(a, b, message):
    for test in (
        evaluation.bootstrap_difference,
        evaluation.permutation_test,
    ):
        with pytest.raises(errors.UserError, match=message):
            test(a, b)


def test_other_options_are_refused():
    a, b = _answers(20)
    with pytest.raises(errors.UserError, match="resamples=0"):
        evaluation.bootstrap_interval(a, 0)
    with pytest.raises(errors.UserError, match="draws=0"):
        evaluation.permutation_test(a, b, draws=0)
    with pytest.raises(errors.UserError, match="seed=-1"):
        evaluation.permutation_test(a, b, seed=-1)
    with pytest.raises(errors.UserError, match="one for each of the 20"):
        evaluation.bootstrap_interval(a, labels=[1, 2])
    with pytest.raises(errors.UserError, match="one for each of the 20"):
        evaluation.permutation_test(a, b, labels=[1, 2])


# ---- The package -------------------------------------------------------------


def test_evaluation_imports_nothing_until_it_is_used():
    code = (
        "import sys; from tf_contrastive import evaluation\n"
        "heavy = 'tensorflow', 'scipy', 'sklearn', 'matplotlib'\n"
        "assert not any(name in sys.modules for name in heavy)\n"
        "evaluation.permutation_test([True], [False])\n"
        "assert 'numpy' in sys.modules\n"
        "sys.exit(any(name in sys.modules for name in heavy))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=_PACKAGE)


def test_every_name_of_the_package_is_there():
    for name in evaluation.__all__:
        assert getattr(evaluation, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = evaluation.nothing


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
