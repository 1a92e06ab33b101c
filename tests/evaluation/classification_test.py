"""Accuracies of classifiers of embeddings."""

import functools

import blobs
import contexts
import numpy as np
import pytest
import small
import tensorflow as tf
from sklearn import metrics

from tf_contrastive import datasets, evaluation
from tf_contrastive.evaluation import classification

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


@pytest.mark.parametrize("names", ["ab", "cd", "ba", ""])
def test_a_classifier_of_other_classes_is_left_out(names):
    images, labels = np.zeros([4, 8, 8, 3], np.uint8), np.arange(4) % 2
    test = datasets.from_arrays(images, labels, ("a", "b"))
    context = contexts.make(small.convolutions(), test, test)
    own = {"classifier": tf.keras.layers.Dense(2), "label_names": names}
    lacks = classification.lacks_head(contexts.changed(context, **own))
    assert bool(lacks) == (names in ("cd", "ba"))


def test_classes_absent_from_training_count_as_missed():
    train = np.eye(3, dtype=np.float32)
    test_labels = np.array([0, 1, 7])
    knn = functools.partial(evaluation.knn, k=3)
    for score in (knn, evaluation.prototype):
        scores = score(train, np.arange(3), train, test_labels)
        assert scores["top1"] == pytest.approx(2 / 3)


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


def _softmax_regression_by_lars(x, labels, *, steps, batch, rate, decay, seed):
    """Kernel, bias and losses after so many steps of LARS, as in SupCon's code.

    The kernel starts by Glorot's rule and is adapted with eta 0.001; the bias
    is neither adapted nor decayed.
    """
    n, features = x.shape
    x, onehot = x.astype(np.float64), np.eye(labels.max() + 1)[labels]
    limit = np.sqrt(6 / (features + onehot.shape[1]))
    size = (features, onehot.shape[1])
    w = np.random.default_rng(seed).uniform(-limit, limit, size)
    b, v, u = np.zeros(size[1]), np.zeros(size), np.zeros(size[1])
    generator, losses, rows = np.random.default_rng(seed), [], []
    for step in range(steps):
        if len(rows) == 0:
            rows = generator.permutation(n)[: n // batch * batch]
        now, rows = rows[:batch], rows[batch:]
        logits = x[now] @ w + b
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        losses.append(-np.mean(np.log(p[onehot[now] > 0])))
        error = (p - onehot[now]) / batch
        lr = rate * batch / 256 * 0.5 * (1 + np.cos(np.pi * step / steps))
        g = x[now].T @ error + decay * w
        trust = 0.001 * np.linalg.norm(w) / np.linalg.norm(g)
        v = 0.9 * v + lr * trust * g
        u = 0.9 * u + lr * error.sum(0)
        w, b = w - v, b - u
    return w, b, losses


def test_lars_adapts_the_kernel_of_the_linear_classifier():
    x, labels = _arrays(n=70)
    options = {"epochs": 5, "batch_size": 16, "seed": 2}
    decayed = {"optimizer_options": {"weight_decay": 0.05}}
    model, losses = classification.fit_linear(
        x, labels, optimizer="lars", learning_rate=16, **options, **decayed
    )
    kernel, bias, expected = _softmax_regression_by_lars(
        x, labels, steps=20, batch=16, rate=16, decay=0.05, seed=2
    )
    np.testing.assert_allclose(model.kernel, kernel, atol=1e-5)
    np.testing.assert_allclose(model.bias, bias, atol=1e-5)
    of_epochs = np.mean(np.reshape(expected, [5, 4]), axis=1)
    np.testing.assert_allclose(losses, of_epochs, rtol=1e-5)


@pytest.mark.parametrize(
    ("learning_rate", "is_warned"), [(0.1, False), (1000.0, True)]
)
def test_a_classifier_that_is_worse_than_none_is_warned_of(
    learning_rate, is_warned, caplog
):
    pixels = tf.keras.Sequential([tf.keras.layers.Flatten()])
    pixels.build([None, 8, 8, 3])
    train, test = (datasets.source("digits", x) for x in ("train", "test"))
    contexts.measure(
        "linear",
        contexts.make(pixels, train, test),
        learning_rate=learning_rate,
        epochs=2,
    )
    assert ("above chance level, 2.3" in caplog.text) == is_warned
