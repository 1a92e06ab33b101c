"""Backbones of Keras and KerasCV with synchronized batch normalization.

Replacing their batch normalization leaves variables, their order and inference
unchanged. Stochastic depth is off: its random state is not in the checkpoint,
and a resumed run would not equal the uninterrupted one.
"""

from typing import Any

import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config import encoder as declared
from tf_contrastive.distribution.batch_normalization import synchronize

# Keras refuses smaller images in some networks; weights do not depend on it.
_LEAST_SIDE = 75


class _Backbone(declared.Library):
    """A network of another library."""

    def _built(self, images: tf.Tensor) -> tuple[tf.keras.Model, tf.Tensor]:
        """Returns the network, and its output for the images."""
        raise NotImplementedError

    def of_library(
        self, input_shape: tuple[int, int, int], weights: str | None = None
    ) -> tf.keras.Model:
        """Returns the network as its library makes it.

        `weights` are random, or "imagenet", which the library downloads.

        Raises:
          UserError: if the library has no such weights.
          Exception: if they cannot be downloaded.
        """
        raise NotImplementedError

    def __call__(self, images: tf.Tensor, synchronized: bool) -> tf.Tensor:
        """Maps standardised [N, H, W, K] of a functional model to 4-D maps.

        Raises:
          UserError: for images that are too small for the network.
        """
        try:
            model, x = self._built(images)
        except ValueError as error:
            side = " x ".join(str(s) for s in images.shape[1:])
            raise errors.UserError(
                f"{self.prefix}{self.network} does not accept images of {side}:"
                f" use a larger {errors.arg('image_size')}"
            ) from error
        for layer in model.layers:
            if isinstance(layer, tf.keras.layers.Normalization):
                _keep_float32(layer)
        synchronize(model, synchronized)
        return x


def _keep_float32(layer: tf.keras.layers.Normalization) -> None:
    """Gives a layer float32 variables, as those of other layers are.

    Keras makes them in the precision of the policy, in which no checkpoint is
    read. They are 0 and 1, so that it computes the same.
    """
    if layer.compute_dtype != "float32":
        layer._set_dtype_policy("float32")
        with tf.name_scope(layer.name):
            layer.build(layer.input_shape)


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
        model = tf.keras.Model(
            backbone.inputs, backbone.outputs, name=self.network
        )
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
