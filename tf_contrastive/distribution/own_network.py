"""Makes networks of your own, with synchronized batch normalization."""

import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.distribution.batch_normalization import synchronize


def apply(
    what: str,
    part: Any,
    options: Mapping[str, Any],
    inputs: tf.Tensor,
    synchronized: bool,
) -> tuple[tf.keras.layers.Layer, tf.Tensor]:
    """Makes a network, applies it to a Keras tensor, and returns both.

    Args:
      what: its purpose and name, for messages.
      part: a function that returns a Keras layer or model, or one of these,
        which is copied with its weights.
      options: of the function.
      inputs: of `tf.keras.Input`.
      synchronized: whether its BatchNormalization spans all replicas.

    Raises:
      UserError: for something else, or inputs that it does not take.
    """
    is_network = isinstance(part, tf.keras.layers.Layer)
    network = copy(what, part) if is_network else part(**options)
    if not isinstance(network, tf.keras.layers.Layer):
        raise errors.UserError(
            f"{what} returns a {type(network).__name__}: must be a Keras"
            " layer or model"
        )
    shape = " x ".join(str(side) for side in inputs.shape[1:])
    taken = network.input_shape if is_functional(network) else None
    # Keras calls it with other sizes, too, and fails in the first step.
    if isinstance(taken, tuple) and not inputs.shape.is_compatible_with(taken):
        raise errors.UserError(
            f"{what} does not take inputs of {shape}, but of shape {taken}"
        )
    try:
        outputs = network(inputs)
    except (TypeError, ValueError) as error:
        raise errors.UserError(
            f"{what} does not take inputs of {shape} ({_reason(error)})"
        ) from error
    if not hasattr(outputs, "shape"):
        raise errors.UserError(
            f"{what} returns a {type(outputs).__name__}: must be one tensor"
        )
    has_size = outputs.shape[-1:].rank and outputs.shape[-1] is not None
    if not outputs.dtype.is_floating or not has_size:
        raise errors.UserError(
            f"{what} returns {outputs.dtype.name} of shape {outputs.shape}:"
            " must be floats of a known size"
        )
    if is_network and part.built:
        network.set_weights(part.get_weights())
    synchronize(network, synchronized)
    return network, outputs


def is_functional(network: tf.keras.layers.Layer) -> bool:
    """Whether a model was made of a graph of layers, with known inputs."""
    return getattr(network, "_is_graph_network", False)


def _reason(error: Exception) -> str:
    """Returns what a layer's error says, without where Keras caught it."""
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if re.match(r"\w+Error: ", line)]
    others = [line for line in lines if line and "encountered" not in line]
    return [*named[-1:], *others, errors.first_line(error)][0]


def copy(what: str, network: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
    """Makes a network of the same config; `what` names it in an error."""
    try:
        if is_functional(network):
            return tf.keras.models.clone_model(network)
        return type(network).from_config(network.get_config())
    except (NotImplementedError, TypeError, ValueError) as error:
        raise errors.UserError(
            f"{what} cannot be copied, as Keras does by"
            " get_config: give its class one, or use a function that returns it"
        ) from error
