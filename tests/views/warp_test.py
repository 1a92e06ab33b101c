"""How far the warp moves, and how often."""

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import tensorflow as tf
from image_helpers import DRAWS, uniforms_of, within

from tf_contrastive.views import warp


def test_displacements_have_the_published_lengths():
    operation = warp.Warp(0.5)
    uniforms = uniforms_of(operation, DRAWS)["warp"]
    for size in (32, 224):
        length = uniforms[:, 1].numpy() * 23 * size / 224
        shifts = operation.displacements(uniforms, size).numpy()
        normal = shifts / length[:, np.newaxis, np.newaxis]
        assert scipy.stats.kstest(normal.ravel(), "norm").pvalue > 1e-3
        correlation = np.corrcoef(normal.reshape(DRAWS, 8).T) - np.eye(8)
        assert np.abs(correlation).max() < 4.5 / np.sqrt(DRAWS)
    assert scipy.stats.kstest(length / 23, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("static", [False, True])
def test_warp_has_its_probability(static):
    image = np.random.default_rng(0).random((1, 4, 4, 3), np.float32)
    pixels = tf.constant(np.repeat(image, DRAWS, axis=0))
    for fraction in (0.0, 0.3):
        operation = warp.Warp(fraction)
        result = operation(pixels, uniforms_of(operation, DRAWS), static)
        changed = np.any(result != pixels, axis=(1, 2, 3)).mean()
        assert within(changed, fraction)
