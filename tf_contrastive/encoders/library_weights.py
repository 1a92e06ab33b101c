"""Weights of Keras' and KerasCV's own networks, such as those of ImageNet.

Keras standardises images in other ways for each of its networks. Here the first
layer of the encoder does that, so that a network which takes the colours in the
order BGR gets the kernel of its first convolution reversed, and one which
standardises its input itself leaves that out.
"""

import contextlib
import os
import zipfile
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files
from tf_contrastive.config import encoder as declared
from tf_contrastive.config.data import write_statistics
from tf_contrastive.config.dataset import IMAGENET_STATISTICS, ChannelStatistics
from tf_contrastive.encoders.build import ENCODERS

# What h5py, Keras and TensorFlow raise for files that they cannot read.
_UNREADABLE = OSError, KeyError, zipfile.BadZipFile, tf.errors.OpError


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
        the network with or without its top.
      encoder: of `build`.
      standardization: of its first layer.

    Raises:
      UserError: for weights that cannot be read or downloaded, or are of
        another network, or expect other images.
    """
    given = errors.arg("init_from", source)
    backbone = ENCODERS[name](network=declared.split_name(name))
    shape = tuple(encoder.input_shape[1:])
    if shape[-1] != 3:
        raise errors.UserError(
            f"{given} takes 3 channels, and the images have {shape[-1]}: set"
            f" {errors.arg('extra_channels', 0)}"
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
    values = {id(v): v.numpy() for v in theirs.weights}
    if backbone.blue_first and _equal(standardization, backbone.weights_input):
        first = theirs.weights[0]
        values[id(first)] = values[id(first)][:, :, ::-1]
    own = dict(zip(map(id, theirs.weights), encoder.weights, strict=True))
    for layer in theirs.layers:
        if isinstance(layer, tf.keras.layers.Normalization):
            expected = _statistics(layer)
            if not _equal(standardization, expected):
                text = write_statistics(expected)
                raise errors.UserError(
                    f"{given} holds a network that standardizes its input"
                    " otherwise: set"
                    f" {errors.arg('standardize', text)}"
                )
            # The encoder's own stays without effect.
            for variable in layer.weights:
                del own[id(variable)]
    for key, variable in own.items():
        variable.assign(values[key])


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


def _downloaded(backbone: Any, name: str, shape: Any) -> tf.keras.Model:
    try:
        return backbone.with_imagenet_weights(shape)
    except errors.UserError:
        raise
    except Exception as error:  # That is all that Keras raises.
        raise errors.UserError(
            f"{errors.arg('init_from', declared.IMAGENET)}: the weights of"
            f" {name} cannot be downloaded ({errors.first_line(error)}):"
            " download them on another machine and set"
            f" {errors.arg('init_from', 'FILE')}, or copy what is in its"
            f" {backbone.cache} to this machine"
        ) from error


# ---- Files -------------------------------------------------------------------


def _read(path: str, model: tf.keras.Model, name: str) -> None:
    """Loads a file into a network of its library.

    Raises:
      UserError: if it cannot be read, or holds another network.
    """
    given = errors.arg("init_from", path)
    try:
        files.size(path)
        with files.temporary_folder() as folder:
            # Keras tells the formats apart by the names, which may be others.
            local = os.path.join(folder, "file.weights.h5")
            tf.io.gfile.copy(path, local)
            if zipfile.is_zipfile(local):
                whole = os.path.join(folder, "file.keras")
                os.rename(local, whole)
                _read_newer(whole, model)
                return
            with h5py.File(local) as file:
                group = file.get("model_weights", file)
                layers = (
                    list(_layers(group)) if _names(group, "layer_names") else []
                )
            if layers:
                _assign(layers, model)
            else:
                _read_newer(local, model)
    except (FileNotFoundError, tf.errors.NotFoundError) as error:
        raise errors.UserError(f"{given}: there is no such file") from error
    except ValueError as error:
        raise errors.UserError(
            f"{given} does not hold {name} ({errors.first_line(error)}): use"
            " what `save_weights` of that network wrote, with the same"
            f" {errors.arg('encoder')}"
        ) from error
    except _UNREADABLE as error:
        raise errors.UserError(
            f"{given} is damaged, or was not written by Keras"
            f" ({errors.first_line(error)}): download or copy it again"
        ) from error


def _names(group: Any, name: str) -> list[str]:
    """Reads a list of names, which Keras splits if it is long."""
    parts = [name] if name in group.attrs else []
    while f"{name}{len(parts)}" in group.attrs:
        parts.append(f"{name}{len(parts)}")
    names = [n for part in parts for n in group.attrs[part]]
    return [n.decode() if isinstance(n, bytes) else n for n in names]


def _layers(group: Any) -> Iterator[list[np.ndarray]]:
    """Yields the arrays of each layer of the older format, in their order."""
    for layer in _names(group, "layer_names"):
        yield [
            group[layer][weight][()]
            for weight in _names(group[layer], "weight_names")
        ]


def _assign(layers: list[list[np.ndarray]], model: tf.keras.Model) -> None:
    """Assigns arrays to a network's variables; those of a top may follow.

    Raises:
      ValueError: for arrays of another network.
    """
    variables = [
        v
        for layer in model.layers
        for v in (*layer.trainable_weights, *layer.non_trainable_weights)
    ]
    arrays: list[np.ndarray] = []
    rest = [layer for layer in layers if layer]
    while rest and len(arrays) < len(variables):
        arrays += rest.pop(0)
    if len(arrays) != len(variables):
        raise ValueError(f"it has {len(arrays)} arrays, not {len(variables)}")
    for array, variable in zip(arrays, variables, strict=True):
        if array.shape != tuple(variable.shape):
            raise ValueError(
                f"{variable.name.partition(':')[0]} has shape {array.shape},"
                f" not {tuple(variable.shape)}"
            )
    _check_top([[array.shape for array in layer] for layer in rest], model)
    for array, variable in zip(arrays, variables, strict=True):
        variable.assign(array)


def _read_newer(path: str, model: tf.keras.Model) -> None:
    """Loads a file of the newer formats; see `_assign`."""
    model.load_weights(path)
    own = os.path.join(os.path.dirname(path), "own.weights.h5")
    model.save_weights(own)
    known = _shapes(own)
    # Not of the optimizer.
    places = {name.partition("/")[0] for name in known}
    _check_top(
        [
            shapes
            for name, shapes in _shapes(path).items()
            if name not in known and name.partition("/")[0] in places
        ],
        model,
    )


def _shapes(path: str) -> dict[str, list[tuple[int, ...]]]:
    """Returns the shapes of each layer's arrays in a newer file, in order."""
    found: dict[str, list[tuple[int, ...]]] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found.setdefault(os.path.dirname(name), []).append(item.shape)

    with contextlib.ExitStack() as stack:
        stored: Any = path
        if zipfile.is_zipfile(path):
            archive = stack.enter_context(zipfile.ZipFile(path))
            stored = stack.enter_context(archive.open("model.weights.h5"))
        stack.enter_context(h5py.File(stored)).visititems(visit)
    # Numbers of layers of one kind follow their names.
    return {n: found[n] for n in sorted(found, key=lambda n: (len(n), n))}


def _check_top(
    layers: list[list[tuple[int, ...]]], model: tf.keras.Model
) -> None:
    """Checks that what follows a network is a top: a chain of dense layers.

    Some of Keras' are convolutions of 1 x 1, or take the whole map.

    Args:
      layers: shapes of the arrays of each layer.
      model: without its top.

    Raises:
      ValueError: for further layers of another network.
    """
    inputs = model.output_shape[-1]
    for kernel, *biases in layers:
        dense = len(kernel) == 2 or (len(kernel) == 4 and kernel[:2] == (1, 1))
        if (
            not dense
            or kernel[-2] % inputs
            or biases not in ([], [kernel[-1:]])
        ):
            raise ValueError(
                f"another layer of shape {kernel} follows, which is no top"
            )
        inputs = kernel[-1]
