"""Neighbours against scikit-learn and a sort, prototypes by definition."""

import blobs
import numpy as np
import pytest
from sklearn import neighbors

from tf_contrastive import classifiers
from tf_contrastive.base import errors


def test_knn_equals_scikit_learn_across_blocks(monkeypatch):
    monkeypatch.setattr(classifiers.neighbors, "QUERY_BLOCK", 7)
    monkeypatch.setattr(classifiers.neighbors, "BANK_BLOCK", 13)
    train, train_labels = blobs.blobs(60, spread=2.0)
    test, _ = blobs.blobs(40, spread=2.0, seed=1)
    ks = (5, 1, 60, 2, 33)
    several = classifiers.knn(train, train_labels, test, ks)
    for k, found in zip(ks, several, strict=True):
        oracle = neighbors.KNeighborsClassifier(
            k, metric="cosine", weights=lambda distances: 1 - distances
        )
        oracle.fit(train.astype(np.float64), train_labels)
        expected = oracle.predict(test.astype(np.float64))
        np.testing.assert_array_equal(found, expected)


def test_neighbours_and_products_equal_a_sort_across_blocks(monkeypatch):
    monkeypatch.setattr(classifiers.neighbors, "BANK_BLOCK", 16)
    monkeypatch.setattr(classifiers.neighbors, "QUERY_BLOCK", 8)
    bank, _ = blobs.blobs(70)
    bank[33] = bank[5]  # A tie across blocks: the earlier row comes first.
    queries, _ = blobs.blobs(20, seed=1)
    queries[0] = 10 * bank[5]
    [(products, rows)] = classifiers.nearest_neighbors(
        bank, queries, 30, cosine=True
    )
    cosines = classifiers.normalize(queries) @ classifiers.normalize(bank).T
    expected = np.sort(cosines, axis=1)[:, ::-1][:, :30]
    assert rows[0, :2].tolist() == [5, 33]
    np.testing.assert_allclose(products, expected, rtol=1e-5, atol=1e-6)
    found = np.take_along_axis(cosines, rows, axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    [(products, _)] = classifiers.nearest_neighbors(bank, queries, 3)
    np.testing.assert_allclose(
        products[:, 0], (queries @ bank.T).max(axis=1), rtol=1e-5
    )


def test_ties_go_to_the_first_neighbour_and_the_smallest_class():
    train = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    labels = np.array([9, 2, 5])
    assert classifiers.knn(train, labels, [[1.0, 0.0]], k=1)[0] == 9
    assert classifiers.knn(train, labels, [[1.0, 0.0]], k=3) == 2
    # A class without a neighbour never wins, even against negative sums.
    assert classifiers.knn(train, labels, [[-1.0, 0.0]], k=1) == 9


def test_lengths_do_not_matter_to_cosines():
    train, labels = blobs.blobs(50)
    test, _ = blobs.blobs(20, seed=1)
    expected = classifiers.knn(train, labels, test, 3)
    lengths = np.logspace(-30, 30, 50, dtype=np.float32)[:, np.newaxis]
    for factor in (np.float32(1e25), np.float32(1e-30)):
        found = classifiers.knn(train * lengths, labels, test * factor, 3)
        np.testing.assert_array_equal(found, expected)
    zero = np.zeros([1, 8], np.float32)
    np.testing.assert_array_equal(classifiers.normalize(zero), zero)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_labels": np.array([0, -1, 1])}, "no label"),
        ({"train_labels": np.array([0, 1])}, "train_labels"),
        ({"train_labels": np.array([0.0, 1.0, 1.0])}, "integer"),
        ({"train_embeddings": np.zeros([3])}, r"\[examples, features\]"),
        ({"train_embeddings": np.full([3, 2], np.nan)}, "3 of 3 rows hold NaN"),
        ({"test_embeddings": np.array([[0, np.inf]])}, "first: row 0"),
        ({"test_embeddings": np.ones([1, 5])}, "2 features .* 5"),
        ({"test_embeddings": np.ones([0, 2])}, "at least one"),
        ({"k": 0}, "k="),
        ({"k": "5"}, "k=5: use whole numbers"),
        ({"k": 2.5}, "k="),
        ({"k": (1, 4)}, "k=.* 3 training examples"),
    ],
)
def test_what_cannot_be_classified_is_refused(change, message):
    arguments = {
        "train_embeddings": np.ones([3, 2]),
        "train_labels": np.array([0, 1, 1]),
        "test_embeddings": np.ones([1, 2]),
        "k": 1,
        **change,
    }
    with pytest.raises(errors.UserError, match=message):
        classifiers.knn(**arguments)


def test_prototypes_equal_their_definition():
    train, labels = blobs.blobs(100, spread=2.0)
    labels = np.array([2, 3, 5, 40])[labels]  # Ids need not be dense.
    test, _ = blobs.blobs(30, spread=2.0, seed=1)
    scores, classes = classifiers.prototype(train, labels, test)
    assert classes.tolist() == [2, 3, 5, 40]

    def unit(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    for column, label in enumerate(classes):
        mean = unit(train[labels == label].astype(np.float64)).mean(0)
        np.testing.assert_allclose(
            scores[:, column], unit(test) @ unit(mean), atol=1e-6
        )


def test_top_lists_the_best_classes_and_breaks_ties_by_id():
    scores = classifiers.Scores(
        np.array([[0.1, 0.7, 0.7], [0.0, -1.0, 2.0]]), np.array([4, 6, 9])
    )
    assert scores.top(2).tolist() == [[6, 9], [9, 4]]
