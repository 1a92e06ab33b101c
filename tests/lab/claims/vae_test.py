"""The VAE that contrastive losses are compared with."""

import math

import numpy as np
import pytest
import small
import tensorflow as tf

from lab.claims import vae
from tf_contrastive import encoders
from tf_contrastive.config import fields


def test_the_bound_of_a_vae():
    """A code that ignores the image costs nothing; pixels cost ln 2 each."""
    encoder = encoders.build("convnet", image_shape=(9, 9, 4))
    model = vae.VAE(encoder, code=3)
    for variable in (*model.code.variables, *model.decoder.variables):
        variable.assign(tf.zeros_like(variable))
    images = tf.random.stateless_uniform([5, 9, 9, 4], (0, 0))
    bound = model.bound(images, training=False)
    np.testing.assert_allclose(bound, 9 * 9 * 4 * math.log(2), rtol=1e-5)
    # q = N(2, e) in each of three dimensions, against N(0, 1).
    model.code.bias.assign([2.0] * 3 + [1.0] * 3)
    divergence = 3 * 0.5 * (2**2 + math.e - 1 - 1)
    np.testing.assert_allclose(
        model.bound(images, training=False) - bound, divergence, rtol=1e-3
    )


@pytest.mark.slow
def test_a_vae_learns_more_than_the_mean_image():
    options = small.DIGITS | {
        "split": "train",
        "loss": "ntxent",
        "encoder": "convnet",
        "width": "auto",
        "optimizer": "adam",
        "learning_rate": 0.003,
        "learning_rate_scaling": "none",
        "epochs": 15,
        "workdir": "unused",
    }
    before = encoders.build("convnet", image_shape=(8, 8, 3)).get_weights()
    trained = vae.fit(fields.replace(small.RUN, **options))
    # The best constant, by its own formula, of pixels between 0 and 1.
    assert 0 < trained.collapsed < 8 * 8 * 3 * math.log(2)
    assert trained.final < 0.98 * trained.collapsed
    assert trained.encoder.count_params() == sum(map(np.size, before))
