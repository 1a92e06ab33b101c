"""Encoders as they are exported: float32, of Keras' layers, of known size."""

from typing import Any

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.encoders import convolution


def image_shape(encoder: Any) -> tuple[int, int, int]:
    """Returns (side, side, channels), as `image_size` says."""
    if isinstance(encoder, tf.keras.Model):
        shape = encoder.input_shape
    else:
        function = encoder.__call__.concrete_functions[0]
        shape = function.structured_input_signature[0][0].shape
    height, width, channels = shape[1:]
    if height is None or height != width or (channels or 0) < 3:
        raise errors.UserError(
            f"the encoder takes images of {list(shape[1:])}: build it with"
            " image_shape=(S, S, 3), or more channels"
        )
    return height, width, channels


def image_size(encoder: Any) -> int:
    """Returns the side S of the images that an encoder takes.

    Args:
      encoder: a Keras model, or what `load` returns for an export.

    Raises:
      UserError: if the encoder takes no square images of a fixed size, of three
        colours or of those and other channels.
    """
    return image_shape(encoder)[0]


def extra(encoder: Any) -> int:
    """Returns how many channels an encoder takes beside the three colours.

    Arguments and errors are those of `image_size`.
    """
    return image_shape(encoder)[2] - 3


def plain_encoder(encoder: tf.keras.Model) -> tf.keras.Model:
    """Clones an encoder in float32, its batch normalization unsynchronized.

    Args:
      encoder: functional Keras model under any policy and strategy.

    Returns:
      a Keras model with the same weights and the same outputs at inference.
    """
    plain = _clone(encoder)
    plain.set_weights(encoder.get_weights())
    return plain


def _clone(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
    if isinstance(layer, tf.keras.Model):
        return tf.keras.models.clone_model(layer, clone_function=_clone)
    batch_norm = tf.keras.layers.BatchNormalization
    if isinstance(layer, batch_norm):
        # The base class's own options: those of subclasses synchronize.
        options, kind = batch_norm.get_config(layer), batch_norm
    elif isinstance(layer, convolution.Conv2D):
        # Its gradient is no operation that other processes would know.
        options, kind = layer.get_config(), tf.keras.layers.Conv2D
    else:
        options, kind = layer.get_config(), type(layer)
    return kind.from_config({**options, "dtype": "float32"})


def plain_head(head: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
    """Rebuilds a projection head that one replica computes by itself.

    Args:
      head: of `heads.build`, built.

    Returns:
      a head with the same weights and the same outputs at inference.
    """
    options = head.get_config()
    if "synchronized" in options:
        options["synchronized"] = False
    plain = type(head).from_config(options)
    if head.variables:
        plain.build(tf.TensorShape([None, head.variables[0].shape[0]]))
        plain.set_weights(head.get_weights())
    return plain
