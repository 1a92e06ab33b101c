"""The small network of Chen et al. 2021's notebook for MNIST, padded."""

import tensorflow as tf

from tf_contrastive.config import encoder as declared
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.encoders.resnet import Conv2D


class ConvNet(declared.ConvNet):
    """3x3 convolutions of stride 2, and a dense layer over all positions.

    Each is followed by BatchNorm and ReLU.
    """

    def __call__(self, images: tf.Tensor, synchronized: bool) -> tf.Tensor:
        """Maps standardised [N, H, W, K] of a functional model to [N, D]."""
        # See `resnet`: exports use Keras' own layer.
        layer = Conv2D if synchronized else tf.keras.layers.Conv2D

        def normalized(x: tf.Tensor, name: str) -> tf.Tensor:
            x = BatchNormalization(
                synchronized=synchronized, name=f"{name}_norm"
            )(x)
            return tf.keras.layers.ReLU(name=f"{name}_relu")(x)

        x = images
        *channels, features = self.networks[self.network]
        for number, filters in enumerate(channels, 1):
            name = f"conv{number}"
            options = {"padding": "same", "use_bias": False, "name": name}
            x = normalized(layer(filters, 3, 2, **options)(x), name)
        x = tf.keras.layers.Flatten(name="flatten")(x)
        x = tf.keras.layers.Dense(features, use_bias=False, name="dense")(x)
        return normalized(x, "dense")
