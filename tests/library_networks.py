"""Networks of Keras with weights, and features of ours with the same.

The oracle is the network of the library itself, on images in 0..255 that its
own `preprocess_input` has prepared.
"""

import sys

import numpy as np
import tensorflow as tf

from tf_contrastive import encoders
from tf_contrastive.config.data import channel_statistics
from tf_contrastive.config.encoder import (
    EncoderSetup,
    declare,
    resolve_setup,
)
from tf_contrastive.encoders import backbones

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
