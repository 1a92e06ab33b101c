"""Logistic regression: the objective of scikit-learn's, selection, refit."""

import functools

import blobs
import numpy as np
import pytest
from sklearn import linear_model, metrics

from tf_contrastive.evaluation import logistic

_blobs = functools.partial(blobs.blobs, features=12, spread=1.5)


def _value(x, y, kernel, bias, penalty):
    """The objective, example by example, in float64."""
    total = penalty / 2 * np.sum(np.float64(kernel) ** 2)
    for row, label in zip(np.float64(x), y, strict=True):
        logits = row @ kernel + bias
        total += np.logaddexp.reduce(logits) - logits[label]
    return total


def _theirs(x, y, penalty):
    return linear_model.LogisticRegression(
        C=1 / penalty, tol=1e-10, max_iter=100_000
    ).fit(np.float64(x), y)


def _stretched():
    """Directions whose strengths differ by 30, away from the origin."""
    x, y = _blobs(300)
    return (x * np.logspace(-0.75, 0.75, 12) + 3).astype(np.float32), y


def _wide():
    """More features than examples, so that every class can be told."""
    return _blobs(40, features=100, spread=1.0)


@pytest.mark.parametrize(
    "data", [lambda: _blobs(300), _stretched, _wide], ids=["n>D", "far", "n<D"]
)
@pytest.mark.parametrize("penalty", [1e4, 1.0, 1e-3])
def test_a_fit_reaches_scikit_learn_s_objective(data, penalty):
    x, y = data()
    fit = logistic.Problem(x, y, 4).solve(penalty)
    model = _theirs(x, y, penalty)
    best = _value(x, y, model.coef_.T, model.intercept_, penalty)
    found = _value(x, y, fit.kernel, fit.bias, penalty)
    assert fit.objective == pytest.approx(found, rel=1e-4)
    assert found <= best * (1 + 1e-5)
    # From below it is bounded by the best, whoever came nearer to it.
    assert found >= best * (1 - 1e-4)
    probabilities = model.predict_proba(np.float64(x))
    logits = fit.logits(x)
    ours = np.exp(logits - np.logaddexp.reduce(logits, 1, keepdims=True))
    np.testing.assert_allclose(ours, probabilities, atol=5e-3)


def test_separable_data_at_the_lowest_penalty():
    # The loss goes to nearly nothing, which a sum of 1 - 1 could not show.
    x, y = _blobs(60, features=30, spread=0.1)
    path = logistic.path_of(45)
    fits = logistic.fit_path(logistic.Problem(x, y, 4), path)
    values = [fit.objective for fit in fits]
    assert all(np.diff(values) < 0)
    best = _theirs(x, y, path[-1])
    wanted = _value(x, y, best.coef_.T, best.intercept_, path[-1])
    assert values[-1] < 0.01
    assert values[-1] == pytest.approx(
        _value(x, y, fits[-1].kernel, fits[-1].bias, path[-1]), rel=1e-3
    )
    assert values[-1] <= wanted * (1 + 1e-3)


def _four(n=200, **options):
    return *_blobs(n, **options), *_blobs(100, seed=1, **options)


def test_the_penalty_is_chosen_on_validation_and_refitted_on_all():
    x, y, tx, ty = _four(spread=3.0)
    found = logistic.logistic_regression(x, y, tx, ty, seed=3)
    scores = [point["validation"] for point in found["path"]]
    penalties = [point["penalty"] for point in found["path"]]
    best = penalties[int(np.argmax(scores))]
    assert found["penalty"] == best  # Of equal ones the highest.
    assert len(set(scores)) > 2
    oracle = _theirs(x, y, best)  # On all of train, not on a part.
    predictions = oracle.predict(np.float64(tx))
    assert np.mean(found["predictions"] == predictions) >= 0.99
    assert found["top1"] == pytest.approx((found["predictions"] == ty).mean())
    assert found["top1"] <= found["top5"] == 1.0
    assert found["mean_per_class"] == pytest.approx(
        metrics.balanced_accuracy_score(ty, found["predictions"])
    )
    # What test holds changes nothing of what is chosen.
    other = logistic.logistic_regression(x, y, -tx, ty[::-1], seed=3)
    assert other["path"] == found["path"]


def test_an_official_validation_part_is_heeded():
    x, y, tx, ty = _four()
    held = np.arange(150, 200)
    # Of this part the labels are shuffled: nothing is better than to say
    # nothing, and the highest penalty says least.
    wrong = y.copy()
    wrong[held] = np.random.default_rng(0).integers(0, 4, 50)
    fits = logistic.fit_path(
        logistic.Problem(x[:150], y[:150], 4), logistic.path_of(5)
    )
    expected = [
        np.mean(fit.logits(x[held]).argmax(1) == wrong[held]) for fit in fits
    ]
    found = logistic.logistic_regression(
        x, wrong, tx, ty, validation=held, path=logistic.path_of(5)
    )
    assert [p["validation"] for p in found["path"]] == pytest.approx(expected)


def test_classes_keep_their_ids_and_unseen_ones_count_as_missed():
    x, y, tx, ty = _four(spread=0.3)
    ids = np.array([2, 7, 8, 40])
    found = logistic.logistic_regression(x, ids[y], tx, ids[ty])
    assert found["classes"].tolist() == ids.tolist()
    assert found["top1"] > 0.95
    unseen = logistic.logistic_regression(x, ids[y], tx, ids[ty] + 100)
    assert unseen["top1"] == unseen["top5"] == 0.0
