"""Corruptions against their published code."""

import os

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from sklearn import datasets as sklearn_datasets

from tf_contrastive.evaluation import corruptions
from tf_contrastive.evaluation.classification_metrics import SEVERITIES

_TESTDATA = os.path.join(os.path.dirname(__file__), "testdata")


_PHOTO = sklearn_datasets.load_sample_image("china.jpg")


def _photos(side, count=4):
    """Parts of a photograph, made small."""
    cuts = [_PHOTO[0:400, x : x + 400] for x in range(0, 240, 240 // count)]
    made = tf.image.resize(np.stack(cuts), [side, side], "area")
    return np.uint8(np.round(made[:count]))


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize(
    "name",
    [
        "gaussian_noise",
        "shot_noise",
        "zoom_blur",
        "contrast",
        "jpeg_compression",
    ],
)
def test_images_are_those_of_tensorflow_datasets(name, severity):
    from tensorflow_datasets.image_classification import corruptions as theirs

    for image in (_photos(96)[0], _PHOTO[100:164, 50:130]):
        state = np.random.get_state()
        np.random.seed(7)
        expected = getattr(theirs, name)(image, severity)
        np.random.set_state(state)
        found = corruptions.corrupt(image, name, severity, 7, "imagenet")
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("levels", "scale"), [("imagenet", 0.3), ("cifar", 0.75)]
)
def test_pixelate_has_pillow_s_box_filter(levels, scale):
    """Hendrycks' code; TensorFlow Datasets has Pillow's default, bicubic."""
    photo = Image.fromarray(_photos(96)[0])
    small = photo.resize([int(96 * scale)] * 2, Image.Resampling.BOX)
    expected = small.resize([96, 96], Image.Resampling.BOX)
    found = corruptions.corrupt(_photos(96)[0], "pixelate", 4, 0, levels)
    np.testing.assert_array_equal(found, expected)


def test_ports_are_what_opencv_and_scikit_image_make():
    # Made by TensorFlow Datasets' code with both installed: `image`, and
    # NAME_SEVERITY for each.
    with np.load(os.path.join(_TESTDATA, "corruptions.npz")) as file:
        golden = dict(file)
    image = golden.pop("image")
    assert len(golden) >= 10
    for key, expected in golden.items():
        name, _, severity = key.rpartition("_")
        found = corruptions.corrupt(image, name, int(severity), 7, "imagenet")
        error = np.abs(found.astype(int) - expected)
        assert (error <= 1).mean() > 0.999, key


@pytest.mark.parametrize("name", corruptions.CORRUPTIONS)
def test_the_same_seed_makes_the_same_image(name):
    photo = _photos(32)[0]
    state = np.random.get_state()[1].copy()
    made = [corruptions.corrupt(photo, name, 3, seed) for seed in (5, 5, 6)]
    np.testing.assert_array_equal(made[0], made[1])
    assert (made[0] == made[2]).all() == ("noise" not in name)
    # Others' draws are left alone.
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_an_image_s_corruption_does_not_depend_on_batches():
    photos = _photos(32, 6)
    whole, *parts = (
        corruptions.corrupt_batch(photos[i:j], "gaussian_noise", 2, i)
        for i, j in ((0, 6), (0, 4), (4, 6))
    )
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert (whole[0] != whole[1]).any()


@pytest.mark.parametrize("shape", [(1, 1, 3), (3, 40, 3), (40, 65, 3)])
@pytest.mark.parametrize("name", corruptions.CORRUPTIONS)
@pytest.mark.parametrize("value", [0, 255])
def test_odd_images_keep_their_shape(name, shape, value):
    image = np.full(shape, value, np.uint8)
    for severity in (1, 5):
        assert corruptions.corrupt(image, name, severity, 0).shape == shape
