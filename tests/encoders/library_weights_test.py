"""Keras' and KerasCV's networks with weights: features equal the libraries'.

The oracle is the network of the library itself, on images in 0..255 that its
own `preprocess_input` has prepared.
"""

import inspect
import sys

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import encoders
from tf_contrastive.base import errors
from tf_contrastive.config import fields
from tf_contrastive.config.data import channel_statistics
from tf_contrastive.config.encoder import EncoderSetup, declare, resolve_setup
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.encoders import backbones
from tf_contrastive.exporting import exported_networks
from tf_contrastive.model.networks import precision

data_utils = sys.modules[inspect.unwrap(tf.keras.utils.get_file).__module__]
SIDE = 32


def keras_network(network, **arguments):
    """A network of Keras with weights and statistics that it might have."""
    make = getattr(tf.keras.applications, network)
    arguments = {"include_top": False, "weights": None, **arguments}
    return trained(make(**arguments), preprocess_of(network))


def trained(model, preprocess=lambda x: x):
    """Gives a network other weights, and statistics of random images."""
    rng, normalizations = np.random.default_rng(0), []
    for layer in model.submodules:
        if isinstance(layer, tf.keras.layers.Normalization) and layer.weights:
            # As Keras' weights of EfficientNet have them.
            mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
            layer.set_weights([*map(np.array, (mean, deviation)), 0])
        elif isinstance(layer, tf.keras.layers.BatchNormalization):
            weights = layer.get_weights()
            layer.set_weights([w + 0.2 * rng.random(w.shape) for w in weights])
            layer.momentum = 0.0
            normalizations.append(layer)
    side = model.input_shape[1] or SIDE
    prepared = preprocess(
        np.concatenate([make_images(side), make_images(side) / 2])
    )
    model(prepared, training=True)
    for layer in normalizations:
        # Channels that hardly vary would multiply errors of rounding.
        variance = layer.moving_variance.numpy()
        layer.moving_variance.assign(variance + 0.4 * variance.mean())
    return model


def ours(name, source, side=SIDE, **options):
    """Our encoder with these weights, as of `pretrain`."""
    encoder_of_run = declare(name).resolved(side)
    setup = EncoderSetup(init_from=str(source), **options)
    setup.check(encoder_of_run)
    setup = resolve_setup(setup, encoder_of_run)
    statistics = channel_statistics(setup.standardize)
    shape = side, side, 3
    encoder = encoders.build(name, image_shape=shape, **statistics._asdict())
    backbones.load_weights(name, setup.init_from, encoder, statistics)
    return encoder


def make_images(side=SIDE):
    """Bytes, as float32."""
    shape = (2, side, side, 3)
    return np.random.default_rng(1).integers(0, 256, shape).astype(np.float32)


def assert_equal_features(found, model, preprocess, side=SIDE):
    """Compares with the global average of a network's output."""
    expected = model(preprocess(make_images(side))).numpy().mean((1, 2))
    features = found(make_images(side) / 255).numpy()
    assert np.std(expected) > 0
    tolerance = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(features, expected, rtol=0, atol=tolerance)


def preprocess_of(network):
    """The `preprocess_input` of a network of Keras."""
    make = getattr(tf.keras.applications, network)
    return sys.modules[make.__module__].preprocess_input


@pytest.fixture(scope="module")
def vgg(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "vgg.h5"
    keras_network("VGG16", input_shape=(SIDE, SIDE, 3)).save_weights(path)
    return path


def _slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


# ---- Features ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "side", "options", "preprocess"),
    [
        # A file may expect other images, with colours in their own order.
        ("VGG16", SIDE, {"standardize": "none"}, lambda x: x / 255),
        _slow("VGG16", SIDE, {}, None),  # Blue first.
        _slow("MobileNet", SIDE, {}, None),  # [-1, 1].
        # Smaller than Keras takes; it divides by 255 itself.
        _slow("RegNetX002", 16, {}, None),
    ],
)
def test_features_equal_those_of_keras(
    network, side, options, preprocess, tmp_path
):
    model = keras_network(network, input_tensor=tf.keras.Input((side, side, 3)))
    model.save_weights(path := tmp_path / "w.hdf5")
    found = ours(f"keras:{network}", path, side=side, **options)
    preprocess = preprocess or preprocess_of(network)
    assert_equal_features(found, model, preprocess, side=side)
    # An export has Keras' own normalization again.
    plain = exported_networks.plain_encoder(found)
    assert_equal_features(plain, model, preprocess, side=side)
    kind = tf.keras.layers.BatchNormalization
    for encoder, expected in ((found, BatchNormalization), (plain, kind)):
        norms = [x for x in encoder.submodules if isinstance(x, kind)]
        assert {*map(type, norms)} <= {expected}
    # Statistics of the batch, as Keras takes them, of more than two pixels.
    if side == SIDE:
        prepared = preprocess(make_images(side))
        expected = model(prepared, training=True).numpy().mean((1, 2))
        h = found(make_images(side) / 255, training=True)
        assert np.linalg.norm(h - expected) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.slow
