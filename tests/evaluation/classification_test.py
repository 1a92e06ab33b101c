"""Accuracies of classifiers of embeddings."""

import functools

import blobs
import numpy as np
import pytest
from sklearn import metrics

from tf_contrastive import classifiers, errors, evaluation

_arrays = functools.partial(
    blobs.blobs, n=240, features=6, classes=8, spread=1.3
)


@pytest.mark.parametrize(
    ("score", "has_top5"),
    [
        (evaluation.knn, False),
        (evaluation.prototype, True),
        (evaluation.linear_probe, True),
    ],
)
def test_accuracies_are_shares_of_right_predictions(score, has_top5):
    test, labels = _arrays(seed=1)
    scores = score(*_arrays(), test, labels)
    predictions = scores["predictions"]
    assert predictions.shape == labels.shape
    assert scores["top1"] == metrics.accuracy_score(labels, predictions)
    assert 0.3 < scores["top1"] < 0.95  # Against 0.125 by chance.
    assert ("top5" in scores) == has_top5
    if has_top5:
        assert scores["top1"] < scores["top5"] < 1.0


def test_top5_equals_scikit_learn():
    train, labels = _arrays(spread=2.0)
    scores = evaluation.prototype(train, labels, train, labels)
    table, classes = classifiers.prototype(train, labels, train)
    assert scores["top5"] == pytest.approx(
        metrics.top_k_accuracy_score(labels, table, k=5, labels=classes)
    )


def test_classes_absent_from_training_count_as_missed():
    train = np.eye(3, dtype=np.float32)
    test_labels = np.array([0, 1, 7])
    knn = functools.partial(evaluation.knn, k=3)
    for score in (knn, evaluation.prototype):
        scores = score(train, np.arange(3), train, test_labels)
        assert scores["top1"] == pytest.approx(2 / 3)


def test_unlabelled_test_examples_are_refused():
    train, labels = _arrays()
    with pytest.raises(errors.UserError, match="test_labels"):
        evaluation.knn(train, labels, train, np.full_like(labels, -1))


def test_a_probe_on_views_equals_one_on_rows_in_the_same_order():
    train, labels = _arrays(n=230)
    test, test_labels = _arrays(n=100, seed=1)
    options = {"epochs": 7, "batch_size": 50, "seed": 3}

    def stream(step):
        assert step == 0
        generator = np.random.default_rng(3)
        while True:
            order = generator.permutation(len(train))[:200]
            for rows in order.reshape(4, 50):
                yield train[rows], labels[rows]

    cached = evaluation.linear_probe(
        train, labels, test, test_labels, **options
    )
    fresh = evaluation.linear_probe(
        train, labels, test, test_labels, **options, views=stream
    )
    assert fresh["loss"] == pytest.approx(cached["loss"], rel=1e-6)
    np.testing.assert_array_equal(fresh["predictions"], cached["predictions"])


def test_views_of_another_encoder_are_refused():
    train, labels = _arrays()
    with pytest.raises(errors.UserError, match="views"):
        evaluation.linear_probe(
            train,
            labels,
            train,
            labels,
            views=lambda step: [(train[:, :4], labels)] * 9,
        )
