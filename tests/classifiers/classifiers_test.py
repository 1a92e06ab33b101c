"""Classifiers against slow transcriptions, scikit-learn and Keras."""

import itertools
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf
from sklearn import linear_model, metrics

from tf_contrastive import classifiers, errors


def _blobs(n, features=8, classes=4, spread=1.0, seed=0):
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(classes, features))
    labels = generator.integers(0, classes, n)
    noise = generator.normal(size=(n, features))
    return (centers[labels] + spread * noise).astype(np.float32), labels


def _slow_knn(train, train_labels, test, k):
    predictions = []
    for x in test.astype(np.float64):
        cosines = []
        for y in train.astype(np.float64):
            cosines.append(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
        nearest = sorted(range(len(train)), key=lambda i: -cosines[i])[:k]
        votes = {}
        for i in nearest:
            label = train_labels[i]
            votes[label] = votes.get(label, 0.0) + cosines[i]
        predictions.append(max(sorted(votes), key=votes.get))
    return np.array(predictions)


@pytest.mark.parametrize("k", [1, 2, 5, 33, 200])
def test_knn_equals_a_double_loop_across_blocks(k, monkeypatch):
    monkeypatch.setattr(classifiers.neighbors, "_QUERY_BLOCK", 7)
    monkeypatch.setattr(classifiers.neighbors, "_BANK_BLOCK", 13)
    train, train_labels = _blobs(60, spread=2.0)
    test, _ = _blobs(40, spread=2.0, seed=1)
    found = classifiers.knn(train, train_labels, test, k)
    expected = _slow_knn(train, train_labels, test, min(k, 60))
    np.testing.assert_array_equal(found, expected)


def test_several_k_are_each_what_they_are_alone():
    train, train_labels = _blobs(60, spread=2.0)
    test, _ = _blobs(40, spread=2.0, seed=1)
    several = classifiers.knn(train, train_labels, test, (5, 1, 200, 7))
    assert len(several) == 4
    for k, found in zip((5, 1, 200, 7), several, strict=True):
        alone = classifiers.knn(train, train_labels, test, k)
        np.testing.assert_array_equal(found, alone)
    assert (several[0] != several[1]).any()


def test_neighbours_and_products_equal_a_sort_across_blocks(monkeypatch):
    monkeypatch.setattr(classifiers.neighbors, "_BANK_BLOCK", 16)
    monkeypatch.setattr(classifiers.neighbors, "_QUERY_BLOCK", 8)
    bank, _ = _blobs(70)
    bank[33] = bank[5]  # A tie across blocks: the earlier row comes first.
    queries, _ = _blobs(20, seed=1)
    queries[0] = 10 * bank[5]
    [(products, rows)] = classifiers.nearest_neighbors(
        bank, queries, 30, cosine=True
    )
    cosines = classifiers.normalize(queries) @ classifiers.normalize(bank).T
    expected = np.argsort(-cosines, axis=1, kind="stable")[:, :30]
    assert rows[0, :2].tolist() == [5, 33]
    np.testing.assert_allclose(
        products, np.take_along_axis(cosines, expected, 1), rtol=1e-5, atol=1e-6
    )
    assert (rows == expected).mean() > 0.99
    [(products, _)] = classifiers.nearest_neighbors(bank, queries, 3)
    np.testing.assert_allclose(
        products[:, 0], (queries @ bank.T).max(axis=1), rtol=1e-5
    )


def test_knn_needs_memory_for_blocks_alone():
    # 64 MiB of bank and 400 MiB of similarities, of which none is copied.
    bank = np.random.default_rng(0).normal(size=(16_384, 1024))
    bank = bank.astype(np.float32)
    labels = np.arange(len(bank)) % 10
    classifiers.knn(bank[:10], labels[:10], bank[:10], 1)
    tracemalloc.start()
    classifiers.knn(bank, labels, bank[:6400], 5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 110 * 2**20  # Queries, a block of the bank, and of products.


def test_a_class_without_neighbours_never_wins():
    # All cosines are negative: an absent class's sum of 0 would be largest.
    train = np.array([[-1.0, 0.1], [-1.0, -0.1], [0.9, -3.0]])
    found = classifiers.knn(train, np.array([3, 3, 0]), [[1.0, 0.0]], k=3)
    assert found[0] == 0  # 0.3 against -2.
    found = classifiers.knn(train[:2], np.array([3, 7]), [[1.0, 0.0]], k=1)
    assert found[0] == 3


def test_ties_go_to_the_first_neighbour_and_the_smallest_class():
    train = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    labels = np.array([9, 2, 5])
    assert classifiers.knn(train, labels, [[1.0, 0.0]], k=1)[0] == 9
    assert classifiers.knn(train, labels, [[1.0, 0.0]], k=3)[0] == 2


def test_lengths_do_not_matter_to_cosines():
    train, labels = _blobs(50)
    test, _ = _blobs(20, seed=1)
    expected = classifiers.knn(train, labels, test, 3)
    lengths = np.logspace(-15, 30, 50, dtype=np.float32)[:, np.newaxis]
    found = classifiers.knn(train * lengths, labels, test * 1e25, 3)
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
        ({"k": (1, 0)}, "k="),
        ({"k": ()}, "k="),
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
    train, labels = _blobs(100, spread=2.0)
    labels = np.array([2, 3, 5, 40])[labels]  # Ids need not be dense.
    test, _ = _blobs(30, spread=2.0, seed=1)
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
    assert scores.top(5).shape == (2, 3)


def _sgd(learning_rate=0.1, epochs=90):
    """SimCLR's optimizer of its linear evaluation, as Keras has it."""

    def make(batch_size, steps_per_epoch):
        schedule = tf.keras.optimizers.schedules.CosineDecay(
            learning_rate * batch_size / 256, epochs * steps_per_epoch
        )
        return tf.keras.optimizers.SGD(
            schedule, momentum=0.9, nesterov=True, jit_compile=False
        )

    return make


def _linear(train, labels, test, **options):
    model, losses = classifiers.train_linear(train, labels, **options)
    return model.scores(test), losses


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    "make",
    [
        _sgd(epochs=3),
        lambda *_: tf.keras.optimizers.Adam(
            # Where a gradient is rounding alone, a small one would make a step
            # of it.
            0.01,
            epsilon=1e-3,
            jit_compile=False,
        ),
    ],
)
def test_linear_equals_a_dense_layer_of_keras(make, label_smoothing):
    train, labels = _blobs(70)
    steps, batch, epochs = 4, 16, 3
    scores, losses = _linear(
        train,
        labels,
        train,
        optimizer=make,
        epochs=epochs,
        batch_size=batch,
        label_smoothing=label_smoothing,
        seed=7,
    )
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(4, kernel_initializer="zeros")]
    )
    model.compile(
        make(batch, steps),
        tf.keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=label_smoothing
        ),
    )
    generator = np.random.default_rng(7)
    for epoch in range(epochs):
        order = generator.permutation(70)[: steps * batch].reshape(steps, batch)
        found = [
            model.train_on_batch(train[rows], np.eye(4)[labels[rows]])
            for rows in order
        ]
        assert losses[epoch] == pytest.approx(np.mean(found), rel=1e-5)
    np.testing.assert_allclose(scores.scores, model(train), atol=1e-5)


