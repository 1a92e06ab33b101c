"""What users put into a Keras model is saved with it, and loaded again."""

import numpy as np
import processes
import pytest
import tensorflow as tf

from tf_contrastive import encoders, heads, losses, optimizers
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.model import ContrastiveModel

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("small_encoder")]

_EXTENSIONS = ("m.keras", "m.h5", "m")


def _small(name="resnet10", **options):
    return encoders.build(name, image_shape=(16, 16, 3), **options)


def _layers():
    """Keras' batch normalization, which becomes synchronized."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.ReLU()]
    )


def _loaded():
    encoder = _small(_layers)
    return encoders.Encoder(encoder.inputs, encoder.outputs)


# Name -> (makes it, shape of its input).
_PARTS = {
    "loaded": (_loaded, (16, 16, 3)),
    "resnet": (lambda: _small(width=0.125), (16, 16, 3)),
    "convnet": (lambda: _small("convnet"), (16, 16, 3)),
    "vit": (lambda: _small("vit_ti8", width=0.25, depth=1), (16, 16, 3)),
    "own": (lambda: _small(_layers), (16, 16, 3)),
    "mlp": (lambda: heads.build("mlp", output=4, layers=3), (12,)),
    "own_head": (lambda: heads.build(tf.keras.layers.Dense(4)), (12,)),
    "probe": (lambda: heads.LinearProbe(3, normalize_input=True), (12,)),
    "batch_normalization": (BatchNormalization, (12,)),
}


def _user_model(name):
    """A model of the user's around a part, and images or features for it."""
    make, shape = _PARTS[name]
    inputs = tf.keras.Input(shape)
    outputs = tf.keras.layers.Dense(3)(make()(inputs))
    x = np.random.default_rng(0).uniform(size=(2, *shape))
    return tf.keras.Model(inputs, outputs), x.astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", _PARTS)
@pytest.mark.filterwarnings("ignore")
def test_a_part_of_a_users_model_is_saved_with_it(name, tmp_path):
    model, x = _user_model(name)
    for file in _EXTENSIONS:
        model.save(tmp_path / file)
        again = tf.keras.models.load_model(tmp_path / file)
        np.testing.assert_allclose(again(x), model(x), rtol=1e-6, atol=1e-7)


@pytest.mark.filterwarnings("ignore")
def test_checks_of_a_loaded_encoder_are_saved_with_it(tmp_path):
    saved, x = _user_model("loaded")
    models = [saved]
    for file in _EXTENSIONS:
        saved.save(tmp_path / file)
        models.append(tf.keras.models.load_model(tmp_path / file))
    for model in models:
        encoder = model.layers[1]
        levels = np.uint8(np.rint(x * 255))
        expected = encoder(levels / np.float32(255))
        np.testing.assert_allclose(encoder(levels), expected, rtol=1e-5)
        for wrong, text in (
            (x.astype(np.int32), "images of type int32: pass uint8"),
            (x * 255, r"must be float32 in \[0, 1\]"),
            (x[:0], "no images: must be at least one"),
            (x[..., :1], r"\(2, 16, 16, 1\): must be \(None, 16, 16, 3\)"),
            (x[0], r"images of shape \(16, 16, 3\): must be"),
        ):
            with pytest.raises(
                (ValueError, TypeError, tf.errors.InvalidArgumentError),
                match=text,
            ):
                encoder(wrong)
        # Keras makes floats of them before the encoder sees them.
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be"):
            model(levels)


_PROGRAM = """
import sys
import numpy as np
import tensorflow as tf
from tf_contrastive import encoders
for path in sys.argv[1:]:
    model = tf.keras.models.load_model(path)
    assert type(model.layers[1]).__name__ == "Encoder", path
    model(np.full([1, 16, 16, 3], 0.5, np.float32))
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_another_process_that_has_imported_its_part_loads_it(tmp_path):
    model, _ = _user_model("loaded")
    paths = [str(tmp_path / file) for file in _EXTENSIONS]
    for path in paths:
        model.save(path)
    processes.run(processes.python(_PROGRAM, *paths))


@pytest.mark.slow
@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_an_optimizer_of_a_users_model_is_saved_with_it(name, tmp_path):
    x, y = np.ones([2, 4], np.float32), np.ones([2, 3], np.float32)
    model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(3)])
    model.compile(optimizers.build(name, learning_rate=0.1), "mse")
    path = str(tmp_path / "c.keras")
    checkpoint = tf.keras.callbacks.ModelCheckpoint(path)
    model.fit(x, y, epochs=2, verbose=0, callbacks=[checkpoint])
    again = tf.keras.models.load_model(path)
    assert type(again.optimizer) is type(model.optimizer)
    assert again.optimizer.get_config() == model.optimizer.get_config()
    for m in (model, again):
        m.fit(x, y, verbose=0)
    np.testing.assert_allclose(again(x), model(x), rtol=1e-5, atol=1e-6)


def test_a_contrastive_model_is_saved(tmp_path):
    model = ContrastiveModel(
        _small(_layers),
        heads.build("mlp", output=8),
        losses.build("supcon", temperature=0.2),
        heads.LinearProbe(4),
    )
    model.compile(optimizers.build("lars", learning_rate=0.1))
    views = np.random.default_rng(0).uniform(size=[8, 2, 16, 16, 3])
    views = views.astype(np.float32)
    data = views, np.arange(8) % 4
    model.fit(*data, validation_data=data, verbose=0)
    images = views[:, 0]
    for file in ("m.keras", "m"):
        model.save(tmp_path / file)
        again = tf.keras.models.load_model(tmp_path / file)
        np.testing.assert_allclose(again(images), model(images), atol=1e-5)
