"""Residual networks of He et al. 2016.

With the stride of a bottleneck in its 3x3 convolution ("v1.5"), as SimCLR,
SupCon and SINCERE train them.
"""

import itertools
from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive.config import encoder as declared
from tf_contrastive.distribution.batch_normalization import (
    BatchNormalization,
    is_compiled,
)

# From so many on, a kernel's gradient in bfloat16 is faster as matrix products.
_MANY_CHANNELS = 256


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class Conv2D(tf.keras.layers.Conv2D):
    """`tf.keras.layers.Conv2D`, with a gradient that is fast on CPUs.

    Without oneDNN, TensorFlow's CPU kernel of a convolution's gradient by its
    input is up to 20 times slower than the convolution itself (3x3, 256
    channels at 2x2 pixels: 372 against 14 ms). With stride 1, padding "same"
    and odd sides, as here, it equals a convolution by the rotated kernel. With
    other strides it is Keras' own, and so is what XLA compiles, which may be
    for a TPU that is not here.
    """

    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Convolves [N, H, W, K] by a kernel [h, w, K, C]."""
        others = map(tf.config.list_logical_devices, ("GPU", "TPU"))
        if self.strides == (1, 1) and not (is_compiled() or any(others)):
            return _convolve(inputs, tf.convert_to_tensor(kernel))
        return super().convolution_op(inputs, kernel)


@tf.custom_gradient
def _convolve(images: tf.Tensor, kernel: tf.Tensor) -> Any:
    height, width, *channels = kernel.shape

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if height == width == 1:
            # A matrix product, whose kernel need not be transposed first.
            rows = tf.reshape(upstream, [-1, channels[1]])
            matrix = tf.reshape(kernel, channels)
            by_images = tf.matmul(rows, matrix, transpose_b=True)
            by_images = tf.reshape(by_images, tf.shape(images))
        else:
            # (A slice of negative steps takes ten times as long.)
            rotated = tf.transpose(tf.reverse(kernel, [0, 1]), [0, 1, 3, 2])
            by_images = tf.nn.conv2d(upstream, rotated, 1, "SAME")
        return by_images, _by_kernel(images, upstream, kernel)

    return tf.nn.conv2d(images, kernel, 1, "SAME"), gradient


def _by_kernel(
    images: tf.Tensor, upstream: tf.Tensor, kernel: tf.Tensor
) -> tf.Tensor:
    """The gradient by the kernel [h, w, K, C] of a convolution of stride 1.

    oneDNN's matrix products are faster than its own gradient in bfloat16 (3x3,
    512 channels at 4x4 pixels: 21 against 43 ms), and of 1x1 kernels (64 to 256
    channels at 56x56 pixels: 15 against 30 ms).
    """
    height, width, *channels = kernel.shape
    if height == width == 1:
        shifted = [images]
    elif min(channels) >= _MANY_CHANNELS and kernel.dtype == tf.bfloat16:
        beside = [[0, 0], [height // 2] * 2, [width // 2] * 2, [0, 0]]
        padded, size = tf.pad(images, beside), tf.shape(images)
        shifted = [
            padded[:, y : y + size[1], x : x + size[2]]
            for y, x in itertools.product(range(height), range(width))
        ]
    else:
        return tf.raw_ops.Conv2DBackpropFilter(
            input=images,
            filter_sizes=tf.shape(kernel),
            out_backprop=upstream,
            strides=[1, 1, 1, 1],
            padding="SAME",
        )
    rows = tf.reshape(upstream, [-1, channels[1]])
    products = [
        tf.matmul(tf.reshape(x, [-1, channels[0]]), rows, transpose_a=True)
        for x in shifted
    ]
    return tf.reshape(tf.stack(products), kernel.shape)


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

    def block(
        self,
        x: tf.Tensor,
        convolutions: list[tuple[int, int, int]],
        name: str,
        project: bool,
    ) -> tf.Tensor:
        """Computes relu(shortcut + branch).

        The branch is convolutions of (channels, side, stride). x is projected
        if its shape changes, or with `project`. If the branch's last gamma is
        0, a block starts as the identity (Goyal et al. 2017).
        """
        y, last = x, len(convolutions)
        for i, (channels, side, stride) in enumerate(convolutions, 1):
            y = self.convolution(y, channels, side, stride, f"{name}_conv{i}")
            gamma = self.last_gamma if i == last else "ones"
            y = self.normalization(y, f"{name}_norm{i}", i < last, gamma)
        stride = max(stride for _, _, stride in convolutions)
        if project or stride > 1 or x.shape[-1] != y.shape[-1]:
            x = self.convolution(x, y.shape[-1], 1, stride, f"{name}_shortcut")
            x = self.normalization(x, f"{name}_shortcut_norm", relu=False)
        x = tf.keras.layers.Add(name=f"{name}_add")([x, y])
        return tf.keras.layers.ReLU(name=f"{name}_relu")(x)


class ResNet(declared.ResNet):
    """A stem, and four stages of blocks (He et al. 2016, table 1).

    `width` multiplies the channels. The first stage has 64 * width, rounded to
    a multiple of 8 (the tile size of accelerators); each further stage has
    twice as many. The stem "cifar" is that of SimCLR, appendix B.9.
    """

    def __call__(self, images: tf.Tensor, synchronized: bool) -> tf.Tensor:
        """Maps standardised [N, H, W, K] of a functional model to 4-D maps."""
        stem = self.resolved(min(images.shape[1:3])).stem
        gamma = "zeros" if self.zero_init_residual else "ones"
        layers = _Layers(synchronized, gamma)
        side, stride = (3, 1) if stem == "cifar" else (7, 2)
        x = layers.convolution(images, self.channels, side, stride, "stem_conv")
        x = layers.normalization(x, "stem_norm")
        if stem != "cifar":
            padding = self.pool_padding
            if padding == "symmetric":
                # After a ReLU, a maximum with zeros is that with -infinity.
                x = tf.keras.layers.ZeroPadding2D(1, name="stem_pool_pad")(x)
                padding = "valid"
            pool = tf.keras.layers.MaxPooling2D
            x = pool(3, 2, padding=padding, name="stem_pool")(x)
        for stage, count in enumerate(self.blocks.repeats):
            for i in range(count):
                stride = 2 if stage and not i else 1
                name = f"stage{stage + 1}_block{i + 1}"
                channels = self.channels << stage
                convolutions = [(channels, 3, stride), (channels, 3, 1)]
                if self.blocks.bottleneck:
                    convolutions = [(channels, 1, 1), (channels, 3, stride)]
                    convolutions.append((4 * channels, 1, 1))
                project = self.project_first and not stage and not i
                x = layers.block(x, convolutions, name, project)
        return x
