"""Warp against TensorFlow Addons."""

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import tensorflow as tf
from image_helpers import DRAWS, pixel_patches, uniforms_of, within

from tf_contrastive.views import warp


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("size", [32, 97])
def test_warp_equals_tensorflow_addons(size, static):
    addons = pytest.importorskip("tensorflow_addons.image")
    pixels = pixel_patches(4, size)
    operation = warp.Warp(1.0)
    uniforms = uniforms_of(operation, 4)
    result = operation(pixels, uniforms, static)
    points = np.array(
        [[i * size / 3, j * size / 3] for i in (1, 2) for j in (1, 2)]
    )
    points = np.repeat(points[np.newaxis], 4, axis=0)
    shifts = operation.displacements(
        tf.cast(uniforms["warp"], tf.float64), size
    )
    oracle, _ = addons.sparse_image_warp(
        tf.cast(pixels, tf.float64), points, points + shifts
    )
    # The spline is interpolated, which costs most beside the four points.
    off = np.abs(result.numpy() - oracle)
    assert off.max() < 1.5 / 255
    assert off.mean() < 2e-5
    assert np.abs(result - pixels).mean() > 0.004


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
