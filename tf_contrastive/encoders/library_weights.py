"""Weights of Keras' and KerasCV's own networks, such as those of ImageNet.

The library builds its own network and loads it; the variables are copied by
their order. Keras standardises images in other ways for each of its networks.
Here the first layer of the encoder does that, so that a network which takes the
colours in the order BGR gets the kernel of its first convolution reversed, and
one which standardises its input itself leaves that out.
"""

import os
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files
from tf_contrastive.config import components
from tf_contrastive.config import encoder as declared
from tf_contrastive.config.data import write_statistics
from tf_contrastive.config.dataset import IMAGENET_STATISTICS, ChannelStatistics


def load(
    name: str,
    source: str,
    encoder: tf.keras.Model,
    standardization: ChannelStatistics,
) -> None:
    """Gives an encoder the weights of its library's network: all, or none.

    Args:
      name: of the encoder, such as "keras:MobileNetV2".
      source: "imagenet", which is downloaded, or a file that Keras wrote, of
        the network without its top.
      encoder: of `build`.
      standardization: of its first layer.

    Raises:
      UserError: for weights that cannot be read or downloaded, or are of
        another network, or expect other images.
    """
    init_from = errors.arg("init_from", source)
    kind = components.implementation(declared.ENCODERS[name])
    backbone = kind(network=declared.split_name(name))
    shape = tuple(encoder.input_shape[1:])
    if shape[-1] != 3:
        raise errors.UserError(
            f"{init_from} takes 3 channels, and the images have {shape[-1]}:"
            f" set {errors.arg('extra_channels', 0)}"
        )
    policy = tf.keras.mixed_precision.global_policy()
    # Half precision would round the statistics of EfficientNet.
    tf.keras.mixed_precision.set_global_policy("float32")
    try:
        if source == declared.IMAGENET:
            theirs = _downloaded(backbone, name, shape)
        else:
            theirs = backbone.of_library(shape)
            _read(source, theirs, name)
    finally:
        tf.keras.mixed_precision.set_global_policy(policy)
    values = [v.numpy() for v in theirs.weights]
    if backbone.library.blue_first and _equal(
        standardization, backbone.library.weights_input
    ):
        values[0] = values[0][:, :, ::-1]
    # The encoder's own layer standardizes: theirs stays without effect.
    without_effect = set()
    for layer in theirs.layers:
        if isinstance(layer, tf.keras.layers.Normalization):
            expected = _statistics(layer)
            if not _equal(standardization, expected):
                text = write_statistics(expected)
                raise errors.UserError(
                    f"{init_from} holds a network that standardizes its input"
                    " otherwise: set"
                    f" {errors.arg('standardize', text)}"
                )
            without_effect |= {id(v) for v in layer.weights}
    for variable, theirs_variable, value in zip(
        encoder.weights, theirs.weights, values, strict=True
    ):
        if id(theirs_variable) not in without_effect:
            variable.assign(value)


def _equal(one: ChannelStatistics, other: ChannelStatistics) -> bool:
    return np.allclose(one, other, rtol=1e-5, atol=1e-6)


def _statistics(layer: tf.keras.layers.Normalization) -> ChannelStatistics:
    """Returns what a network's own layer standardises with.

    The variance in Keras' weights of EfficientNet is ImageNet's deviation, by
    whose root Keras divides again, but only with `weights="imagenet"`.
    """
    mean, variance = (v.numpy().ravel() for v in layer.weights[:2])
    std = np.sqrt(variance)
    if np.allclose(variance, IMAGENET_STATISTICS.std, rtol=1e-4):
        std = variance
    return ChannelStatistics(tuple(mean.tolist()), tuple(std.tolist()))


def _downloaded(
    backbone: Any, name: str, shape: tuple[int, int, int]
) -> tf.keras.Model:
    try:
        return backbone.of_library(shape, declared.IMAGENET)
    except errors.UserError:
        raise
    except Exception as error:  # That is all that Keras raises.
        raise errors.UserError(
            f"{errors.arg('init_from', declared.IMAGENET)}: the weights of"
            f" {name} cannot be downloaded ({errors.first_line(error)}):"
            " download them on another machine and set"
            f" {errors.arg('init_from', 'FILE')}, or copy what is in its"
            " ~/.keras/models to this machine"
        ) from error


def _read(path: str, model: tf.keras.Model, name: str) -> None:
    """Loads a file into a network of its library.

    Raises:
      UserError: if it cannot be read, or holds another network.
    """
    init_from = errors.arg("init_from", path)
    try:
        files.size(path)
        with files.temporary_folder() as folder:
            # By this name Keras takes its older format, and compares the
            # layers with those of the network.
            local = os.path.join(folder, "file.h5")
            tf.io.gfile.copy(path, local)
            model.load_weights(local)
    except (FileNotFoundError, tf.errors.NotFoundError) as error:
        raise errors.UserError(f"{init_from}: there is no such file") from error
    except (OSError, KeyError, ValueError, tf.errors.OpError) as error:
        raise errors.UserError(
            f"{init_from} cannot be read as {name} without its top"
            f" ({errors.first_line(error)}): use what `save_weights('FILE.h5')`"
            " of that network wrote; of a network with a top, of"
            " tf.keras.Model(model.input, LAYER.output), where LAYER is its"
            " last one before the global average"
        ) from error
