"""An encoder and a projection head of your own: any Keras model."""

import tensorflow as tf

from tf_contrastive import encoders, heads, losses
from tf_contrastive.model import ContrastiveModel


def my_encoder(width=16):
    """Returns a model of images [N, S, S, 3]; 4-D features are averaged."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Conv2D(width, 3, 2),
            layers.BatchNormalization(),  # Becomes synchronized.
            layers.ReLU(),
            layers.Conv2D(2 * width, 3),
        ]
    )


if __name__ == "__main__":
    encoder = encoders.build(my_encoder, image_shape=(16, 16, 3), width=8)
    head = heads.build(tf.keras.layers.Dense(32))
    model = ContrastiveModel(encoder, head, losses.build("ntxent"))
    model.compile("adam")
    model.fit(tf.random.uniform([64, 2, 16, 16, 3]), batch_size=32, verbose=2)
    print(encoder(tf.zeros([1, 16, 16, 3])).shape)
