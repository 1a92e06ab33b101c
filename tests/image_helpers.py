"""Images, seeds, TFRecord files and prepared datasets for the tests."""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_sample_images

from tf_contrastive.views import prng

# Views of a test of probabilities.
DRAWS = 10_000
# Folder of $TFDS_DATA_DIR, renamed by conftest.py.
PREPARED = Path(os.environ.get("TESTS_TFDS_DATA_DIR", "/unset"))
needs_prepared = pytest.mark.skipif(
    not all((PREPARED / name).is_dir() for name in ("cifar10", "mnist")),
    reason="no prepared cifar10 and mnist in $TFDS_DATA_DIR",
)


def photos() -> np.ndarray:
    """Squares of two real photographs, uint8 [2, 427, 427, 3]."""
    return np.stack([i[:, 100:527] for i in load_sample_images().images])


def tiles() -> list[np.ndarray]:
    """Parts of the photographs with details, each uint8 [71, 71, 3]."""
    rows = [row for photo in photos() for row in np.split(photo[1:, 1:], 6)]
    parts = [tile for row in rows for tile in np.split(row, 6, axis=1)]
    # Those of the sky alone have none.
    return [x for x in parts if np.diff(x / 1.0, axis=0).std() > 10]


def patches(count, side):
    """Pieces of the photographs, uint8 [count, side, side, 3]."""
    images = photos()
    places = np.random.default_rng(1).integers(0, 427 - side, (count, 2))
    pieces = [
        images[i % 2, top : top + side, left : left + side]
        for i, (top, left) in enumerate(places)
    ]
    return np.stack(pieces)


def noise(n=4, height=32, width=None, channels=3, seed=0):
    """Random images, float32 in [0, 1]."""
    shape = (n, height, width or height, channels)
    return np.random.default_rng(seed).random(shape, np.float32)


def pixel_patches(count, side):
    """The same as float32 in [0, 1]."""
    return tf.constant(patches(count, side) / np.float32(255))


def seeds(count):
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (count, 2))
    return tf.constant(words, tf.int32)


def uniforms_of(operation, count):
    return prng.uniform(seeds(count), operation.streams)


def within(fraction, expected, count=DRAWS):
    """Whether a fraction is within three standard errors of the expected."""
    error = np.sqrt(expected * (1 - expected) / count)
    return abs(fraction - expected) <= 3 * error


def _feature(value):
    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list={"value": values})
    if isinstance(values[0], float):
        return tf.train.Feature(float_list={"value": values})
    return tf.train.Feature(int64_list={"value": map(int, values)})


def write_records(path, rows, options=None):
    """Writes TFRecords of dicts of bytes, integers, floats, or bytes alone."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for row in rows:
            if isinstance(row, dict):
                features = {
                    name: _feature(value) for name, value in row.items()
                }
                example = tf.train.Example(features={"feature": features})
                row = example.SerializeToString()
            writer.write(row)


def write_prepared(root, features, splits, name="mine", **options):
    """Writes a dataset as TFDS prepares it, without any code of its own.

    `features` maps `tfds.features` to name -> feature; `splits` are columns.
    """
    import tensorflow_datasets as tfds

    slices = tf.data.Dataset.from_tensor_slices
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        features=tfds.features.FeaturesDict(features(tfds.features)),
        split_datasets={split: slices(x) for split, x in splits.items()},
        data_dir=str(root),
        disable_shuffling=True,
        **options,
    )
