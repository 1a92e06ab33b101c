"""Backbones of Keras and of KerasCV, normalized over the global batch.

Their batch normalization is exchanged for ours, wherever it stands, which
leaves variables, their order and inference as they were. Stochastic depth is
off: its draws come from a state that no checkpoint holds, and a resumed run
would not equal the uninterrupted one.
"""

import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.distribution.batch_normalization import BatchNormalization

_apps = tf.keras.applications


class _Keras(NamedTuple):
    """A network of Keras.

    Attributes:
      make: its constructor.
      options: what it takes beyond those that all take.
      scale: of the input, where the network divides by 255 itself.
    """

    make: Callable[..., tf.keras.Model]
    options: Mapping[str, Any] = types.MappingProxyType({})
    scale: float = 1.0


_RAW = {"include_preprocessing": False}
_NO_DROP = {"drop_connect_rate": 0.0}

_KERAS = {
    "DenseNet121": _Keras(_apps.DenseNet121),
    "DenseNet169": _Keras(_apps.DenseNet169),
    "DenseNet201": _Keras(_apps.DenseNet201),
    "EfficientNetB0": _Keras(_apps.EfficientNetB0, _NO_DROP, 255.0),
    "EfficientNetB1": _Keras(_apps.EfficientNetB1, _NO_DROP, 255.0),
    "EfficientNetB2": _Keras(_apps.EfficientNetB2, _NO_DROP, 255.0),
    "EfficientNetB3": _Keras(_apps.EfficientNetB3, _NO_DROP, 255.0),
    "EfficientNetB4": _Keras(_apps.EfficientNetB4, _NO_DROP, 255.0),
    "EfficientNetB5": _Keras(_apps.EfficientNetB5, _NO_DROP, 255.0),
    "EfficientNetB6": _Keras(_apps.EfficientNetB6, _NO_DROP, 255.0),
    "EfficientNetB7": _Keras(_apps.EfficientNetB7, _NO_DROP, 255.0),
    "InceptionResNetV2": _Keras(_apps.InceptionResNetV2),
    "InceptionV3": _Keras(_apps.InceptionV3),
    "MobileNet": _Keras(_apps.MobileNet),
    "MobileNetV2": _Keras(_apps.MobileNetV2),
    "MobileNetV3Large": _Keras(_apps.MobileNetV3Large, _RAW),
    "MobileNetV3Small": _Keras(_apps.MobileNetV3Small, _RAW),
    "RegNetX002": _Keras(_apps.RegNetX002, _RAW),
    "RegNetX008": _Keras(_apps.RegNetX008, _RAW),
    "RegNetX032": _Keras(_apps.RegNetX032, _RAW),
    "RegNetX160": _Keras(_apps.RegNetX160, _RAW),
    "RegNetY002": _Keras(_apps.RegNetY002, _RAW),
    "RegNetY008": _Keras(_apps.RegNetY008, _RAW),
    "RegNetY032": _Keras(_apps.RegNetY032, _RAW),
    "RegNetY160": _Keras(_apps.RegNetY160, _RAW),
    "ResNet50V2": _Keras(_apps.ResNet50V2),
    "ResNet101V2": _Keras(_apps.ResNet101V2),
    "ResNet152V2": _Keras(_apps.ResNet152V2),
    "VGG16": _Keras(_apps.VGG16),
    "VGG19": _Keras(_apps.VGG19),
    "Xception": _Keras(_apps.Xception),
}


class _KerasCV(NamedTuple):
    """A network of KerasCV: its family, and what makes it of that.

    Written out, since its own presets are downloaded, sizes and all.
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


def _split(name: str) -> tuple[str, str]:
    library, _, network = name.partition(":")
    return library, network


def input_scale(name: str) -> float:
    """Returns by what standardised colours are multiplied for a network."""
    library, network = _split(name)
    return _KERAS[network].scale if library == "keras" else 1.0


def features(
    name: str, images: tf.Tensor, *, synchronized: bool = True
) -> tf.Tensor:
    """Applies a network to a functional model's tensor.

    Args:
      name: `keras:NAME` or `keras_cv:NAME`, checked.
      images: standardised, times `input_scale`, [N, H, W, K].
      synchronized: whether its BatchNorm spans all replicas.

    Returns:
      [N, H', W', D].

    Raises:
      UserError: for images that the network does not take.
    """
    library, network = _split(name)
    make = _from_keras if library == "keras" else _from_keras_cv
    try:
        model, x = make(network, images)
    except ValueError as error:
        side = " x ".join(str(s) for s in images.shape[1:])
        raise errors.UserError(
            f"{name} takes no images of {side}: give a larger `image_size`"
        ) from error
    exchange_normalization(model, synchronized)
    return x


def _from_keras(network, images):
    chosen = _KERAS[network]
    model = chosen.make(
        include_top=False, weights=None, input_tensor=images, **chosen.options
    )
    return model, model.output


def _from_keras_cv(network, images):
    # Imported when asked for: it takes its seconds.
    from keras_cv import models

    families = {
        "resnet": models.ResNetBackbone,
        "resnet_v2": models.ResNetV2Backbone,
        "csp_darknet": models.CSPDarkNetBackbone,
    }
    family, options = _KERAS_CV[network]
    backbone = families[family](
        include_rescaling=False, input_shape=tuple(images.shape[1:]), **options
    )
    # A plain model of the same layers: the class of KerasCV cannot be cloned.
    model = tf.keras.Model(backbone.inputs, backbone.outputs, name=network)
    return model, model(images)


def exchange_normalization(model: tf.keras.Model, synchronized: bool) -> None:
    """Makes all batch normalization of a model ours, its variables kept.

    Layers inside of layers included, which cloning a model does not reach.

    Args:
      model: built, with Keras' own batch normalization.
      synchronized: whether it spans all replicas.
    """
    for layer in model.submodules:
        # Of that very class: subclasses of others do something of their own.
        if type(layer) is tf.keras.layers.BatchNormalization:
            layer.__class__ = BatchNormalization
            layer.synchronized = synchronized
