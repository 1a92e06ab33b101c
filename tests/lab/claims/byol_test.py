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


def test_a_step_of_byol():
    """Grill et al. 2020, equation 2 in both directions."""
    model = _model()
    views = tf.random.stateless_uniform([6, 2, 4, 4, 3], (1, 2))
    parts = model.encoder, model.projector, model.predictor
    variables = [v for part in parts for v in part.trainable_variables]
    before = [v.numpy() for v in variables]
    # The target starts as a copy, and has no gradient.
    slow = [model.projector(model.encoder(views[:, i])).numpy() for i in (0, 1)]
    with tf.GradientTape() as tape:
        loss = 0.0
        for one, other in ((0, 1), (1, 0)):
            z = model.projector(model.encoder(views[:, one]))
            q = model.predictor(z)
            # Keras's is minus the cosine.
            cosine = -tf.keras.losses.cosine_similarity(q, slow[other])
            loss += tf.reduce_mean(2 - 2 * cosine)
    gradients = tape.gradient(loss, variables)
    logs = model.train_step((views, None))
    assert float(logs["loss"]) == pytest.approx(float(loss), rel=1e-5)
    for variable, old, gradient in zip(
        variables, before, gradients, strict=True
    ):
        np.testing.assert_allclose(
            variable, old - 0.5 * gradient, rtol=1e-4, atol=1e-6
        )
    # After the first of ten steps the momentum is that of the constructor.
    kernel = model.target.encoder.trainable_variables[0]
    np.testing.assert_allclose(
        kernel, 0.9 * before[0] + 0.1 * variables[0], rtol=1e-5, atol=1e-7
    )


def test_the_momentum_rises_as_half_a_cosine():
    """Section 3.1: 1 - (1 - m) (cos(pi k / K) + 1) / 2."""
    model = _model(momentum=0.996, steps=100)
    found = [float(model.momentum_at(tf.constant(k))) for k in (0, 50, 100)]
    assert found == pytest.approx([0.996, 0.998, 1.0], abs=1e-6)
