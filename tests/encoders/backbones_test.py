"""Backbones of Keras and KerasCV: only their normalization is replaced."""

import numpy as np
import pytest
import small
import tensorflow as tf
from image_helpers import noise

from tf_contrastive import __main__, checkpoints, encoders, exporting
from tf_contrastive.config.encoder import Keras
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.encoders import backbones


def test_keras_has_its_networks():
    assert set(Keras.networks) <= set(dir(tf.keras.applications))


# Small ones, among them batch normalization inside of a composite layer, a
# network that divides its input by 255 itself, and one without normalization.
BACKBONES = [
    "keras:MobileNetV3Small",
    "keras_cv:csp_darknet_tiny",
    pytest.param("keras:EfficientNetB0", marks=pytest.mark.slow),
    pytest.param("keras:VGG16", marks=pytest.mark.slow),
    pytest.param("keras_cv:resnet18_v2", marks=pytest.mark.slow),
]


def _normalizations(model):
    kind = tf.keras.layers.BatchNormalization
    return [m for m in model.submodules if isinstance(m, kind)]


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
    assert {type(n) for n in _normalizations(ours)} <= {BatchNormalization}
    assert {type(n) for n in _normalizations(theirs)} <= {
        tf.keras.layers.BatchNormalization
    }
    assert len(_normalizations(ours)) == len(_normalizations(theirs))
    # Statistics of the batch, as Keras takes them.
    found, expected = (m(images, training=True) for m in (ours, theirs))
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < 1e-4
    # An export is of Keras' own normalization again.
    plain = exporting.plain_encoder(ours)
    assert {type(n) for n in _normalizations(plain)} <= {
        tf.keras.layers.BatchNormalization
    }
    np.testing.assert_array_equal(plain(images), ours(images))


class _Composite(tf.keras.layers.Layer):
    """A layer with normalization inside, as other libraries have them."""

    def __init__(self):
        super().__init__()
        self.inner = tf.keras.layers.BatchNormalization()

    def call(self, x):
        return self.inner(x)


def test_normalization_inside_of_layers_spans_all_replicas():
    rows = np.random.default_rng(0).normal(3, 2, (8, 5)).astype(np.float32)

    def train(replicas, synchronized=True):
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(replicas)],
            tf.distribute.ReductionToOneDevice(),
        )
        with strategy.scope():
            inputs = tf.keras.Input([5])
            model = tf.keras.Model(inputs, _Composite()(inputs))
            backbones.synchronize(model, synchronized)
        share = 8 // replicas
        parts = strategy.experimental_distribute_values_from_function(
            lambda c: tf.constant(
                rows[c.replica_id_in_sync_group * share :][:share]
            )
        )
        step = tf.function(
            lambda x: strategy.run(lambda i: model(i, training=True), (x,))
        )
        made = strategy.experimental_local_results(step(parts))
        return np.concatenate([m.numpy() for m in made])

    expected = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-3)
    for replicas in (1, 2):
        np.testing.assert_allclose(train(replicas), expected, atol=1e-5)
    assert np.abs(train(2, synchronized=False) - expected).max() > 0.05


@pytest.mark.slow
def test_a_run_of_another_backbone_is_exported(monkeypatch, tmp_path):
    name = "keras:MobileNetV3Small"
    workdir = str(tmp_path / "run")
    argv = [
        "pretrain",
        "--dataset=digits",
        "--split=train[:256]",
        "--image_size=32",
        f"--encoder={name}",
        "--batch_size=128",
        "--epochs=1",
        f"--workdir={workdir}",
        *small.FLAGS,
    ]
    monkeypatch.setattr("sys.argv", ["tf_contrastive", *argv])
    assert __main__.main() == 0
    # What it did is written so that it can be repeated.
    run = checkpoints.load_run(workdir)
    assert run.config.encoder.label == name
    encoder = checkpoints.load_encoder(run)
    path = exporting.export(workdir, str(tmp_path / "export"))
    expected = encoder(noise()).numpy()
    found = exporting.load(path)(noise()).numpy()
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
