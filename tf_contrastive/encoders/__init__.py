"""Encoders: images [N, H, W, K] in [0, 1] to features h [N, D].

Residual networks, and the backbones of Keras and KerasCV with synchronized
batch normalization. Every encoder standardises its input in its first layer.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.data import DEFAULT_IMAGE_SIZE
from tf_contrastive.config.dataset import IMAGENET_STATISTICS
from tf_contrastive.config.encoder import (
    CONVNET,
    Encoder,
    check_backbone,
    check_encoder_name,
)
from tf_contrastive.encoders import backbones, convnet, resnet

__all__ = ["build"]


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
    name: str = Encoder.encoder,
    *,
    width: float = Encoder.width,
    stem: str = Encoder.stem,
    image_shape: tuple[int, int, int] = (
        DEFAULT_IMAGE_SIZE,
        DEFAULT_IMAGE_SIZE,
        3,
    ),
    mean: Sequence[float] = IMAGENET_STATISTICS.mean,
    std: Sequence[float] = IMAGENET_STATISTICS.std,
    synchronized: bool = True,
    zero_init_residual: bool = True,
) -> tf.keras.Model:
    """Builds an encoder with random weights: images to features h.

    These are the global average, float32 [N, D] under any precision policy; D
    is 512 * width of basic and 2048 * width of bottleneck networks. He et al.
    2016, table 1; SimCLR, appendix B.9 for the stem of CIFAR.

    Args:
      name: one of `config.encoder.ENCODERS`; or `convnet`, or `keras:NAME` or
        `keras_cv:NAME` with one of its `KERAS_BACKBONES` or
        `KERAS_CV_BACKBONES`, which have a fixed width and stem.
      width: multiplier of the channels. The first stage has 64 * width,
        rounded to a multiple of 8 (the tile size of accelerators); each further
        stage has twice as many.
      stem: "imagenet" (7x7/2 and 3x3/2 pooling), "cifar" (3x3/1, no pooling),
        or "auto", by the shorter side of the images.
      image_shape: (height, width, channels), in pixels.
      mean, std: of each of the three colours, to standardise them; images of
        fewer channels are not standardised.
      synchronized: whether BatchNorm spans all replicas.
      zero_init_residual: whether the last scale of residual branches starts at
        zero, which is best for training, but not for an untrained baseline.

    Raises:
      UserError: for an unknown name or stem, a width or stem for a backbone of
        Keras or KerasCV, or images too small for the network.
    """
    check_encoder_name(name)
    if not width > 0:
        raise errors.UserError(f"{errors.arg('width', width)}: must be above 0")
    if len(image_shape) != 3 or not all(image_shape):
        raise errors.UserError(
            f"image_shape={tuple(image_shape)}: must be (height, width,"
            " channels), each of at least 1"
        )
    images = tf.keras.Input(image_shape, name="images")
    x = _standardize(images, mean, std, backbones.input_scale(name))
    if name == CONVNET:
        check_backbone(name, width, stem)
        x = convnet.features(x, synchronized=synchronized)
        identity = tf.keras.layers.Activation(
            "linear", dtype="float32", name="features"
        )
        return tf.keras.Model(images, identity(x), name=name)
    if name in resnet.RESNETS:
        x = resnet.features(
            name,
            x,
            width=width,
            stem=stem,
            synchronized=synchronized,
            zero_init_residual=zero_init_residual,
        )
    else:
        check_backbone(name, width, stem)
        x = backbones.features(name, x, synchronized=synchronized)
    features = tf.keras.layers.GlobalAveragePooling2D(
        dtype="float32", name="features"
    )(x)
    return tf.keras.Model(images, features, name=name.replace(":", "_"))
