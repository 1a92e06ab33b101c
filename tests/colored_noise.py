"""An evaluation context of coloured noise."""

import contexts
import numpy as np
import small
import tensorflow as tf

from tf_contrastive import datasets
from tf_contrastive.config import fields


def context(classes=3, **options):
    """A random linear encoder and projection, on images of noise."""
    random = np.random.RandomState(3)
    images = random.randint(256, size=(160, 8, 8, 3)).astype(np.uint8)
    labels = random.randint(classes, size=160)
    images[labels == 0, ..., 0] //= 4
    images[labels == 1, ..., 2] //= 4
    train, test = (
        datasets.from_arrays(images[rows], labels[rows])
        for rows in (slice(0, 100), slice(100, 160))
    )
    tf.keras.utils.set_random_seed(0)
    layers = [tf.keras.layers.Flatten(), tf.keras.layers.Dense(16)]
    encoder = tf.keras.Sequential([tf.keras.Input([8, 8, 3]), *layers])
    head = tf.keras.layers.Dense(8)
    head(tf.zeros([1, 16]))
    run = fields.replace(
        small.RUN,
        loss="sincere",
        temperature=0.2,
        augmentation="crop",
        image_size=8,
    )
    options = {"projection": head, "run": run} | options
    return contexts.make(encoder, train, test, **options)
