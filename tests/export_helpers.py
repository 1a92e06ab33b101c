"""A small encoder of exports, and images for it."""

import numpy as np
import tensorflow as tf

from tf_contrastive.distribution import batch_normalization

SIZE = 16


def conv_block(x, filters, **kwargs):
    x = tf.keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return tf.nn.relu(batch_normalization.BatchNormalization(**kwargs)(x))


def make_encoder(features=6):
    """Small, with a nested model, and statistics that training has moved."""
    tf.keras.utils.set_random_seed(0)
    inner = tf.keras.Input([SIZE, SIZE, 4])
    nested = tf.keras.Model(inner, conv_block(inner, features))
    inputs = tf.keras.Input([SIZE, SIZE, 3])
    x = nested(conv_block(inputs, 4))
    encoder = tf.keras.Model(
        inputs, tf.keras.layers.GlobalAveragePooling2D()(x)
    )
    for _ in range(3):
        encoder(make_images(8) / 255.0, training=True)
    return encoder


def make_images(n, height=SIZE, width=SIZE, seed=0):
    shape = [n, height, width, 3]
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
