"""Makes networks of your own, with synchronized batch normalization."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.distribution.batch_normalization import synchronize


def apply(
    what: str,
    part: Any,
    options: Mapping[str, Any],
    inputs: tf.Tensor,
    synchronized: bool,
) -> tuple[tf.keras.layers.Layer, tf.Tensor]:
    """Makes a network, and applies it to a Keras tensor.

    Args:
      what: its purpose and name, for messages.
      part: a function that returns a Keras layer or model, or one of these,
        which is copied with its weights.
      options: of the function.
      inputs: of `tf.keras.Input`.
      synchronized: whether its BatchNormalization spans all replicas.

    Returns:
      (the network, its output).

    Raises:
      UserError: for something else, or inputs that it does not take.
    """
    is_network = isinstance(part, tf.keras.layers.Layer)
    network = _copy(what, part) if is_network else part(**options)
    if not isinstance(network, tf.keras.layers.Layer):
        raise errors.UserError(
            f"{what} returns a {type(network).__name__}: must be a Keras"
            " layer or model"
        )
    try:
        outputs = network(inputs)
    except (TypeError, ValueError) as error:
        shape = " x ".join(str(side) for side in inputs.shape[1:])
        raise errors.UserError(
            f"{what} does not take inputs of {shape}"
            f" ({errors.first_line(error)})"
        ) from error
    if not hasattr(outputs, "shape"):
        raise errors.UserError(
            f"{what} returns a {type(outputs).__name__}: must be one tensor"
        )
    if is_network and part.built:
        network.set_weights(part.get_weights())
    synchronize(network, synchronized)
    return network, outputs


def _copy(what: str, network: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
    try:
        if getattr(network, "_is_graph_network", False):
            return tf.keras.models.clone_model(network)
        return type(network).from_config(network.get_config())
    except (NotImplementedError, TypeError, ValueError) as error:
        raise errors.UserError(
            f"{what} cannot be copied, as Keras does by"
            " get_config: use a function that returns it"
        ) from error
