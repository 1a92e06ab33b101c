"""Backbones of Keras and KerasCV with synchronized batch normalization.

Replacing their batch normalization leaves variables, their order and inference
unchanged. Stochastic depth is off: its random state is not in the checkpoint,
and a resumed run would not equal the uninterrupted one.
"""

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config import encoder as declared
from tf_contrastive.distribution.batch_normalization import synchronize


class _Backbone(declared.EncoderDeclaration):
    """A network of another library."""

    def _built(self, images: tf.Tensor) -> tuple[tf.keras.Model, tf.Tensor]:
        """Returns the network, and its output for the images."""
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
        synchronize(model, synchronized)
        return x


class Keras(declared.Keras, _Backbone):
    """A network of `tf.keras.applications`."""

    def _built(self, images: tf.Tensor) -> tuple[tf.keras.Model, tf.Tensor]:
        model = getattr(tf.keras.applications, self.network)(
            include_top=False,
            weights=None,
            input_tensor=images,
            **self.networks[self.network].arguments,
        )
        return model, model.output


class KerasCV(declared.KerasCV, _Backbone):
    """A backbone of KerasCV."""

    def _built(self, images: tf.Tensor) -> tuple[tf.keras.Model, tf.Tensor]:
        from keras_cv import models  # Here, because the import takes seconds.

        kinds = {
            "resnet": models.ResNetBackbone,
            "resnet_v2": models.ResNetV2Backbone,
            "csp_darknet": models.CSPDarkNetBackbone,
        }
        kind, arguments, _ = self.networks[self.network]
        backbone = kinds[kind](
            include_rescaling=False,
            input_shape=tuple(images.shape[1:]),
            **arguments,
        )
        # A plain model of the same layers: KerasCV's class cannot be cloned.
        model = tf.keras.Model(
            backbone.inputs, backbone.outputs, name=self.network
        )
        return model, model(images)
