"""Pieces of a photograph, and an encoder of them."""

import functools

import contexts
import numpy as np
import small
import tensorflow as tf
from sklearn import datasets as sklearn_datasets

from tf_contrastive import datasets, encoders, heads
from tf_contrastive.config import fields
from tf_contrastive.config.evaluate import Scoring


def photographs(count=64, side=16):
    """Squares at random places, float32 in [0, 1]."""
    china = sklearn_datasets.load_sample_image("china.jpg") / np.float32(255)
    random = np.random.RandomState(4)
    corners = random.randint(0, 380, size=(count, 2))
    return np.stack([china[y : y + side, x : x + side] for y, x in corners])


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


def context(network=None, labelled=True, projection=None, **options):
    """The encoder, or another network, on images of three random classes."""
    random = np.random.RandomState(3)
    images = (photographs(160) * 255).astype(np.uint8)
    labels = random.randint(3, size=160) if labelled else None
    splits = [
        datasets.from_arrays(images[rows], labels[rows] if labelled else None)
        for rows in (slice(0, 100), slice(100, 160))
    ]
    scoring = fields.replace(Scoring(), embedding_batch_size=32)
    options |= {"run": fields.replace(small.RUN, image_size=16)}
    options |= {"projection": projection}
    return contexts.make(network or encoder(), *splits, scoring, **options)
