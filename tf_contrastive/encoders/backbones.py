"""Backbones of Keras and KerasCV with synchronized batch normalization.

Replacing their batch normalization leaves variables, their order and inference
unchanged. Stochastic depth is off: its random state is not in the checkpoint,
and a resumed run would not equal the uninterrupted one.
"""

from typing import Any

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.distribution.batch_normalization import BatchNormalization

# Options of Keras' networks, by the start of their names.
_KERAS_OPTIONS: dict[str, dict[str, Any]] = {
    "EfficientNet": {"drop_connect_rate": 0.0},
    "MobileNetV3": {"include_preprocessing": False},
    "RegNet": {"include_preprocessing": False},
}
# Blocks of residual networks: He et al. 2016, table 1.
_RESNETS = {
    18: ("basic_block", [2, 2, 2, 2]),
    34: ("basic_block", [3, 4, 6, 3]),
    50: ("block", [3, 4, 6, 3]),
    101: ("block", [3, 4, 23, 3]),
    152: ("block", [3, 8, 36, 3]),
}
# Channels and depths of the backbone of YOLOX (Ge et al. 2021).
_DARKNETS = {
    "tiny": (48, 1),
    "s": (64, 1),
    "m": (96, 2),
    "l": (128, 3),
    "xl": (170, 4),
}
# Families and options; KerasCV's own presets have to be downloaded.
_KERAS_CV: dict[str, tuple[str, dict[str, Any]]] = {
    f"resnet{depth}{version}": (
        f"resnet{version}",
        {
            "stackwise_filters": [64, 128, 256, 512],
            "stackwise_blocks": blocks,
            "stackwise_strides": [1, 2, 2, 2],
            "block_type": block,
        },
    )
    for version in ("", "_v2")
    for depth, (block, blocks) in _RESNETS.items()
} | {
    f"csp_darknet_{size}": (
        "csp_darknet",
        {
            "stackwise_channels": [channels << i for i in range(4)],
            "stackwise_depth": [depth, 3 * depth, 3 * depth, depth],
        },
    )
    for size, (channels, depth) in _DARKNETS.items()
}


def input_scale(name: str) -> float:
    """Returns the factor of standardised colours that a network expects."""
    # EfficientNet divides by 255 itself.
    return 255.0 if name.startswith("keras:EfficientNet") else 1.0


def features(
    name: str, images: tf.Tensor, *, synchronized: bool = True
) -> tf.Tensor:
    """Applies `keras:NAME` or `keras_cv:NAME` to a functional model's tensor.

    Standardised images, times `input_scale`, [N, H, W, K] -> [N, H', W', D].

    Raises:
      UserError: for images that are too small for the network.
    """
    library, _, network = name.partition(":")
    build = _from_keras if library == "keras" else _from_keras_cv
    try:
        model, x = build(network, images)
    except ValueError as error:
        side = " x ".join(str(s) for s in images.shape[1:])
        raise errors.UserError(
            f"{name} does not accept images of {side}: use a larger"
            f" {errors.arg('image_size')}"
        ) from error
    replace_normalization(model, synchronized)
    return x


def _from_keras(
    network: str, images: tf.Tensor
) -> tuple[tf.keras.Model, tf.Tensor]:
    options = [o for p, o in _KERAS_OPTIONS.items() if network.startswith(p)]
    model = getattr(tf.keras.applications, network)(
        include_top=False,
        weights=None,
        input_tensor=images,
        **(options[0] if options else {}),
    )
    return model, model.output


def _from_keras_cv(
    network: str, images: tf.Tensor
) -> tuple[tf.keras.Model, tf.Tensor]:
    from keras_cv import models  # Here, because the import takes seconds.

    families = {
        "resnet": models.ResNetBackbone,
        "resnet_v2": models.ResNetV2Backbone,
        "csp_darknet": models.CSPDarkNetBackbone,
    }
    family, options = _KERAS_CV[network]
    backbone = families[family](
        include_rescaling=False, input_shape=tuple(images.shape[1:]), **options
    )
    # A plain model of the same layers: KerasCV's class cannot be cloned.
    model = tf.keras.Model(backbone.inputs, backbone.outputs, name=network)
    return model, model(images)


def replace_normalization(model: tf.keras.Model, synchronized: bool) -> None:
    """Turns Keras' batch normalization in a built model into ours, in place.

    This includes layers inside of layers, which cloning does not reach, and
    keeps the variables.
    """
    for layer in model.submodules:
        # Subclasses may behave differently.
        if type(layer) is tf.keras.layers.BatchNormalization:
            layer.__class__ = BatchNormalization
            layer.synchronized = synchronized
