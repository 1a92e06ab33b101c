"""BYOL, a baseline of one claim."""

import numpy as np
import pytest
import tensorflow as tf

from lab.claims import byol
from tf_contrastive import heads


def _model(momentum=0.9, steps=10):
    """A network without batch normalization, whose step is a closed form."""
    inputs = tf.keras.Input((4, 4, 3))
    h = tf.keras.layers.Dense(5, name="features")(
        tf.keras.layers.Flatten()(inputs)
    )
    encoder = tf.keras.Model(inputs, h)
    projector, predictor = (
        heads.MLP(hidden=6, output=4, batch_norm=False) for _ in "zq"
    )
    projector.build([None, 5])
    predictor.build([None, 4])
    model = byol.BYOL(
        encoder, projector, predictor, momentum=momentum, steps=steps
    )
    model.compile(tf.keras.optimizers.SGD(0.5, jit_compile=False))
    return model


def _unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def _mlp(weights, x):
    (w1, b1, w2) = (np.float64(w) for w in weights)
    return np.maximum(x @ w1 + b1, 0) @ w2


def _loss(model, views, target):
    """Grill et al. 2020, equation 2 in both directions, by NumPy in float64.

    The target has fixed weights: kernel, bias and those of the projector.
    """
    kernel, bias = (np.float64(w) for w in model.encoder.get_weights())
    weights = [x.get_weights() for x in (model.projector, model.predictor)]
    total, views = 0.0, np.float64(views)
    for one, other in ((0, 1), (1, 0)):
        online = views[:, one].reshape(len(views), -1) @ kernel + bias
        q = _mlp(weights[1], _mlp(weights[0], online))
        slow = views[:, other].reshape(len(views), -1) @ target[0] + target[1]
        z = _mlp(target[2], slow)
        total += np.mean(2 - 2 * np.sum(_unit(q) * _unit(z), axis=1))
    return total


def test_a_step_of_byol():
    model = _model()
    views = tf.random.stateless_uniform([6, 2, 4, 4, 3], (1, 2))
    kernel, bias = (np.float64(w) for w in model.encoder.get_weights())
    fixed = (kernel, bias, model.projector.get_weights())
    before = _loss(model, views, fixed)
    # The gradient is that of the online side: the target stays.
    place, delta = (7, 3), 1e-4
    shifted = []
    for sign in (1, -1):
        moved = kernel.copy()
        moved[place] += sign * delta
        model.encoder.set_weights([np.float32(moved), np.float32(bias)])
        shifted.append(_loss(model, views, fixed))
    model.encoder.set_weights([np.float32(kernel), np.float32(bias)])
    slope = (shifted[0] - shifted[1]) / (2 * delta)
    target = [w.numpy() for w in model.target.encoder.trainable_variables]
    logs = model.train_step((views, None))
    assert float(logs["loss"]) == pytest.approx(before, rel=1e-5)
    stepped = model.encoder.get_weights()[0]
    assert stepped[place] - kernel[place] == pytest.approx(
        -0.5 * slope, rel=0.02
    )
    # After the first of ten steps the momentum is that of the constructor.
    followed = [w.numpy() for w in model.target.encoder.trainable_variables]
    np.testing.assert_allclose(
        followed[0], 0.9 * target[0] + 0.1 * stepped, rtol=1e-5, atol=1e-7
    )


def test_the_momentum_rises_as_half_a_cosine():
    """Section 3.1: 1 - (1 - m) (cos(pi k / K) + 1) / 2."""
    model = _model(momentum=0.996, steps=100)
    found = [float(model.momentum_at(tf.constant(k))) for k in (0, 50, 100)]
    assert found == pytest.approx([0.996, 0.998, 1.0], abs=1e-6)
