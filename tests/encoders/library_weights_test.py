"""Weights of Keras' and KerasCV's networks: features equal the libraries'.

The oracle is the network of the library itself, on images in 0..255 that its
own `preprocess_input` has prepared.
"""

import sys

import numpy as np
import pytest
import tensorflow as tf
from keras.src.utils import data_utils

from tf_contrastive import encoders, errors
from tf_contrastive.config import fields
from tf_contrastive.config.data import channel_statistics
from tf_contrastive.config.encoder import Encoder, resolve_encoder
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.encoders import library_weights

SIDE = 32


def keras_network(network, **arguments):
    """A network of Keras with weights and statistics that it might have."""
    make = getattr(tf.keras.applications, network)
    arguments = {"include_top": False, "weights": None, **arguments}
    return trained(make(**arguments))


def trained(model):
    """Gives a network's weights and statistics other values than the first."""
    rng = np.random.default_rng(0)
    for layer in model.submodules:
        if isinstance(layer, tf.keras.layers.Normalization) and layer.weights:
            # As Keras' weights of EfficientNet have them.
            mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
            layer.set_weights([*map(np.array, (mean, deviation)), 0])
        elif isinstance(layer, tf.keras.layers.BatchNormalization):
            layer.set_weights(
                [w + 0.2 * rng.random(w.shape) for w in layer.get_weights()]
            )
    return model


def ours(name, source, side=SIDE, channels=3, encoder=None, **options):
    """Our encoder, or a given one, with these weights, as of `pretrain`."""
    chosen = Encoder(encoder=name, init_from=str(source), **options)
    chosen.check_weights()
    statistics = channel_statistics(resolve_encoder(chosen, side).standardize)
    mean, std = statistics
    shape = (side, side, channels)
    encoder = encoder or encoders.build(
        name, image_shape=shape, mean=mean, std=std
    )
    library_weights.load(name, chosen.init_from, encoder, statistics)
    return encoder


def images(side=SIDE):
    """Bytes, as float32."""
    shape = (2, side, side, 3)
    return np.random.default_rng(1).integers(0, 256, shape).astype(np.float32)


def assert_equal_features(found, model, preprocess, side=SIDE):
    """Compares with the global average of a network's output."""
    expected = model(preprocess(images(side))).numpy().mean((1, 2))
    features = found(images(side) / 255).numpy()
    assert np.std(expected) > 0
    np.testing.assert_allclose(
        features, expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


def preprocess_of(network):
    """The `preprocess_input` of a network of Keras."""
    make = getattr(tf.keras.applications, network)
    return sys.modules[make.__module__].preprocess_input


# ---- Features ----------------------------------------------------------------

# Blue first, and [-1, 1]; an older file, and both newer ones.
_QUICK = [("VGG16", "w.h5"), ("MobileNet", "w.weights.h5")]
_SLOW = [("VGG16", "w.keras"), ("RegNetX002", "w.hdf5")]


@pytest.mark.parametrize(
    "network,file",
    [*_QUICK, *(pytest.param(*x, marks=pytest.mark.slow) for x in _SLOW)],
)
def test_features_equal_those_of_keras(network, file, tmp_path):
    model = keras_network(network, input_shape=(SIDE, SIDE, 3))
    path = tmp_path / file
    (model.save if path.suffix == ".keras" else model.save_weights)(path)
    found = ours(f"keras:{network}", path)
    assert_equal_features(found, model, preprocess_of(network))


def test_a_top_is_left_out(tmp_path):
    # Its top is a convolution.
    options = {"input_shape": (SIDE, SIDE, 3), "classes": 7}
    model = keras_network("MobileNetV3Small", include_top=True, **options)
    pooling = tf.keras.layers.GlobalAveragePooling2D
    last = [x for x in model.layers if isinstance(x, pooling)][-1]
    features = tf.keras.Model(model.inputs, last.input)
    found = None
    for file in ("w.h5", "whole.h5", "w.weights.h5"):
        path = tmp_path / file
        (model.save if file == "whole.h5" else model.save_weights)(path)
        found = ours("keras:MobileNetV3Small", path, encoder=found)
        assert_equal_features(found, features, lambda x: x)
        for variable in found.variables:
            variable.assign(tf.zeros_like(variable))


@pytest.mark.slow
@pytest.mark.parametrize("network", ["EfficientNetB0", "ResNet50"])
def test_imagenet_is_what_keras_downloads(network, tmp_path, monkeypatch):
    """A local file takes the place of the download."""
    path = tmp_path / "w.h5"
    keras_network(network).save_weights(path)
    asked = []

    def get_file(name, url, **_):
        asked.append(url)
        return str(path)

    monkeypatch.setattr(data_utils, "get_file", get_file)
    found = ours(f"keras:{network}", "imagenet")
    assert asked and "notop" in asked[0]
    # With the layer that Keras has only with "imagenet".
    model = getattr(tf.keras.applications, network)(
        include_top=False, weights="imagenet", input_shape=(SIDE, SIDE, 3)
    )
    assert_equal_features(found, model, preprocess_of(network))


@pytest.mark.slow
def test_other_images_of_efficientnet_are_refused(tmp_path):
    """Of one that was trained from random weights, without ImageNet's."""
    model = keras_network("EfficientNetB0", input_shape=(SIDE, SIDE, 3))
    (own,) = (
        x for x in model.layers if isinstance(x, tf.keras.layers.Normalization)
    )
    own.set_weights([np.zeros(3), np.ones(3), 0])
    path = tmp_path / "w.h5"
    model.save_weights(path)
    with pytest.raises(errors.UserError, match="standardize=0,0,0/1,1,1"):
        ours("keras:EfficientNetB0", path)
    found = ours("keras:EfficientNetB0", path, standardize="none")
    assert_equal_features(found, model, lambda x: x)


def test_a_file_may_expect_other_images(tmp_path):
    """Then its colours are in their own order."""
    model = keras_network("VGG16", input_shape=(SIDE, SIDE, 3))
    model.save_weights(path := tmp_path / "w.h5")
    found = ours("keras:VGG16", path, standardize="none")
    assert_equal_features(found, model, lambda x: x / 255)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["w.h5", "w.weights.h5"])
