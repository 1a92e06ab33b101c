"""Exports: what is refused, their classifiers, and plain copies of encoders."""

import numpy as np
import pytest
import tensorflow as tf
from export_helpers import make_encoder, make_images

from tf_contrastive import embedding, exporting, heads
from tf_contrastive.base import errors
from tf_contrastive.exporting import classifier_heads, exported_networks
from tf_contrastive.model import networks

pytestmark = pytest.mark.keras


def test_invalid_classifiers_are_refused(bank, encoder, tmp_path):
    with pytest.raises(errors.UserError, match="num_classes=3"):
        exporting.PrototypeHead(*bank, num_classes=3)
    with pytest.raises(errors.UserError, match=r"embeddings: .* NaN"):
        exporting.PrototypeHead(bank[0] * np.nan, bank[1])
    head = exporting.PrototypeHead(*bank)
    named = {"head": head, "label_names": ["a", "b"]}
    with pytest.raises(errors.UserError, match="2 label names"):
        exporting.export(encoder, str(tmp_path / "a"), **named)
    assert not (tmp_path / "a").exists()


def test_an_encoder_is_cloned_to_plain_float32_of_one_replica():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope(), networks.precision("mixed_bfloat16"):
        encoder = make_encoder()
    images = tf.constant(make_images(4) / np.float32(255))
    strategy.run(lambda: encoder(images, training=True))
    assert encoder(images).dtype == tf.bfloat16
    plain = exported_networks.plain_encoder(encoder)
    for layer in plain._flatten_layers():
        assert layer.compute_dtype == "float32"
        assert not getattr(layer, "synchronized", False)
    assert not any(hasattr(variable, "values") for variable in plain.variables)
    assert embedding.checksum(plain) == embedding.checksum(encoder)
    reference = make_encoder()
    reference.set_weights(encoder.get_weights())
    np.testing.assert_allclose(plain(images), reference(images), atol=1e-5)


def test_invalid_exports_are_refused(tmp_path):
    inputs = tf.keras.Input([None, None, 3])
    pooled = tf.keras.layers.GlobalAveragePooling2D()(inputs)
    with pytest.raises(errors.UserError, match=r"image_shape=\(S, S, 3\)"):
        exporting.export(tf.keras.Model(inputs, pooled), str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_an_exported_probe_normalizes_as_the_runs_probe_does():
    generator = np.random.default_rng(0)
    kernel = generator.standard_normal((5, 3)).astype(np.float32)
    features = 9 * generator.standard_normal((4, 5)).astype(np.float32)
    probe = heads.LinearProbe(3, normalize_input=True)
    probe.build([None, 5])
    probe.set_weights([kernel, np.ones(3, np.float32)])
    head = classifier_heads.ProbeHead(kernel, np.ones(3), normalize=True)
    expected = tf.nn.softmax(probe(features))
    np.testing.assert_allclose(head(features), expected, rtol=1e-6)
