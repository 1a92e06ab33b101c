"""What is exported: encoder and projection head, in float32 Keras layers."""

import dataclasses
import os
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints
from tf_contrastive.base import errors
from tf_contrastive.config.export import Exporting
from tf_contrastive.distribution import own_network
from tf_contrastive.encoders import resnet


def image_shape(encoder: Any) -> tuple[int, int, int]:
    """Returns the shape (S, S, K) of the images of a model or a loaded export.

    Raises:
      UserError: unless it is square and fixed, with channels.
    """
    if isinstance(encoder, tf.keras.Model):
        shape = encoder.input_shape
    else:
        shape = encoder.traced.structured_input_signature[0][0].shape
    height, width, channels = shape[1:]
    if height is None or height != width or not channels:
        raise errors.UserError(
            f"the encoder takes images of {list(shape[1:])}: build it with"
            " image_shape=(S, S, 3), or with other channels"
        )
    return height, width, channels


def num_features(encoder: Any) -> int:
    """Returns the number of features D of a model or a loaded export."""
    if isinstance(encoder, tf.keras.Model):
        return encoder.output_shape[-1]
    return encoder.traced.output_shapes[-1]


@dataclasses.dataclass(frozen=True)
class Parts:
    """The networks that are exported, in float32 and of Keras' own layers.

    Attributes:
      encoder: images [N, S, S, K] -> features [N, D].
      projection: features -> [N, P].
      run: that they were read from.
    """

    encoder: tf.keras.Model
    projection: tf.keras.layers.Layer | None = None
    run: checkpoints.Run | None = None

    @classmethod
    def load(
        cls, source: Any, checkpoint: int | None = Exporting.checkpoint
    ) -> "Parts":
        """Makes the parts of a run or of a model.

        Args:
          source: folder of a run, a `ContrastiveModel`, a Keras encoder, or
            parts, which are returned unchanged; with `ema` the averages of the
            weights are taken.
          checkpoint: step of a run's checkpoint; None: the newest.
        """
        if isinstance(source, Parts):
            return source
        if isinstance(source, str | os.PathLike):
            run = checkpoints.load_run(os.fspath(source), checkpoint)
            return cls.from_run(run)
        head = getattr(source, "projection_head", None)
        head = head and _plain_head(head)
        encoder = plain_encoder(getattr(source, "encoder", source))
        if averages := getattr(source, "averages", None):
            # First those of the encoder, then the head's.
            weights = [*encoder.weights, *(head.weights if head else ())]
            for average, weight in zip(averages.weights, weights, strict=False):
                weight.assign(tf.convert_to_tensor(average))
        return cls(encoder, head)

    @classmethod
    def from_run(cls, run: checkpoints.Run) -> "Parts":
        """Makes the parts of a run at a checkpoint."""
        encoder = checkpoints.load_encoder(run)
        head, _ = checkpoints.load_heads(run, encoder.output_shape[-1])
        return cls(plain_encoder(encoder), head and _plain_head(head), run)


def plain_encoder(encoder: tf.keras.Model) -> tf.keras.Model:
    """Clones a functional model of any policy and strategy, with its weights.

    The clone is in float32, its batch normalization unsynchronized.
    """
    plain = _clone(encoder)
    plain.set_weights(encoder.get_weights())
    return plain


def _clone(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
    is_sequential = isinstance(layer, tf.keras.Sequential)
    if is_sequential or own_network.is_functional(layer):
        return tf.keras.models.clone_model(layer, clone_function=_clone)
    kind = type(layer)
    if isinstance(layer, tf.keras.layers.BatchNormalization):
        # The base class's own options: those of subclasses synchronize.
        kind = tf.keras.layers.BatchNormalization
    elif isinstance(layer, resnet.Conv2D):
        # Other processes do not know its gradient.
        kind = tf.keras.layers.Conv2D
    try:
        return kind.from_config({**kind.get_config(layer), "dtype": "float32"})
    except (NotImplementedError, TypeError):
        # A class of the user's own that takes no type.
        return own_network.copy(f"layer {layer.name}", layer)


def _plain_head(head: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
    """Copies a built head of `heads.build`, without synchronization."""
    options = head.get_config()
    if "synchronized" in options:
        options["synchronized"] = False
    plain = type(head).from_config(options)
    if head.variables:
        plain.build(tf.TensorShape([None, head.variables[0].shape[0]]))
        plain.set_weights(head.get_weights())
    return plain
