"""The VAE that contrastive losses are compared with."""

import math

import numpy as np
import tensorflow as tf

from lab.claims import vae
from tf_contrastive import encoders


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