def test_a_network_with_its_top_is_refused_and_can_be_cut(tmp_path):
    # Its top is a convolution.
    options = {"input_shape": (SIDE, SIDE, 3), "classes": 7}
    model = keras_network("MobileNetV3Small", include_top=True, **options)
    pooling = tf.keras.layers.GlobalAveragePooling2D
    last = [x for x in model.layers if isinstance(x, pooling)][-1]
    features = tf.keras.Model(model.inputs, last.input)
    model.save_weights(path := tmp_path / "w.h5")
    with pytest.raises(errors.UserError, match="without its top"):
        ours("keras:MobileNetV3Small", path)
    features.save(path := tmp_path / "whole.h5")
    encoder = ours("keras:MobileNetV3Small", path)
    assert_equal_features(encoder, features, lambda x: x)


@pytest.mark.slow
def test_imagenet_is_what_keras_downloads(tmp_path, monkeypatch):
    """A local file takes the place of the download."""
    network = "EfficientNetB0"
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
def test_efficientnet_of_other_images_needs_their_statistics(tmp_path):
    """Of one that was trained from random weights, without ImageNet's."""
    model = keras_network("EfficientNetB0", input_shape=(SIDE, SIDE, 3))
    (own,) = (
        x for x in model.layers if isinstance(x, tf.keras.layers.Normalization)
    )
    own.set_weights([np.full(3, 0.3), np.full(3, 0.25), 0])
    model.save_weights(path := tmp_path / "w.h5")
    standardize = "0.3,0.3,0.3/0.5,0.5,0.5"
    with pytest.raises(errors.UserError, match=f"standardize={standardize}"):
        ours("keras:EfficientNetB0", path)
    # Keras has the 0.3 in the precision of the policy, which would round it.
    with precision("mixed_bfloat16"):
        found = ours("keras:EfficientNetB0", path, standardize=standardize)
    # The first, of a layer that standardizes, are without effect in ours.
    assert [v.dtype for v in found.weights[:2]] == [tf.float32] * 2
    for mine, theirs in zip(found.weights[3:], model.weights[3:], strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.slow
def test_features_equal_those_of_keras_cv(tmp_path):
    import keras_cv

    backbone = keras_cv.models.ResNetBackbone(
        stackwise_filters=[64, 128, 256, 512],
        stackwise_blocks=[2, 2, 2, 2],
        stackwise_strides=[1, 2, 2, 2],
        block_type="basic_block",
        include_rescaling=True,  # It divides by 255 itself.
        input_shape=(SIDE, SIDE, 3),
    )
    model = trained(backbone)
    model.save_weights(path := tmp_path / "w.h5")
    found = ours("keras_cv:resnet18", path)
    assert_equal_features(found, model, lambda x: x)


# ---- What is no such weights -------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("keras:VGG16", None, "(?i)no such file"),
        ("keras:VGG16", lambda content: content[:-1000], "cannot be read as"),
        ("keras:VGG16", lambda content: b"no weights", "cannot be read as"),
        # Another network, and one of other widths.
        ("keras:VGG19", lambda content: content, "cannot be read as keras:VGG"),
        ("keras:MobileNet", "narrow", "cannot be read as keras:MobileNet"),
        ("keras:MobileNet", "newer.weights", "cannot be read as"),
    ],
)
def test_other_files_are_refused_in_one_line(
    name, change, message, tmp_path, vgg
):
    path = tmp_path / "w.h5"
    if callable(change):
        path.write_bytes(change(vgg.read_bytes()))
    elif change:
        alpha = 0.25 if change == "narrow" else 1.0
        shape = (SIDE, SIDE, 3)
        model = keras_network("MobileNet", alpha=alpha, input_shape=shape)
        model.save_weights(path := tmp_path / f"{change}.h5")
    with pytest.raises(errors.UserError, match=message) as raised:
        ours(name, path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_download_that_fails_says_what_to_do(monkeypatch):
    def fail(*_):
        raise OSError("no network")

    monkeypatch.setattr(data_utils, "urlretrieve", fail)
    monkeypatch.setenv("HOME", "/nonexistent")
    with pytest.raises(errors.UserError, match=r"no network.*~/.keras/models"):
        ours("keras:VGG16", "imagenet")


@pytest.mark.parametrize("standardize", ["none", "imagenet", "0,0,0/1,1,1"])
def test_imagenet_weights_have_their_standardization(standardize):
    options = {"init_from": "imagenet", "workdir": "w"}
    options |= {"encoder": "keras:MobileNet", "standardize": standardize}
    run = fields.replace(Pretrain(), **options)
    with pytest.raises(errors.UserError, match="leave `standardize` out"):
        run.validate()
    # What a run records, and default.
    for allowed in (None, "0.5,0.5,0.5/0.5,0.5,0.5"):
        fields.replace(run, standardize=allowed).validate()
    fields.replace(run, init_from="w.h5").validate()
