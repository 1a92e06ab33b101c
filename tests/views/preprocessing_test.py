"""Preprocessing of evaluated images."""

import image_helpers
import numpy as np
import pytest
import tensorflow as tf
from image_helpers import patches
from PIL import Image

from tf_contrastive import views


@pytest.mark.parametrize("size", [8, 224])
def test_evaluation_only_scales_images_of_its_size(size):
    image = patches(1, size)[0]
    preprocess = views.evaluation(size)
    expected = image.astype(np.float32) * np.float32(1 / 255)
    np.testing.assert_array_equal(preprocess(image), expected)
    signature = [tf.TensorSpec([None, None, 3], tf.uint8)]
    dynamic = tf.function(preprocess, input_signature=signature)
    np.testing.assert_array_equal(dynamic(image), expected)


@pytest.mark.parametrize(
    ("preprocessing", "size", "height", "width", "tall", "wide"),
    [
        ("center_crop", 32, 427, 420, 33, 32),
        ("center_crop", 32, 31, 97, 32, 100),
        ("center_crop", 224, 427, 420, 260, 256),
        ("center_crop", 224, 401, 301, 341, 256),
        ("shorter_side", 224, 401, 301, 298, 224),
        ("squash_crop", 224, 401, 301, 256, 256),
        ("squash", 224, 401, 301, 224, 224),
    ],
)
def test_preprocessings_are_pillow_s_resize_then_centre_crop(
    preprocessing, size, height, width, tall, wide
):
    image = image_helpers.photos()[0, :height, :width]
    top, left = (tall - size) // 2, (wide - size) // 2
    method = "BICUBIC" if preprocessing == "shorter_side" else "BILINEAR"
    # In Pillow's floating-point mode, which does not round between its passes.
    channels = [
        Image.fromarray(channel.astype(np.float32)).resize(
            (wide, tall), getattr(Image.Resampling, method)
        )
        for channel in np.moveaxis(image, -1, 0)
    ]
    resized = np.stack([np.asarray(channel) for channel in channels], axis=-1)
    expected = np.clip(resized / 255, 0, 1)
    ours = views.evaluation(size, preprocessing)(image).numpy()
    np.testing.assert_allclose(
        ours, expected[top : top + size, left : left + size], atol=2e-4
    )


@pytest.mark.parametrize(
    ("size", "height", "width"),
    [(32, 1, 1), (224, 1, 5000), (32, 5000, 1), (224, 3, 2)],
)
def test_evaluation_takes_images_of_any_shape(size, height, width):
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
    view = views.evaluation(size)(image).numpy()
    assert view.shape == (size, size, 3)
    assert view.min() >= 0 and view.max() <= 1
    seen, middle = (
        x[(h - 1) // 2 : h // 2 + 1, (w - 1) // 2 : w // 2 + 1].mean((0, 1))
        for x, h, w in ((view, size, size), (image, height, width))
    )
    np.testing.assert_allclose(seen, middle / 255, atol=0.02)
