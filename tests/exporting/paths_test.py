"""Exports and runs that are loaded again."""

import numpy as np
import pytest
import saved_run
import tensorflow as tf
from export_helpers import SIZE, make_images

import tf_contrastive
from tf_contrastive import embedding, encoders, exporting
from tf_contrastive.base import errors

pytestmark = pytest.mark.keras


def test_a_loaded_export_is_the_encoder(encoder, saved):
    loaded = tf_contrastive.load(saved)
    images = make_images(4) / np.float32(255)
    expected = encoder(images, training=False)
    np.testing.assert_allclose(loaded(images), expected, atol=1e-5)
    assert np.all(loaded(images, training=False) == loaded(images))
    assert loaded(images[:0]).shape == (0, 6)
    assert exporting.image_shape(loaded) == (SIZE, SIZE, 3)
    assert embedding.checksum(loaded) == embedding.checksum(encoder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "export"])
def test_a_loaded_encoder_takes_bytes_and_refuses_other_values(kind, tmp_path):
    path, export = str(tmp_path / "run"), str(tmp_path / "export")
    saved_run.make(path, branches=True)
    path = exporting.export(path, export) if kind == "export" else path
    load = exporting.load(path)
    bytes = np.random.default_rng(0).integers(0, 256, [2, 8, 8, 3], np.uint8)
    expected = load(tf.constant(bytes / 255, tf.float32))
    np.testing.assert_allclose(load(tf.constant(bytes)), expected, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0, 1\]"):
        load(tf.constant(bytes, tf.float32))
    with pytest.raises(TypeError, match="int32"):
        load(tf.constant(bytes, tf.int32))
    for shape in ([2, 8, 8, 4], [2, 9, 8, 3], [8, 8, 3]):
        with pytest.raises(ValueError, match=r"must be \(None, 8, 8, 3\)$"):
            load(np.zeros(shape, np.uint8))


def _unnamed(branches):
    """A network of nested layers of equal shapes, without names."""

    def make(image_shape):
        def part():
            images = tf.keras.Input(image_shape)
            layer = tf.keras.layers.Conv2D(3, 1)
            return tf.keras.Model(images, layer(images))

        images = tf.keras.Input(image_shape)
        parts = [(i + 1) * part()(images) for i in range(branches)]
        x = tf.keras.layers.Add()(parts)
        x = tf.keras.layers.BatchNormalization()(x)
        return tf.keras.Model(images, x)

    return encoders.build(make, image_shape=(SIZE, SIZE, 3))


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
    targets = tf.random.stateless_normal([16, 6], [0, 0])
    optimizer = tf.keras.optimizers.Adam(0.02)
    history = []
    with tf.GradientTape() as tape:
        z = loaded.projection(loaded(images, training=True))
    variables = loaded.projection_variables
    trained = [g is not None for g in tape.gradient(z, variables)]
    assert trained == [v.trainable for v in variables]
    for _ in range(20):
        with tf.GradientTape() as tape:
            outputs = loaded(images, training=True)
            loss = tf.reduce_mean((outputs - targets) ** 2)
        gradients = tape.gradient(loss, loaded.trainable_variables)
        assert all(gradient is not None for gradient in gradients)
        pairs = zip(gradients, loaded.trainable_variables, strict=True)
        optimizer.apply_gradients(pairs)
        history.append(float(loss))
    assert history[-1] < 0.9 * history[0]
    for old, variable in zip(before, statistics, strict=True):
        assert np.abs(old - variable.numpy()).max() > 0


def test_invalid_folders_are_refused(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(errors.UserError, match="neither a run"):
            exporting.load(str(path))
    tf.saved_model.save(tf.Module(), str(tmp_path))
    with pytest.raises(errors.UserError, match="not an export"):
        exporting.load(str(tmp_path))
