"""Builds an encoder by its name, or of a part of your own."""

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_contrastive.base import callables, errors, terminal
from tf_contrastive.config import components, own
from tf_contrastive.config import encoder as declared
from tf_contrastive.config.data import DEFAULT_IMAGE_SIZE
from tf_contrastive.config.dataset import IMAGENET_STATISTICS
from tf_contrastive.distribution import own_network

_SHAPE = DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE, 3
# Of colours in [0, 1]; dividing by less makes bytes of them.
_LEAST_DEVIATION = 0.02


class OwnEncoder(declared.OwnEncoder):
    """A Keras model of your own, or a function of options that returns one."""

    def __init__(self, part: Any, options: dict[str, Any]) -> None:
        callables.options_of(part, declared.OWN_INPUTS, options, "encoder")
        self._part, self._options = part, options
        super().__init__(network=callables.name_of(part))

    def __call__(self, images: tf.Tensor, synchronized: bool) -> tf.Tensor:
        """Maps standardised [N, H, W, K] to features [N, D], or 4-D maps."""
        options = dict(self._options)
        if callables.takes(self._part, "image_shape"):
            options["image_shape"] = tuple(images.shape[1:])
        _, x = own_network.apply(
            f"encoder {self.network}", self._part, options, images, synchronized
        )
        if x.shape.rank not in (2, 4):
            raise errors.UserError(
                f"encoder {self.network} returns features of shape {x.shape}:"
                " must be [N, D], or [N, h, w, D], which are averaged"
            )
        return x


def _standardize(
    x: tf.Tensor, mean: Sequence[float], std: Sequence[float], scale: float
) -> tf.Tensor:
    """Computes (x - mean) / std of the channels that have one, in float32."""
    if len(mean) != len(std) or min(std, default=1) <= 0:
        raise errors.UserError(
            f"mean={tuple(mean)}, std={tuple(std)}: must be of the same"
            " channels, and the deviations above 0"
        )
    # Other channels are left to the first BatchNorm.
    factors, offsets = [scale] * x.shape[-1], [0.0] * x.shape[-1]
    pairs = list(zip(mean, std, strict=True))
    if x.shape[-1] >= len(pairs):
        factors[: len(pairs)] = [1 / s * scale for _, s in pairs]
        offsets[: len(pairs)] = [-m / s * scale for m, s in pairs]
    # Half precision would round the pixels before they are centred.
    return tf.keras.layers.Rescaling(
        factors, offsets, dtype="float32", name="standardize"
    )(x)


def build(
    name: Any = "resnet50",
    *,
    image_shape: tuple[int, int, int] = _SHAPE,
    mean: Sequence[float] = IMAGENET_STATISTICS.mean,
    std: Sequence[float] = IMAGENET_STATISTICS.std,
    synchronized: bool = True,
    **options: Any,
) -> tf.keras.Model:
    """Builds an encoder with random weights: images to features h.

    These are float32 [N, D] under any precision policy: the global average,
    but a dense layer of `convnet`, and the class token of a vision transformer.

    Args:
      name: a key of `config.encoder.ENCODERS`, such as "resnet50" or
        "keras:MobileNetV2"; or a Keras model of your own, a function that
        returns one, or its `module:name`.
      image_shape: (height, width, channels), in pixels.
      mean, std: of each of the first channels, to standardise them.
      synchronized: whether BatchNorm spans all replicas.
      **options: of the encoder, such as `width` and `stem` of a ResNet.

    Raises:
      UserError: for an unknown name, option or value, or images too small for
        the network.
    """
    if tf.keras.backend.image_data_format() != "channels_last":
        raise errors.UserError(
            "Keras' image_data_format is channels_first: change keras.json, or"
            " call tf.keras.backend.set_image_data_format('channels_last')"
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
    features = {"dtype": "float32", "name": "features"}
    last = tf.keras.layers.Activation("linear", **features)
    if x.shape.rank == 4:
        last = tf.keras.layers.GlobalAveragePooling2D(**features)
    label = name if isinstance(name, str) else callables.name_of(name)
    label = re.sub(r"\W", "_", label).strip("_") or "encoder"
    model = tf.keras.Model(images, last(x), name=label)
    kind = tf.keras.layers.Rescaling
    scaling = [x.name for x in model.submodules if isinstance(x, kind)]
    takes_bytes = isinstance(network, OwnEncoder) and len(scaling) > 1
    if takes_bytes and min(std) > _LEAST_DEVIATION:
        terminal.warning(
            f"encoder {model.name} has a layer Rescaling, but gets standardised"
            " colours: leave it out, such as by include_preprocessing=False, or"
            " pass mean=(0, 0, 0) and std=(1 / 255,) * 3, by which it gets"
            " 0..255"
        )
    return model


def _network(name: Any, options: dict[str, Any]) -> Any:
    if isinstance(name, str) and declared.is_own(name):
        name = own.load("encoder", name, declared.PREFIXES)
    if not isinstance(name, str):
        return OwnEncoder(name, options)
    if name not in declared.ENCODERS:
        raise errors.unknown("encoder", name, declared.near(name))
    family = components.pick("encoder", name, declared.ENCODERS, options)
    kind = components.implementation(family)
    return kind(network=declared.split_name(name), **options)
