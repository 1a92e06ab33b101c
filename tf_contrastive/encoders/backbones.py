"""Backbones of Keras and KerasCV with synchronized batch normalization.

Replacing their batch normalization leaves variables, their order and inference
unchanged. Stochastic depth is off: its random state is not in the checkpoint,
and a resumed run would not equal the uninterrupted one.
"""

from typing import Any, ClassVar

import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config import encoder as declared
from tf_contrastive.distribution.batch_normalization import synchronize

# Keras refuses smaller images in some networks; weights do not depend on it.
_LEAST_SIDE = 75


class _Backbone(declared.EncoderDeclaration):
    """A network of another library.

    Attributes:
      cache: where the library looks for weights before it downloads them.
    """

    cache: ClassVar[str]

    def _built(self, images: tf.Tensor) -> tuple[tf.keras.Model, tf.Tensor]:
        """Returns the network, and its output for the images."""
        raise NotImplementedError

    def of_library(self, input_shape: tuple[int, int, int]) -> tf.keras.Model:
        """Returns the network as its library makes it, with random weights."""
        raise NotImplementedError

    def with_imagenet_weights(
        self, input_shape: tuple[int, int, int]
    ) -> tf.keras.Model:
        """Returns the same with its library's weights, which it downloads.

        Raises:
          UserError: if the library has none.
          Exception: if they cannot be downloaded.
        """
        raise NotImplementedError

    @property
    def blue_first(self) -> bool:
        """Whether the library's weights take the colours in the order BGR."""
        return False

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

    cache = "~/.keras/models"

    def _made(self, weights: str | None, **inputs: Any) -> tf.keras.Model:
        make = getattr(tf.keras.applications, self.network)
        arguments = self.networks[self.network].arguments
        return make(include_top=False, weights=weights, **inputs, **arguments)

    def _of_shape(
        self, weights: str | None, input_shape: tuple[int, int, int]
    ) -> tf.keras.Model:
        *sides, channels = input_shape
        accepted = *(max(side, _LEAST_SIDE) for side in sides), channels
        return self._made(weights, input_shape=accepted)

    def _built(self, images: tf.Tensor) -> tuple[tf.keras.Model, tf.Tensor]:
        if not self.networks[self.network].starts_at_first_tensor:
            model = self._made(None, input_tensor=images)
            return model, model.output
        given = tf.keras.Input(images.shape[1:], dtype=images.dtype)
        model = self._made(None, input_tensor=given)
        # Not `model(images)`, which would be one layer with other checkpoints.
        return model, model.call(images)

    def of_library(self, input_shape: tuple[int, int, int]) -> tf.keras.Model:
        """Returns the network as Keras makes it."""
        return self._of_shape(None, input_shape)

    def with_imagenet_weights(
        self, input_shape: tuple[int, int, int]
    ) -> tf.keras.Model:
        """Returns the network with the weights that Keras downloads."""
        return self._of_shape(declared.IMAGENET, input_shape)

    @property
    def blue_first(self) -> bool:
        """Those of Caffe do."""
        return self.networks[self.network].blue_first


class KerasCV(declared.KerasCV, _Backbone):
    """A backbone of KerasCV."""

    cache = "~/.cache/kagglehub/models"

    def _kind(self) -> Any:
        from keras_cv import models  # Here, because the import takes seconds.

        kinds = {
            "resnet": models.ResNetBackbone,
            "resnet_v2": models.ResNetV2Backbone,
            "csp_darknet": models.CSPDarkNetBackbone,
        }
        return kinds[self.networks[self.network].kind]

    def _built(self, images: tf.Tensor) -> tuple[tf.keras.Model, tf.Tensor]:
        backbone = self.of_library(tuple(images.shape[1:]))
        # A plain model of the same layers: KerasCV's class cannot be cloned.
        model = tf.keras.Model(
            backbone.inputs, backbone.outputs, name=self.network
        )
        return model, model(images)

    def of_library(self, input_shape: tuple[int, int, int]) -> tf.keras.Model:
        """Returns the network as KerasCV makes it, without rescaling."""
        return self._kind()(
            include_rescaling=False,
            input_shape=input_shape,
            **self.networks[self.network].arguments,
        )

    def with_imagenet_weights(
        self, input_shape: tuple[int, int, int]
    ) -> tf.keras.Model:
        """Returns the network of the preset that KerasCV downloads."""
        kind, suffix = self._kind(), f"_{declared.IMAGENET}"
        if self.network + suffix not in kind.presets:
            known = [
                self.prefix + name.removesuffix(suffix)
                for name in kind.presets
                if name.endswith(suffix)
            ]
            raise errors.UserError(
                f"{errors.arg('init_from', declared.IMAGENET)}: KerasCV has no"
                f" such weights of {self.prefix}{self.network}, of its kind"
                f" only of {', '.join(known)}: use another"
                f" {errors.arg('encoder')}, or a file"
            )
        preset = kind.presets[self.network + suffix]
        try:
            model = kind.from_preset(self.network + suffix)
        except Exception as error:  # It does not name what it downloads.
            raise OSError(
                f"{preset['kaggle_handle']}: {errors.first_line(error)}"
            ) from error
        if not model.get_config()["include_rescaling"]:
            raise errors.UserError(
                f"{self.network + suffix} of this version of KerasCV expects"
                " other images than [0, 255]: use a file, with"
                f" {errors.arg('standardize')} as it was trained"
            )
        return model
