"""Encoders by name: what is refused, and the small convolutional network."""

import numpy as np
import pytest
import tensorflow as tf
from image_helpers import noise

from tf_contrastive import encoders
from tf_contrastive.base import errors


def test_the_small_network():
    """Keras' layers by hand, with the same weights."""
    encoder = encoders.build("convnet", image_shape=(28, 28, 3))
    # 3x3 convolutions, a dense layer over 4x4x64, scales and offsets.
    weights = 9 * (3 * 32 + 32 * 64 + 64 * 64) + 16 * 64 * 128
    scales = 2 * (32 + 64 + 64 + 128)
    counts = [np.prod(w.shape) for w in encoder.trainable_variables]
    assert sum(counts) == weights + scales
    x = images = noise(height=28)
    for name in ("standardize", "conv1", "conv2", "conv3"):
        layer = encoder.get_layer(name)
        if name == "standardize":
            x = layer(x)
            continue
        x = tf.nn.conv2d(x, layer.kernel, 2, "SAME") / np.sqrt(1 + 1e-5)
        x = tf.nn.relu(x)
    x = tf.reshape(x, [len(x), -1]) @ encoder.get_layer("dense").kernel
    x = tf.nn.relu(x / np.sqrt(1 + 1e-5))
    found = encoder(images, training=False)
    assert found.shape == (4, 128)
    np.testing.assert_allclose(found, x, rtol=1e-3, atol=1e-5)
    with pytest.raises(errors.UserError, match="of convnet 'width'"):
        encoders.build("convnet", width=2, image_shape=(28, 28, 3))


@pytest.mark.parametrize(
    "options,message",
    [
        ({"name": "resnet51"}, "did you mean resnet50"),
        ({"width": 0}, "above 0"),
        ({"name": "vit_ti16", "heads": 0}, "heads=0.*at least 1"),
        ({"std": (0.0, 0.1, 0.1)}, "deviations above 0"),
        ({"std": (0.1,)}, "of the same channels"),
        ({"image_shape": (32, 32)}, "height, width"),
        ({"stem": "imagenet", "image_shape": (224, 28, 3)}, "28 pixels are"),
        ({"image_shape": (7, 7, 3)}, "too small for the cifar stem"),
        ({"name": "keras:MobilNetV2"}, "did you mean keras:MobileNetV2"),
        ({"name": "torch:resnet18"}, "own_modules=torch"),
        ({"name": "keras:MobileNetV2", "width": 2.0}, "'width'"),
        ({"name": "keras:VGG16", "image_shape": (16, 16, 3)}, "16 x 16 x 3"),
    ],
)
def test_what_cannot_be_built_is_told(options, message):
    options = {"name": "resnet10", "image_shape": (32, 32, 3), **options}
    with pytest.raises(errors.UserError, match=message):
        encoders.build(**options)