class _Stopping(classifiers.TrainingObserver):
    """Keeps the state in a file; stops after so many epochs."""

    def __init__(self, prefix, stop=None):
        self._prefix, self._stop = prefix, stop
        self.told = []

    def begin(self, state):
        self._state = state
        done = 0
        if path := tf.train.latest_checkpoint(self._prefix.parent):
            state.read(path).assert_consumed()
            done = int(path.rpartition("-")[2])
        return done

    def epoch(self, done, metrics):
        self.told.append((done, metrics))
        if done == self._stop:
            self._state.write(f"{self._prefix}-{done}")
            tf.compat.v1.train.update_checkpoint_state(
                str(self._prefix.parent), f"{self._prefix}-{done}"
            )
            raise InterruptedError


def test_a_training_that_goes_on_from_its_state_equals_one_without_a_stop(
    tmp_path,
):
    train, labels = _blobs(100)

    def run(observer=None):
        return _linear(
            train,
            labels,
            train,
            optimizer=_sgd(epochs=6),
            epochs=6,
            batch_size=32,
            seed=5,
            observer=observer,
        )

    with pytest.raises(InterruptedError):
        run(_Stopping(tmp_path / "ckpt", stop=4))
    rest = _Stopping(tmp_path / "ckpt")
    scores, losses = run(rest)
    straight = classifiers.TrainingObserver()
    expected, expected_losses = run(straight)
    np.testing.assert_array_equal(scores.scores, expected.scores)
    assert losses == expected_losses
    assert [done for done, _ in rest.told] == [5, 6]
    metrics = rest.told[-1][1]
    assert metrics["step"] == 18
    assert metrics["loss"] == pytest.approx(losses[-1])
    # Of the last of 18 steps.
    rate = 0.1 * 32 / 256 * 0.5 * (1 + np.cos(np.pi * 17 / 18))
    assert metrics["learning_rate"] == pytest.approx(rate, rel=1e-4)
    assert 0.5 < metrics["accuracy"] <= 1


