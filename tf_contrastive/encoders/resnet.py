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
    """The layers of all blocks, with the model's options."""

    synchronized: bool
    last_gamma: str

    def convolution(
        self, x: tf.Tensor, channels: int, side: int, stride: int, name: str
    ) -> tf.Tensor:
        """Applies a convolution without bias, since normalization follows.

        A strided one is padded by (side - 1) / 2 on both sides, as in SimCLR
        and PyTorch. With TensorFlow's "same" padding, features would shift by a
        pixel between even and odd image sides.
        """
        if stride > 1 and side > 1:
            x = tf.keras.layers.ZeroPadding2D(side // 2, name=f"{name}_pad")(x)
        # Exports, which are not synchronized, use Keras' own layer, to have
        # gradients wherever they are loaded.
        layer = Conv2D if self.synchronized else tf.keras.layers.Conv2D
        return layer(
            channels,
            side,
            stride,
            padding="same" if stride == 1 else "valid",
            use_bias=False,
            kernel_initializer="variance_scaling",
            name=name,
        )(x)

    def normalization(
        self, x: tf.Tensor, name: str, relu: bool = True, gamma: str = "ones"
    ) -> tf.Tensor:
        x = BatchNormalization(
            synchronized=self.synchronized, gamma_initializer=gamma, name=name
        )(x)
        return tf.keras.layers.ReLU(name=f"{name}_relu")(x) if relu else x

    def residual(
        self,
        x: tf.Tensor,
        branch: tf.Tensor,
        channels: int,
        stride: int,
        name: str,
    ) -> tf.Tensor:
        """Computes relu(shortcut + branch), projecting x if the shape changes.

        With `zero_init_residual`, the branch's last gamma starts at zero, so
        that a block starts as the identity (Goyal et al. 2017).
        """
        if stride > 1 or x.shape[-1] != channels:
            x = self.convolution(x, channels, 1, stride, f"{name}_shortcut")
            x = self.normalization(x, f"{name}_shortcut_norm", relu=False)
        x = tf.keras.layers.Add(name=f"{name}_add")([x, branch])
        return tf.keras.layers.ReLU(name=f"{name}_relu")(x)


def _basic(
    layers: _Layers, x: tf.Tensor, channels: int, stride: int, name: str
) -> tf.Tensor:
    """Two 3x3 convolutions."""
    y = layers.convolution(x, channels, 3, stride, f"{name}_conv1")
    y = layers.normalization(y, f"{name}_norm1")
    y = layers.convolution(y, channels, 3, 1, f"{name}_conv2")
    y = layers.normalization(
        y, f"{name}_norm2", relu=False, gamma=layers.last_gamma
    )
    return layers.residual(x, y, channels, stride, name)


def _bottleneck(
    layers: _Layers, x: tf.Tensor, channels: int, stride: int, name: str
) -> tf.Tensor:
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
    """A residual network: its block, and the number of blocks per stage."""

    block: Callable[[_Layers, tf.Tensor, int, int, str], tf.Tensor]
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


def _stem(layers: _Layers, x: tf.Tensor, channels: int, stem: str) -> tf.Tensor:
    if stem == "cifar":
        x = layers.convolution(x, channels, 3, 1, "stem_conv")
        return layers.normalization(x, "stem_norm")
    x = layers.convolution(x, channels, 7, 2, "stem_conv")
    x = layers.normalization(x, "stem_norm")
    # After a ReLU, padding a maximum with zeros equals minus infinity.
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
      width, stem, synchronized, zero_init_residual: see `encoders.build`.

    Returns:
      [N, H', W', D].

    Raises:
      UserError: for an unknown stem, or images too small for it.
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
            block_name = f"stage{stage + 1}_block{i + 1}"
            x = block(layers, x, channels << stage, stride, block_name)
    return x
