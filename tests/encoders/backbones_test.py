"""Backbones of Keras and KerasCV: only their normalization is replaced."""

import numpy as np
import pytest
import tensorflow as tf
from image_helpers import noise

from tf_contrastive import encoders, exporting
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.encoders import backbones

BACKBONES = [
    "keras:MobileNetV3Small",
    "keras_cv:csp_darknet_tiny",
    pytest.param("keras:EfficientNetB0", marks=pytest.mark.slow),
    pytest.param("keras:VGG16", marks=pytest.mark.slow),
    pytest.param("keras_cv:resnet18_v2", marks=pytest.mark.slow),
]


def _normalizations(model):
    kind = tf.keras.layers.BatchNormalization
    return {type(m) for m in model.submodules if isinstance(m, kind)}


def _moved(model):
    """Gives weights and statistics values that are none of the initial ones."""
    rng = np.random.default_rng(0)
    for variable in model.variables:
        # Keras' input normalization keeps its numbers apart from its variables.
        if not (variable.trainable or "moving" in variable.name):
            continue
        factors = 1 + 0.1 * rng.random(variable.shape)
        variable.assign(variable * factors.astype(np.float32))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKBONES)
def test_other_backbones_change_nothing_but_the_normalization(
    name, monkeypatch
):
    """The oracle is the network as its library makes it."""
    with monkeypatch.context() as patch:
        patch.setattr(backbones, "synchronize", lambda *_: None)
        theirs = _moved(encoders.build(name, image_shape=(64, 64, 3)))
    ours = encoders.build(name, image_shape=(64, 64, 3))
    assert [w.shape for w in ours.weights] == [w.shape for w in theirs.weights]
    ours.set_weights(theirs.get_weights())
    images = noise(3, 64, 64)
    np.testing.assert_array_equal(ours(images), theirs(images))
    assert _normalizations(ours) <= {BatchNormalization}
    assert _normalizations(theirs) <= {tf.keras.layers.BatchNormalization}
    # Statistics of the batch, as Keras takes them.
    found, expected = (m(images, training=True) for m in (ours, theirs))
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < 1e-4
    # An export is of Keras' own normalization again.
    plain = exporting.plain_encoder(ours)
    assert _normalizations(plain) <= {tf.keras.layers.BatchNormalization}
    np.testing.assert_array_equal(plain(images), ours(images))