@pytest.mark.parametrize(
    "network,kind,arguments",
    [
        (
            "csp_darknet_tiny",
            "CSPDarkNetBackbone",
            {
                "stackwise_channels": [48, 96, 192, 384],
                "stackwise_depth": [1, 3, 3, 1],
            },
        ),
        (
            "resnet18",
            "ResNetBackbone",
            {
                "stackwise_filters": [64, 128, 256, 512],
                "stackwise_blocks": [2, 2, 2, 2],
                "stackwise_strides": [1, 2, 2, 2],
                "block_type": "basic_block",
            },
        ),
    ],
)
def test_features_equal_those_of_keras_cv(
    network, kind, arguments, file, tmp_path
):
    import keras_cv

    make = getattr(keras_cv.models, kind)
    # It divides by 255 itself.
    shape = (SIDE, SIDE, 3)
    model = trained(
        make(include_rescaling=True, input_shape=shape, **arguments)
    )
    model.save_weights(path := tmp_path / file)
    found = ours(f"keras_cv:{network}", path)
    assert_equal_features(found, model, lambda x: x)


# ---- What is no such weights -------------------------------------------------


@pytest.fixture(scope="module")
def vgg(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "vgg.h5"
    keras_network("VGG16", input_shape=(SIDE, SIDE, 3)).save_weights(path)
    return path


def _written(content, name="w.h5"):
    def write(folder):
        (folder / name).write_bytes(content)
        return folder / name

    return write


def _folder(folder):
    (folder / "w.h5").mkdir()
    return folder / "w.h5"


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """Files of a narrow MobileNet."""
    folder = tmp_path_factory.mktemp("weights")
    shape = (SIDE, SIDE, 3)
    model = keras_network("MobileNet", alpha=0.25, input_shape=shape)
    model.save_weights(folder / "w.h5")
    model.save_weights(folder / "w.weights.h5")
    model.save(folder / "w.keras")
    return folder


@pytest.mark.parametrize(
    "name,make,named",
    [
        ("keras:VGG16", lambda folder: folder / "no.h5", "no such file"),
        ("keras:VGG16", _folder, "a folder"),
        ("keras:VGG16", "truncated", "damaged"),
        ("keras:VGG16", _written(b"no weights"), "damaged"),
        ("keras:VGG16", _written(b"PK\3\4no weights", "w.keras"), "damaged"),
        # Another network, and one of other widths.
        ("keras:VGG19", "vgg", "does not hold keras:VGG19"),
        ("keras:VGG16", "w.h5", "does not hold keras:VGG16"),
        ("keras:VGG16", "w.weights.h5", "does not hold keras:VGG16"),
        ("keras:VGG16", "w.keras", "does not hold keras:VGG16"),
        ("keras:MobileNet", "w.h5", "conv1/kernel has shape"),
        ("keras:MobileNet", "w.weights.h5", "does not hold"),
    ],
)
def test_other_files_are_refused_in_one_line(
    name, make, named, tmp_path, vgg, narrow
):
    if make == "vgg":
        path = vgg
    elif make == "truncated":
        path = tmp_path / "w.h5"
        path.write_bytes(vgg.read_bytes()[:-1000])
    else:
        path = make(tmp_path) if callable(make) else narrow / make
    with pytest.raises(errors.UserError, match=named) as raised:
        ours(name, path)
    text = str(raised.value)
    assert str(path) in text
    assert "\n" not in text


def test_a_download_that_fails_says_what_to_do(monkeypatch):
    def fail(*_):
        raise OSError("no network")

    monkeypatch.setattr(data_utils, "urlretrieve", fail)
    monkeypatch.setenv("HOME", "/nonexistent")
    with pytest.raises(errors.UserError) as raised:
        ours("keras:VGG16", "imagenet")
    text = str(raised.value)
    assert "\n" not in text
    for part in ("no network", "init_from=FILE", "~/.keras/models"):
        assert part in text


def test_weights_take_three_channels(vgg):
    with pytest.raises(errors.UserError, match="extra_channels=0"):
        ours("keras:VGG16", vgg, channels=4)


@pytest.mark.parametrize("standardize", ["none", "dataset", "0,0,0/1,1,1"])
def test_imagenet_weights_have_their_standardization(standardize):
    run = fields.replace(
        Pretrain(),
        encoder="keras:MobileNet",
        init_from="imagenet",
        standardize=standardize,
        workdir="w",
    )
    with pytest.raises(errors.UserError, match="leave `standardize` out"):
        run.validate()
    # What a run records, and default.
    for allowed in ("imagenet", "0.5,0.5,0.5/0.5,0.5,0.5"):
        fields.replace(run, standardize=allowed).validate()
    fields.replace(run, init_from="w.h5").validate()
