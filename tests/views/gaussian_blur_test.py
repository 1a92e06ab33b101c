"""Gaussian blur against SciPy."""

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import tensorflow as tf
from image_helpers import pixel_patches, seeds

from tf_contrastive.views import gaussian_blur, prng


@pytest.mark.parametrize("size", [20, 29, 64, 113, 224])
def test_blur_equals_scipy_with_a_sigma_per_image(size):
    pixels = pixel_patches(3, size).numpy()
    operation = gaussian_blur.GaussianBlur(probability=1.0)
    uniforms = prng.uniform(seeds(3), operation.streams)
    ours = operation(tf.constant(pixels), uniforms).numpy()
    sigmas = 0.1 + 1.9 * uniforms["blur"].numpy()[:, 1]
    assert len(set(sigmas)) == 3
    for view, image, sigma in zip(ours, pixels, sigmas, strict=True):
        oracle = scipy.ndimage.gaussian_filter(
            image,
            [sigma, sigma, 0],
            mode="mirror",
            radius=[size // 10 // 2] * 2 + [0],
        )
        np.testing.assert_allclose(view, oracle, atol=2e-6)
