"""Small networks on scikit-learn's digits, and evaluation contexts of them."""

import functools

import contexts
import numpy as np
import tensorflow as tf
from sklearn import datasets as sklearn_datasets

from tf_contrastive import datasets
from tf_contrastive.config.evaluate import Scoring
from tf_contrastive.config.pretrain import Pretrain

# Of fine-tuning: a part with and a part without the encoder's weights.
FINETUNE = {
    "scratch": True,
    "fractions": [0.1],
    "epochs": [15],
    "batch_size": 25,
    "learning_rate": 0.5,
    "augmentation": "none",
}


@functools.cache
def digits():
    images, labels = sklearn_datasets.load_digits(return_X_y=True)
    return np.uint8(np.round(images.reshape(-1, 8, 8) * 255 / 16)), labels


def source(rows, split="all"):
    images, labels = digits()
    return datasets.from_arrays(
        images[rows], labels[rows], name="digits", split=split
    )


def network(seed=0):
    """A small network with BatchNormalization: [8, 8, 3] -> [64]."""
    tf.keras.utils.set_random_seed(seed)
    inputs = x = tf.keras.Input([8, 8, 3])
    same = {"padding": "same", "use_bias": False}
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        x = tf.keras.layers.Conv2D(width, 3, stride, **same)(x)
        x = tf.keras.layers.BatchNormalization(momentum=0.9)(x)
        x = tf.keras.layers.ReLU()(x)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(inputs, x)


@functools.cache
def weights():
    """Of a network that has seen the digits of the first 800 images."""
    encoder = network()
    images, labels = digits()
    x = np.repeat(images[:800, ..., None], 3, -1).astype(np.float32) / 255
    model = tf.keras.Sequential([encoder, tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.legacy.Adam(0.01), loss)
    model.fit(x, labels[:800], 64, epochs=15, verbose=0)
    return encoder.get_weights()


def subject(train=None, test=None, strategy=None, **given):
    strategy = strategy or tf.distribute.get_strategy()

    def fresh(trained):
        encoder = network(seed=1)
        if trained:
            encoder.set_weights(weights())
        return encoder

    values = weights()
    with strategy.scope():
        encoder = network()
        encoder.set_weights(values)
    return contexts.make(
        encoder,
        train or source(slice(800, 1300)),
        test or source(slice(1300, 1797)),
        Scoring.of(scale="cpu", **given),
        run=Pretrain(),
        make_encoder=fresh,
        strategy=strategy,
    )