def test_linear_converges_to_the_optimum_of_logistic_regression():
    train, labels = _blobs(400, features=4, classes=3, spread=2.0)
    scores, losses = _linear(
        train,
        labels,
        train,
        optimizer=_sgd(0.5, 600),
        epochs=600,
        batch_size=400,
    )
    oracle = linear_model.LogisticRegression(C=np.inf, tol=1e-8).fit(
        train, labels
    )
    optimum = metrics.log_loss(labels, oracle.predict_proba(train))
    assert optimum > 0.2  # Classes overlap, so that there is an optimum.
    assert losses[-1] == pytest.approx(optimum, abs=1e-4)
    agree = scores.top(1)[:, 0] == oracle.predict(train)
    assert agree.mean() > 0.99


@pytest.mark.parametrize("drawn", [False, True])
def test_linear_on_normalized_embeddings(drawn):
    train, labels = _blobs(64)
    lengths = np.linalg.norm(train, axis=1, keepdims=True)
    options = {"optimizer": _sgd(epochs=2), "epochs": 2, "batch_size": 16}

    def views_of(rows):
        batches = [
            (rows[i : i + 16], labels[i : i + 16]) for i in (0, 16, 32, 48)
        ]
        return lambda step: itertools.cycle(batches)

    own, expected = (
        _linear(
            rows,
            labels,
            test,
            **options,
            normalize_features=normalize,
            views=views_of(rows) if drawn else None,
        )
        for rows, test, normalize in (
            (5 * train, 3 * train, True),
            (train / lengths, train / lengths, False),
        )
    )
    np.testing.assert_allclose(own[1], expected[1], rtol=1e-5)
    np.testing.assert_allclose(own[0].scores, expected[0].scores, atol=1e-5)


def test_a_diverged_probe_says_so():
    train, labels = _blobs(100)
    with pytest.raises(errors.DivergedError, match="linear_learning_rate"):
        _linear(train * 1e15, labels, train, optimizer=_sgd(1e30, 3), epochs=3)


def test_a_last_step_that_overflows_the_weights_has_diverged():
    train, labels = _blobs(100)
    one_step = {"epochs": 1, "batch_size": 100}
    # Its loss, before the step, is the logarithm of the number of classes.
    _linear(train, labels, train, optimizer=_sgd(0.1, 1), **one_step)
    with pytest.raises(errors.DivergedError):
        _linear(train * 1e4, labels, train, optimizer=_sgd(1e38, 1), **one_step)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
