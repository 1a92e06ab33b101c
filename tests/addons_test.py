"""TensorFlow Addons as an oracle, where it can be imported.

It is written by others, and needs TensorFlow 2.15.
"""

import numpy as np
import pytest
import tensorflow as tf
from image_helpers import pixel_patches, uniforms_of

from tf_contrastive.views import warp


@pytest.fixture
def addons():
    return pytest.importorskip("tensorflow_addons")


@pytest.mark.slow
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("size", [32, 97])
def test_warp_equals_sparse_image_warp(size, static, addons):
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
    oracle, _ = addons.image.sparse_image_warp(
        tf.cast(pixels, tf.float64), points, points + shifts
    )
    # The spline is interpolated, which costs most beside the four points.
    off = np.abs(result.numpy() - oracle)
    assert off.max() < 1.5 / 255
    assert off.mean() < 2e-5
    assert np.abs(result - pixels).mean() > 0.004
