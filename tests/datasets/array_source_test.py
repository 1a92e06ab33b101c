"""Arrays, and the digits of scikit-learn."""

import numpy as np
import pytest
import tensorflow as tf
from dataset_helpers import labels, read
from sklearn import datasets as sklearn_datasets

from tf_contrastive import datasets
from tf_contrastive.base import errors

DIGITS = sklearn_datasets.load_digits()


def test_digits_are_stratified_splits_of_scikit_learn_s():
    train = datasets.source("digits", "train")
    data, info = datasets.load("digits", "test")
    assert data.element_spec["image"].dtype == tf.uint8
    assert data.element_spec["label"] == tf.TensorSpec([], tf.int64)
    assert len(list(data)) == info.num_examples == 360
    test = datasets.source("digits", "test")
    assert (train.info.num_examples, test.info.num_examples) == (1437, 360)
    assert train.info.image_shape == (8, 8, 3)
    assert train.info.num_classes == 10
    assert train.info.label_names == tuple("0123456789")
    rows = [
        (e["image"][..., 0].tobytes(), e["label"])
        for e in (*read(train), *read(test))
    ]
    grey = np.rint(DIGITS.images * 255 / 16).astype(np.uint8)
    theirs = [grey[i].tobytes() for i in range(len(grey))]
    assert sorted(rows) == sorted(zip(theirs, DIGITS.target, strict=True))
    shares = np.bincount(labels(test)) / np.bincount(DIGITS.target)
    assert np.all(np.abs(shares - 0.2) < 0.01)


@pytest.mark.parametrize("shape", [(4, 6, 5), (4, 6, 5, 1), (4, 6, 5, 3)])
def test_arrays_of_any_layout_become_rgb(shape):
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    source = datasets.from_arrays(images, [0, 2, 1, 0])
    got = np.stack([e["image"] for e in read(source)])
    expected = images if len(shape) == 4 else images[..., None]
    np.testing.assert_array_equal(got, np.broadcast_to(expected, got.shape))
    assert got.shape == (4, 6, 5, 3)
    assert source.info.num_classes == 3
    assert labels(source) == [0, 2, 1, 0]


def test_float_arrays_are_rounded_to_8_bits():
    source = datasets.from_arrays(np.array([[[0.0, 0.5, 1.0]]]))
    assert read(source)[0]["image"][0, :, 0].tolist() == [0, 128, 255]
    assert not source.info.has_labels and "label" not in read(source)[0]


@pytest.mark.parametrize(
    ("images", "given", "words"),
    [
        (np.full([2, 4, 4], 255.0), None, "float images between 255 and 255"),
        (np.zeros([2, 4, 4], np.int32), None, "int32"),
        (np.zeros([2, 4, 4, 2], np.uint8), None, "[2, 4, 4, 2]"),
        (np.zeros([0, 4, 4], np.uint8), None, "at least one pixel"),
        (np.zeros([2, 4, 4], np.uint8), [0, 1, 2], "integers [2]"),
        (np.zeros([2, 4, 4], np.uint8), [0.5, 1.0], "float64"),
    ],
)
def test_invalid_arrays_are_refused(images, given, words):
    with pytest.raises(errors.UserError) as caught:
        datasets.from_arrays(images, given)
    assert words in str(caught.value)
