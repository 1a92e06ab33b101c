"""Pieces of a photograph, and an encoder of them."""

import functools

import contexts
import image_helpers
import numpy as np
import small
import tensorflow as tf

from tf_contrastive import datasets, encoders, heads
from tf_contrastive.config import fields
from tf_contrastive.config.evaluate import Scoring


def photographs(count=64):
    """Squares at random places, float32 [count, 16, 16, 3] in [0, 1]."""
    return image_helpers.patches(count, 16) / np.float32(255)


@functools.cache
def encoder():
    """A small residual network with statistics of photographs."""
    tf.keras.utils.set_random_seed(0)
    options = {"width": 0.125, "stem": "cifar", "synchronized": False}
    network = encoders.build("resnet10", image_shape=(16, 16, 3), **options)
    network(photographs(), training=True)
    return network


@functools.cache
def head():
    """A linear projection of the encoder's features."""
    linear = heads.build("linear", output=8, batch_norm=False)
    linear(np.ones([2, 64], "f"))
    return linear


def context(labelled=True, projection=None):
    """The encoder on images of three random classes."""
    images = image_helpers.patches(160, 16)
    labels = np.random.RandomState(3).randint(3, size=160)
    train, test = (
        datasets.from_arrays(images[rows], labels[rows] if labelled else None)
        for rows in (slice(0, 100), slice(100, 160))
    )
    scoring = fields.replace(Scoring(), embedding_batch_size=32)
    run = fields.replace(small.RUN, image_size=16)
    return contexts.make(
        encoder(), train, test, scoring, run=run, projection=projection
    )
