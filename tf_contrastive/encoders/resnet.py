"""Residual networks of He et al. 2016.

With the stride of a bottleneck in its 3x3 convolution ("v1.5"), as SimCLR,
SupCon and SINCERE train them.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.encoder import STEMS, check_image_size, resolve_stem
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.encoders.convolution import Conv2D


class _Layers(NamedTuple):
    """The layers that all blocks are made of, with the model's options."""

    synchronized: bool
    last_gamma: str

    def convolution(self, x, channels, side, stride, name):
        """A convolution without bias, since normalization follows it.

        A strided one is padded by (side - 1) / 2 on both sides, as in SimCLR
        and torch: TensorFlow's own "same" would shift the features by a pixel
        between even and odd image sides.
        """
        if stride > 1 and side > 1:
            x = tf.keras.layers.ZeroPadding2D(side // 2, name=f"{name}_pad")(x)
        # Exports are made of Keras' own layers: they must pass gradients
        # wherever they are loaded.
        kind = Conv2D if self.synchronized else tf.keras.layers.Conv2D
        return kind(
            channels,
            side,
            stride,
            padding="same" if stride == 1 else "valid",
            use_bias=False,
            kernel_initializer="variance_scaling",
            name=name,
        )(x)

    def normalization(self, x, name, relu=True, gamma="ones"):
        x = BatchNormalization(
            synchronized=self.synchronized, gamma_initializer=gamma, name=name
        )(x)
        return tf.keras.layers.ReLU(name=f"{name}_relu")(x) if relu else x

    def residual(self, x, branch, channels, stride, name):
        """relu(shortcut + branch); a projection only where the shape changes.

        The branch's last gamma starts at zero, unless `build` was told
        otherwise, so that a block starts as the identity (Goyal et al. 2017).
        """
        if stride > 1 or x.shape[-1] != channels:
            x = self.convolution(x, channels, 1, stride, f"{name}_shortcut")
            x = self.normalization(x, f"{name}_shortcut_norm", relu=False)
        x = tf.keras.layers.Add(name=f"{name}_add")([x, branch])
        return tf.keras.layers.ReLU(name=f"{name}_relu")(x)


def _basic(layers: _Layers, x, channels, stride, name):
    """Two 3x3 convolutions."""
    y = layers.convolution(x, channels, 3, stride, f"{name}_conv1")
    y = layers.normalization(y, f"{name}_norm1")
    y = layers.convolution(y, channels, 3, 1, f"{name}_conv2")
    y = layers.normalization(
        y, f"{name}_norm2", relu=False, gamma=layers.last_gamma
    )
    return layers.residual(x, y, channels, stride, name)


def _bottleneck(layers: _Layers, x, channels, stride, name):
    """1x1 down, 3x3, and 1x1 up to four times the channels."""
    y = layers.convolution(x, channels, 1, 1, f"{name}_conv1")
    y = layers.normalization(y, f"{name}_norm1")
    y = layers.convolution(y, channels, 3, stride, f"{name}_conv2")
    y = layers.normalization(y, f"{name}_norm2")
    y = layers.convolution(y, 4 * channels, 1, 1, f"{name}_conv3")
    y = layers.normalization(
        y, f"{name}_norm3", relu=False, gamma=layers.last_gamma
    )
    return layers.residual(x, y, 4 * channels, stride, name)


class Spec(NamedTuple):
    """A residual network: its block, and how many of it each stage has."""

    block: Callable
    repeats: tuple[int, int, int, int]


RESNETS = {
    "resnet10": Spec(_basic, (1, 1, 1, 1)),
    "resnet18": Spec(_basic, (2, 2, 2, 2)),
    "resnet34": Spec(_basic, (3, 4, 6, 3)),
    "resnet50": Spec(_bottleneck, (3, 4, 6, 3)),
    "resnet101": Spec(_bottleneck, (3, 4, 23, 3)),
    "resnet152": Spec(_bottleneck, (3, 8, 36, 3)),
    "resnet200": Spec(_bottleneck, (3, 24, 36, 3)),
}


def _stem(layers: _Layers, x, channels, stem):
    if stem == "cifar":
        x = layers.convolution(x, channels, 3, 1, "stem_conv")
        return layers.normalization(x, "stem_norm")
    x = layers.convolution(x, channels, 7, 2, "stem_conv")
    x = layers.normalization(x, "stem_norm")
    # After a ReLU, zeros pad a maximum as well as minus infinity.
    x = tf.keras.layers.ZeroPadding2D(1, name="stem_pool_pad")(x)
    return tf.keras.layers.MaxPooling2D(3, 2, name="stem_pool")(x)


def features(
    name: str,
    images: tf.Tensor,
    *,
    width: float,
    stem: str,
    synchronized: bool,
    zero_init_residual: bool,
) -> tf.Tensor:
    """Applies a residual network to a functional model's tensor.

    Args:
      name: one of `RESNETS`.
      images: standardised, [N, H, W, K].
      width: multiplier of the channels; those of the first stage, 64 * width,
        are rounded to a multiple of 8 (what accelerators tile by), and each
        further stage has twice the channels.
      stem: "imagenet" (7x7/2 and 3x3/2 pooling), "cifar" (3x3/1, no pooling),
        or "auto", by the shorter side of the images.
      synchronized: whether BatchNorm spans all replicas.
      zero_init_residual: whether residual branches start switched off.

    Returns:
      [N, H', W', D].

    Raises:
      UserError: for an unknown stem, or images too small for it.

    He et al. 2016, table 1; SimCLR, appendix B.9 for the stem of CIFAR.
    """
    if stem not in STEMS:
        raise errors.unknown("stem", stem, STEMS)
    side = min(images.shape[1:3])
    stem = resolve_stem(stem, side)
    check_image_size(side, stem)
    block, repeats = RESNETS[name]
    channels = 8 * max(round(8 * width), 1)
    layers = _Layers(synchronized, "zeros" if zero_init_residual else "ones")
    x = _stem(layers, images, channels, stem)
    for stage, count in enumerate(repeats):
        for i in range(count):
            stride = 2 if stage and not i else 1
            label = f"stage{stage + 1}_block{i + 1}"
            x = block(layers, x, channels << stage, stride, label)
    return x
