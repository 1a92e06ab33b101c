"""Exports and runs that are loaded again."""

import numpy as np
import pytest
import tensorflow as tf
from export_helpers import SIZE, make_images

import tf_contrastive
from tf_contrastive import embedding, exporting
from tf_contrastive.base import errors

pytestmark = pytest.mark.keras


def test_a_loaded_export_is_the_encoder(encoder, saved):
    loaded = tf_contrastive.load(saved)
    images = make_images(4) / np.float32(255)
    expected = encoder(images, training=False)
    np.testing.assert_allclose(loaded(images), expected, atol=1e-5)
    assert np.all(loaded(images, training=False) == loaded(images))
    assert loaded(images[:0]).shape == (0, 6)
    np.testing.assert_allclose(loaded(make_images(4)), expected, atol=1e-5)
    # `keras_saving_test` has what the encoder of a run refuses.
    for other, error in (
        (make_images(4).astype(np.float32), tf.errors.InvalidArgumentError),
        (make_images(4).astype(np.int32), TypeError),
        (images[..., :1], ValueError),
    ):
        with pytest.raises(error, match="images"):
            loaded(other)
    assert exporting.image_shape(loaded) == (SIZE, SIZE, 3)
    assert embedding.checksum(loaded) == embedding.checksum(encoder)


def _unnamed(parts):
    """A network of nested layers of equal shapes, without names."""
    layers = tf.keras.layers
    images = x = tf.keras.Input((SIZE, SIZE, 3))
    for _ in range(parts):
        x = tf.keras.Sequential([layers.Conv2D(3, 1)])(x)
    x = layers.BatchNormalization()(x)
    return tf.keras.Model(images, layers.GlobalAveragePooling2D()(x))


@pytest.mark.slow
def test_layers_without_own_names_are_copied_to_their_own(tmp_path):
    """Keras numbers them in the whole process: 11 after 9, and 2."""
    images = make_images(4) / np.float32(255)
    other = _unnamed(11)
    rng = np.random.default_rng(0)
    other.set_weights([w + rng.random(w.shape) for w in other.get_weights()])
    path = exporting.export(other, str(tmp_path / "export"))
    encoder = _unnamed(11)
    exporting.copy_weights(path, encoder)
    np.testing.assert_array_equal(encoder(images), other(images))
    with pytest.raises(errors.UserError, match="another encoder"):
        exporting.copy_weights(path, _unnamed(12))


def test_a_loaded_export_trains(encoder, projection, saved):
    loaded = exporting.load(saved)
    h = tf.random.stateless_normal([4, 6], [0, 0])
    expected = projection(h, training=False)
    np.testing.assert_allclose(loaded.projection(h), expected, atol=1e-5)
    shapes = [variable.shape for variable in encoder.trainable_variables]
    assert [v.shape for v in loaded.trainable_variables] == shapes
    trained = {v.name for v in loaded.trainable_variables}
    statistics = [v for v in loaded.variables if v.name not in trained]
    before = [v.numpy() for v in statistics]
    images = tf.constant(make_images(16) / np.float32(255))
    targets = tf.random.stateless_normal([16, 4], [0, 0])
    optimizer = tf.keras.optimizers.Adam(0.02)
    variables = [
        *loaded.trainable_variables,
        *(v for v in loaded.projection_variables if v.trainable),
    ]
    history = []
    for _ in range(20):
        with tf.GradientTape() as tape:
            z = loaded.projection(loaded(images, training=True))
            loss = tf.reduce_mean((z - targets) ** 2)
        gradients = tape.gradient(loss, variables)
        assert all(gradient is not None for gradient in gradients)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        history.append(float(loss))
    assert history[-1] < 0.9 * history[0]
    for old, variable in zip(before, statistics, strict=True):
        assert np.abs(old - variable.numpy()).max() > 0


def test_a_foreign_saved_model_is_refused(tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path))
    with pytest.raises(errors.UserError, match="not an export"):
        exporting.load(str(tmp_path))
