"""The small network of the notebook of Chen et al. 2021, for MNIST."""

import tensorflow as tf

from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.encoders.resnet import Conv2D

_CHANNELS = (32, 64, 64)
_FEATURES = 128


def features(images: tf.Tensor, *, synchronized: bool) -> tf.Tensor:
    """Applies it to a functional model's tensor.

    Three 3x3 convolutions of stride 2 and a dense layer over all positions,
    each with BatchNorm and ReLU. Standardised images [N, H, W, K] -> [N, 128].
    """
    # See `resnet`: exports use Keras' own layer.
    layer = Conv2D if synchronized else tf.keras.layers.Conv2D

    def normalized(x: tf.Tensor, name: str) -> tf.Tensor:
        x = BatchNormalization(synchronized=synchronized, name=f"{name}_norm")(
            x
        )
        return tf.keras.layers.ReLU(name=f"{name}_relu")(x)

    x = images
    for number, channels in enumerate(_CHANNELS, 1):
        name = f"conv{number}"
        x = layer(channels, 3, 2, padding="same", use_bias=False, name=name)(x)
        x = normalized(x, name)
    x = tf.keras.layers.Flatten(name="flatten")(x)
    x = tf.keras.layers.Dense(_FEATURES, use_bias=False, name="dense")(x)
    return normalized(x, "dense")
