"""Backbones of Keras and KerasCV with synchronized batch normalization.

Replacing their batch normalization leaves variables, their order and inference
unchanged. Stochastic depth is off: its random state is not in the checkpoint,
and a resumed run would not equal the uninterrupted one.

For weights such as those of ImageNet the library builds its own network and
loads it; the variables are copied by their order. Keras standardises images in
other ways for each of its networks. Here the first layer of the encoder does
that, so that a network which takes the colours in the order BGR gets the kernel
of its first convolution reversed, and one which standardises its input itself
leaves that out.
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
from tf_contrastive.distribution.batch_normalization import synchronize

# Keras refuses smaller images in some networks; weights do not depend on it.
_LEAST_SIDE = 75
_OF_FILE = (
    "use what `save_weights('FILE.h5')` of that network wrote; of a network"
    " with a top, of tf.keras.Model(model.input, LAYER.output), where LAYER is"
    " its last one before the global average"
)
_OF_WEB = (
    "download it on another machine, and copy what is in its ~/.keras/models to"
    f" this one, or set {errors.arg('init_from', 'FILE')}"
)


class _Backbone(declared.Library):
    """A network of another library."""

    def _built(self, images: tf.Tensor) -> tuple[tf.keras.Model, tf.Tensor]:
        """Returns the network, and its output for the images."""
        raise NotImplementedError

    def of_library(
        self, input_shape: tuple[int, int, int], weights: str | None = None
    ) -> tf.keras.Model:
        """Returns the network as its library makes it.

        `weights` are random, or "imagenet", which the library downloads; what
        it raises then is raised.
        """
        raise NotImplementedError

    def __call__(self, images: tf.Tensor, synchronized: bool) -> tf.Tensor:
        """Maps standardised [N, H, W, K] of a functional model to 4-D maps."""
        try:
            model, x = self._built(images)
        except ValueError as error:
            side = " x ".join(str(s) for s in images.shape[1:])
            raise errors.UserError(
                f"{self.prefix}{self.network} does not accept images of {side}:"
                f" use a larger {errors.arg('image_size')}"
            ) from error
        for layer in model.layers:
            is_normalization = isinstance(layer, tf.keras.layers.Normalization)
            if is_normalization and layer.compute_dtype != "float32":
                # Its variables, 0 and 1, would have the policy's precision, in
                # which no checkpoint is read.
                layer._set_dtype_policy("float32")
                with tf.name_scope(layer.name):
                    layer.build(layer.input_shape)
        synchronize(model, synchronized)
        return x


class Keras(declared.Keras, _Backbone):
    """A network of `tf.keras.applications`."""

    def _made(self, weights: str | None, **inputs: Any) -> tf.keras.Model:
        make = getattr(tf.keras.applications, self.network)
        arguments = self.library.arguments
        return make(include_top=False, weights=weights, **inputs, **arguments)

    def _built(self, images: tf.Tensor) -> tuple[tf.keras.Model, tf.Tensor]:
        if not self.library.starts_at_first_tensor:
            model = self._made(None, input_tensor=images)
            return model, model.output
        inputs = tf.keras.Input(images.shape[1:], dtype=images.dtype)
        model = self._made(None, input_tensor=inputs)
        # Not `model(images)`, which would be one layer with other checkpoints.
        return model, model.call(images)

    def of_library(
        self, input_shape: tuple[int, int, int], weights: str | None = None
    ) -> tf.keras.Model:
        """Returns the network as Keras makes it."""
        *sides, channels = input_shape
        accepted = *(max(side, _LEAST_SIDE) for side in sides), channels
        return self._made(weights, input_shape=accepted)


class KerasCV(declared.KerasCV, _Backbone):
    """A backbone of KerasCV."""

    def _built(self, images: tf.Tensor) -> tuple[tf.keras.Model, tf.Tensor]:
        backbone = self.of_library(tuple(images.shape[1:]))
        # A plain model of the same layers: KerasCV's class cannot be cloned.
        ends = backbone.inputs, backbone.outputs
        model = tf.keras.Model(*ends, name=self.network)
        return model, model(images)

    def of_library(
        self, input_shape: tuple[int, int, int], weights: str | None = None
    ) -> tf.keras.Model:
        """Returns the network as KerasCV makes it, without rescaling."""
        if weights is not None:
            raise errors.UserError(
                f"{errors.arg('init_from', weights)} is for keras:NAME: use a"
                " file FILE.h5 that `save_weights` of KerasCV's network wrote"
            )
        import keras_cv  # Here, because the import takes seconds.

        network = self.library
        return getattr(keras_cv.models, network.kind)(
            include_rescaling=False,
            input_shape=input_shape,
            **network.arguments,
        )


# ---- Weights -----------------------------------------------------------------


def load_weights(
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
      UserError: for weights that are absent, of another network, or of other
        images.
    """
    init_from = errors.arg("init_from", source)
    library = components.implementation(declared.ENCODERS[name])
    backbone = library(network=declared.split_name(name))
    shape = tuple(encoder.input_shape[1:])
    if shape[-1] != 3:
        raise errors.UserError(
            f"{init_from} takes 3 channels, and the images have {shape[-1]}:"
            f" set {errors.arg('extra_channels', 0)}, or leave out"
            f" {errors.arg('channels')}"
        )
    policy = tf.keras.mixed_precision.global_policy()
    # Half precision would round the statistics of EfficientNet.
    tf.keras.mixed_precision.set_global_policy("float32")
    try:
        if source == declared.IMAGENET:
            theirs = backbone.of_library(shape, declared.IMAGENET)
        else:
            theirs = backbone.of_library(shape)
            _read(source, theirs)
    except errors.UserError:
        raise
    except Exception as error:  # That is all that Keras raises.
        is_file = source != declared.IMAGENET
        raise errors.UserError(
            f"{init_from} cannot be read as {name} without its top"
            f" ({errors.first_line(error)}): {_OF_FILE if is_file else _OF_WEB}"
        ) from error
    finally:
        tf.keras.mixed_precision.set_global_policy(policy)
    values = [v.numpy() for v in theirs.weights]
    if backbone.library.blue_first and _equal(
        standardization, backbone.library.weights_input
    ):
        values[0] = values[0][:, :, ::-1]
    # The encoder's own layer standardizes: theirs stays without effect.
    without_effect = set()
    kind = tf.keras.layers.Normalization
    for layer in (x for x in theirs.layers if isinstance(x, kind)):
        expected = _statistics(layer)
        if not _equal(standardization, expected):
            text = errors.arg("standardize", write_statistics(expected))
            raise errors.UserError(
                f"{init_from} holds a network that standardizes its input"
                f" otherwise: set {text}"
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


def _read(path: str, model: tf.keras.Model) -> None:
    """Loads a file into a network of its library."""
    files.size(path)
    with files.temporary_folder() as folder:
        # By this name Keras takes its older format, and compares the layers
        # with those of the network.
        local = os.path.join(folder, "file.h5")
        tf.io.gfile.copy(path, local)
        model.load_weights(local)
