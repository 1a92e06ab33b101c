"""Backbones of Keras and KerasCV with synchronized batch normalization.

Replacing their batch normalization leaves variables, their order and inference
unchanged. Stochastic depth is off: its random state is not in the checkpoint,
and a resumed run would not equal the uninterrupted one.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.distribution.batch_normalization import BatchNormalization

# Options of Keras' networks, by the start of their names.
_KERAS_OPTIONS: dict[str, dict[str, Any]] = {
    "EfficientNet": {"drop_connect_rate": 0.0},
    "MobileNetV3": {"include_preprocessing": False},
    "RegNet": {"include_preprocessing": False},
}


class _KerasCV(NamedTuple):
    """A network of KerasCV: its family and options.

    KerasCV's own presets have to be downloaded.
    """

    family: str
    options: dict[str, Any]


def _resnet(family: str, block: str, *repeats: int) -> _KerasCV:
    """He et al. 2016, table 1."""
    return _KerasCV(
        family,
        {
            "stackwise_filters": [64, 128, 256, 512],
            "stackwise_blocks": list(repeats),
            "stackwise_strides": [1, 2, 2, 2],
            "block_type": block,
        },
    )


def _darknet(channels: int, depth: int) -> _KerasCV:
    """The backbone of YOLOX (Ge et al. 2021), in its five sizes."""
    return _KerasCV(
        "csp_darknet",
        {
            "stackwise_channels": [channels << i for i in range(4)],
            "stackwise_depth": [depth, 3 * depth, 3 * depth, depth],
        },
    )


_KERAS_CV = {
    "resnet18": _resnet("resnet", "basic_block", 2, 2, 2, 2),
    "resnet34": _resnet("resnet", "basic_block", 3, 4, 6, 3),
    "resnet50": _resnet("resnet", "block", 3, 4, 6, 3),
    "resnet101": _resnet("resnet", "block", 3, 4, 23, 3),
    "resnet152": _resnet("resnet", "block", 3, 8, 36, 3),
    "resnet18_v2": _resnet("resnet_v2", "basic_block", 2, 2, 2, 2),
    "resnet34_v2": _resnet("resnet_v2", "basic_block", 3, 4, 6, 3),
    "resnet50_v2": _resnet("resnet_v2", "block", 3, 4, 6, 3),
    "resnet101_v2": _resnet("resnet_v2", "block", 3, 4, 23, 3),
    "resnet152_v2": _resnet("resnet_v2", "block", 3, 8, 36, 3),
    "csp_darknet_tiny": _darknet(48, 1),
    "csp_darknet_s": _darknet(64, 1),
    "csp_darknet_m": _darknet(96, 2),
    "csp_darknet_l": _darknet(128, 3),
    "csp_darknet_xl": _darknet(170, 4),
}


def input_scale(name: str) -> float:
    """Returns the factor of standardised colours that a network expects."""
    # EfficientNet divides by 255 itself.
    return 255.0 if name.startswith("keras:EfficientNet") else 1.0


def features(
    name: str, images: tf.Tensor, *, synchronized: bool = True
) -> tf.Tensor:
    """Applies a network to a functional model's tensor.

    Args:
      name: `keras:NAME` or `keras_cv:NAME`, checked by `config.encoder`.
      images: standardised, times `input_scale`, [N, H, W, K].
      synchronized: whether its BatchNorm spans all replicas.

    Returns:
      [N, H', W', D].

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
            " `image_size`"
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
    """Turns Keras' batch normalization in a model into ours, in place.

    This includes layers inside of layers, which cloning does not reach, and
    keeps the variables.

    Args:
      model: built, with Keras' own batch normalization.
      synchronized: whether it spans all replicas.
    """
    for layer in model.submodules:
        # Subclasses may behave differently.
        if type(layer) is tf.keras.layers.BatchNormalization:
            layer.__class__ = BatchNormalization
            layer.synchronized = synchronized
