"""How far the warp moves, and how often."""

import numpy as np
import scipy.ndimage
import scipy.stats
import tensorflow as tf
from image_helpers import DRAWS, uniforms_of

from tf_contrastive.views import warp


def test_points_at_the_thirds_are_displaced():
    size = 96
    place = np.arange(size) / size
    ramps = np.meshgrid(place, place, [0.5], indexing="ij")
    ramps = np.stack(ramps, -1).astype(np.float32)
    operation = warp.Warp(1.0)
    uniforms = uniforms_of(operation, 20)
    pixels = tf.repeat(ramps[tf.newaxis, :, :, 0], 20, axis=0)
    result = operation(pixels, uniforms).numpy()
    numbers = tf.cast(uniforms["warp"], tf.float64)
    shifts = operation.displacements(numbers, size).numpy()
    points = np.array([[32, 32], [32, 64], [64, 32], [64, 64]])
    for view, targets in zip(result, points + shifts, strict=True):
        # Where a point is seen now, if it is within the view.
        seen = np.all((targets > 0) & (targets < size - 1), axis=1)
        for axis in (0, 1):
            found = scipy.ndimage.map_coordinates(
                view[..., axis], targets[seen].T, order=1
            )
            expected = points[seen, axis] / size
            np.testing.assert_allclose(found, expected, atol=0.5 / size)


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
