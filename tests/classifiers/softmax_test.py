"""Softmax classifiers against Keras and scikit-learn."""

import itertools

import blobs
import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import classifiers
from tf_contrastive.base import errors


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
    train, labels = blobs.blobs(70)
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


@pytest.mark.parametrize("drawn", [False, True])
def test_linear_on_normalized_embeddings(drawn):
    train, labels = blobs.blobs(64)
    unit = train / np.linalg.norm(train, axis=1, keepdims=True)
    options = {"optimizer": _sgd(epochs=2), "epochs": 2, "batch_size": 16}

    def run(rows, test, **normalize):
        parts = zip(np.split(rows, 4), np.split(labels, 4), strict=True)
        batches = [*parts]
        if drawn:
            normalize["views"] = lambda step: itertools.cycle(batches)
        return _linear(rows, labels, test, **options, **normalize)

    own, losses = run(5 * train, 3 * train, normalize_features=True)
    expected, expected_losses = run(unit, unit)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_allclose(own.scores, expected.scores, atol=1e-5)


def test_a_diverged_probe_says_so():
    train, labels = blobs.blobs(100)
    with pytest.raises(errors.DivergedError, match="linear_learning_rate"):
        _linear(train * 1e15, labels, train, optimizer=_sgd(1e30, 3), epochs=3)


def test_a_last_step_that_overflows_the_weights_has_diverged():
    train, labels = blobs.blobs(100)
    one_step = {"epochs": 1, "batch_size": 100}
    # Its loss, before the step, is the logarithm of the number of classes.
    _linear(train, labels, train, optimizer=_sgd(0.1, 1), **one_step)
    with pytest.raises(errors.DivergedError):
        _linear(train * 1e4, labels, train, optimizer=_sgd(1e38, 1), **one_step)
