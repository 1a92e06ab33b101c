"""Builds an encoder by its name."""

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_contrastive.base import errors, terminal
from tf_contrastive.config import components, own
from tf_contrastive.config import encoder as declared
from tf_contrastive.config.data import DEFAULT_IMAGE_SIZE
from tf_contrastive.config.dataset import IMAGENET_STATISTICS
from tf_contrastive.encoders.own import OwnEncoder

# Of colours in [0, 1]; dividing by less makes bytes of them.
_LEAST_DEVIATION = 0.02


def _standardize(
    x: tf.Tensor, mean: Sequence[float], std: Sequence[float], scale: float
) -> tf.Tensor:
    """Computes (x - mean) / std of the colours, if there are, in float32."""
    # Other channels are left to the first BatchNorm.
    factors, offsets = [1.0] * x.shape[-1], [0.0] * x.shape[-1]
    if x.shape[-1] >= 3:
        pairs = list(zip(mean, std, strict=True))
        factors[:3] = [1 / s for _, s in pairs]
        offsets[:3] = [-m / s for m, s in pairs]
    # Half precision would round the pixels before they are centred.
    return tf.keras.layers.Rescaling(
        [f * scale for f in factors],
        [o * scale for o in offsets],
        dtype="float32",
        name="standardize",
    )(x)


def build(
    name: Any = "resnet50",
    *,
    image_shape: tuple[int, int, int] = (
        DEFAULT_IMAGE_SIZE,
        DEFAULT_IMAGE_SIZE,
        3,
    ),
    mean: Sequence[float] = IMAGENET_STATISTICS.mean,
    std: Sequence[float] = IMAGENET_STATISTICS.std,
    synchronized: bool = True,
    **options: Any,
) -> tf.keras.Model:
    """Builds an encoder with random weights: images to features h.

    These are float32 [N, D] under any precision policy: the global average,
    but a dense layer of `convnet`, and the class token of a vision transformer.

    Args:
      name: a key of `config.encoder.ENCODERS`, such as "resnet50", "convnet"
        or "keras:MobileNetV2"; or a Keras model of your own, a function that
        returns one, or its `module:name`. Keras' BatchNormalization in it
        becomes synchronized.
      image_shape: (height, width, channels), in pixels.
      mean, std: of each of the three colours, to standardise them; images of
        fewer channels are not standardised.
      synchronized: whether BatchNorm spans all replicas.
      **options: arguments of the encoder, such as `width`, `stem` and
        `zero_init_residual` of `resnet.ResNet`.

    Raises:
      UserError: for an unknown name, option or value, or images too small for
        the network.
    """
    if tf.keras.backend.image_data_format() != "channels_last":
        raise errors.UserError(
            "Keras' image_data_format is channels_first, and images here are"
            " [N, H, W, K]: call"
            " tf.keras.backend.set_image_data_format('channels_last'), or"
            " change keras.json"
        )
    network = _network(name, options)
    if len(image_shape) != 3 or not all(image_shape):
        raise errors.UserError(
            f"image_shape={tuple(image_shape)}: must be (height, width,"
            " channels), each of at least 1"
        )
    images = tf.keras.Input(image_shape, name="images")
    scale = network.library.input_scale if network.library else 1.0
    x = _standardize(images, mean, std, scale)
    x = network(x, synchronized)
    last = (
        tf.keras.layers.GlobalAveragePooling2D(dtype="float32", name="features")
        if x.shape.rank == 4
        else tf.keras.layers.Activation(
            "linear", dtype="float32", name="features"
        )
    )
    model = tf.keras.Model(images, last(x), name=_model_name(name))
    if isinstance(network, OwnEncoder) and min(std) > _LEAST_DEVIATION:
        _warn_of_rescaling(model)
    return model


def _warn_of_rescaling(model: tf.keras.Model) -> None:
    """Warns of a network that takes bytes, and gets standardised colours."""
    for layer in model.submodules:
        is_other = isinstance(layer, tf.keras.layers.Rescaling)
        if is_other and layer.name != "standardize":
            terminal.warning(
                f"encoder {model.name} has a layer Rescaling, but gets"
                " standardised colours: leave it out, such as by"
                " include_preprocessing=False, or pass mean=(0, 0, 0) and"
                " std=(1 / 255,) * 3, by which it gets 0..255"
            )


def _network(name: Any, options: dict[str, Any]) -> Any:
    if not isinstance(name, str):
        return OwnEncoder(name, options)
    if declared.is_own(name):
        return OwnEncoder(own.load("encoder", name, declared.PREFIXES), options)
    if name not in declared.ENCODERS:
        raise errors.unknown("encoder", name, declared.near(name))
    family = components.pick("encoder", name, declared.ENCODERS, options)
    kind = components.implementation(family)
    return kind(network=declared.split_name(name), **options)


def _model_name(name: Any) -> str:
    text = name if isinstance(name, str) else own.name_of(name)
    return re.sub(r"\W", "_", text).strip("_") or "encoder"
