"""Digits on canvases and on images, against their definitions.

Oracles compose images in NumPy from the digits and images that they consist of;
where a random choice is tested, they find it by trying all possibilities.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from dataset_helpers import columns
from PIL import Image
from scipy import stats

from tf_contrastive import datasets, views
from tf_contrastive.base import errors
from tf_contrastive.datasets import digit_canvases as digits_module


def digits_of(opened, split):
    """The stand-in's digits [n, 28, 28] and their labels."""
    found = columns(opened("mnist", split))
    return found["image"][..., 0], found["label"]


# ---- Digits on a canvas ------------------------------------------------------


def composed(rows, digits, sides, canvas):
    """Images from a source's rows: the larger pixel where digits overlap."""
    made = []
    for which, places in zip(rows["digits"], rows["places"], strict=True):
        image = np.zeros([canvas, canvas], np.uint8)
        for digit, (top, left), side in zip(which, places, sides, strict=True):
            part = image[top : top + side, left : left + side]
            assert part.shape == (side, side), "a digit leaves the canvas"
            part[:] = np.maximum(part, scaled(digits[digit], side))
        made.append(image)
    return np.array(made)


def scaled(digit, side):
    """Another library's bilinear, antialiased resize."""
    grey = Image.fromarray(digit.astype(np.float32))
    grey = grey.resize([side, side], Image.Resampling.BILINEAR)
    return np.rint(np.asarray(grey)).clip(0, 255).astype(np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "split", "sides"),
    [
        ("multidigits:count=5", "train", [28] * 5),
        ("multidigits:sizes=20+80", "train", [20, 80]),
        ("multidigits", "test", [28]),
        ("multidigits:sizes=20", "test", [20]),
    ],
)
def test_multidigits_show_whole_digits_by_the_larger_pixel(
    name, split, sides, opened
):
    digits, classes_ = digits_of(opened, split)
    source = opened(name, split)
    rows = {k: v.numpy() for k, v in source.arrays.items()}
    found = columns(source)
    expected = composed(rows, digits, sides, 112)[..., None]
    # Two libraries round resized digits differently.
    tolerance = 0 if set(sides) == {28} else 1
    assert np.abs(found["image"].astype(int) - expected).max() <= tolerance
    # Image i has digit i, and every digit's class is among its labels.
    assert rows["digits"][:, 0].tolist() == list(range(len(digits)))
    multi = len(sides) > 1
    assert source.info.multi_label == multi != source.info.has_labels
    assert source.info.num_classes == 10
    for row, label in zip(rows["digits"], found["label"], strict=True):
        hot = label if multi else np.eye(10)[label]
        assert set(np.flatnonzero(hot)) == set(classes_[row])
        assert set(hot) <= {0, 1}


def test_small_digits_cover_the_papers_share_of_an_image():
    """Nine digits of 4 in 32 pixels are nine of 28 in 224."""
    ink = tf.fill([28, 28], tf.constant(255, tf.uint8))
    small, large, legible = (
        digits_module.nine_times(ink, tf.constant([side, side]), digit) > 0
        for side, digit in ((32, 4), (224, 28), (32, 0))
    )
    assert np.mean(small) == np.mean(large) == 9 / 64
    starts = np.diff(np.any(large, axis=0).astype(int), prepend=0) > 0
    # As in the authors' notebook: 15, 45 and 75 % of the side.
    assert np.flatnonzero(starts).tolist() == [33, 100, 168]
    assert np.mean(legible) == 9 / 16  # Without the option.


@pytest.mark.slow
def test_places_are_uniform_over_the_canvas_and_overlap(opened):
    source = opened("multidigits:count=64")
    places = source.arrays["places"].numpy()  # [40, 64, 2]
    assert places.min() == 0 and places.max() == 112 - 28
    counts = np.bincount(places.ravel(), minlength=85)
    assert stats.chisquare(counts).pvalue > 1e-3
    near = np.abs(places[:, ::2] - places[:, 1::2]).max(axis=2) < 28
    # A pair overlaps on each axis with the share of |a - b| < 28 of 0..84.
    a, b = np.mgrid[:85, :85]
    assert abs(near.mean() - (np.abs(a - b) < 28).mean() ** 2) < 0.05
    which = source.arrays["digits"].numpy()[:, 1:]
    assert stats.chisquare(np.bincount(which.ravel())).pvalue > 1e-3


def test_in_grid_digits_are_in_cells_of_their_own(opened):
    name = "multidigits:count=5,placement=grid,canvas=50,digit=14"
    places = opened(name).arrays["places"].numpy()
    assert set(places.ravel()) == {0, 14, 28}
    cells = places // 14 @ [3, 1]
    assert all(len(set(row)) == 5 for row in cells)
    assert set(cells.ravel()) == set(range(9))


# ---- Digits on images --------------------------------------------------------


def nine(digit, size, side):
    """Nine digits of `side` pixels on black, by the definition."""
    layer = np.zeros(size, int)
    for y, x in itertools.product((0.15, 0.45, 0.75), repeat=2):
        top, left = int(size[0] * y), int(size[1] * x)
        layer[top : top + side, left : left + side] = scaled(digit, side)
    return layer


def digits_upon(found, images, digits, side):
    """Which digit each image has, found by trying all; -1 where none fits."""
    size = images[0].shape[:2]
    layers = np.array([nine(d, size, side) for d in digits])[..., None]
    which = []
    for image, plain in zip(found, images, strict=True):
        expected = np.minimum(plain + layers, 255)
        errors = np.abs(image - expected).max(axis=(1, 2, 3))
        which.append(errors.argmin() if errors.min() <= 1 else -1)
    return np.array(which)


@pytest.mark.slow
def test_each_image_has_one_digit_at_nine_places(opened):
    name = "digit_on_image:unique=6,of=cifar10"
    digits, labels = digits_of(opened, "train")
    images = columns(opened("cifar10"))

    def which(name):
        found = columns(opened(name))["image"]
        return digits_upon(found, images["image"], digits, 8)

    found, first = columns(opened(name)), which(name)
    # All of the first six, and none of the others.
    assert set(first) == set(range(6))
    assert found["label"].tolist() == images["label"].tolist()
    # The same digits, told by their own class.
    of_digits = opened(name.replace("unique=6", "unique=6,label=digit"))
    assert of_digits.info.label_names == tuple("0123456789")
    rows = columns(of_digits)
    np.testing.assert_array_equal(rows["image"], found["image"])
    np.testing.assert_array_equal(rows["label"], labels[first])
    np.testing.assert_array_equal(of_digits.labels(), labels[first])
    # An image has its digit in a part, too, and another one by another seed.
    part = columns(opened(name, "train[30:60]"))["image"]
    np.testing.assert_array_equal(part, found["image"][30:60])
    other = which(name.replace("unique=6", "unique=6,seed=1"))
    assert (other == first).mean() < 0.4
    # Of 40 digits, 100 images have about 40 (1 - (39/40)^100) = 37.
    assert len(set(which("digit_on_image:of=cifar10")) - {-1}) > 30


def test_digits_are_drawn_on_whole_images_of_the_users(data_dir, tmp_path):
    """Which are read by options that say nothing of MNIST."""
    array = np.zeros([256, 320, 3], np.uint8)
    for name in ("a/0.jpg", "a/1.jpg"):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.fromarray(array).save(tmp_path / name)
    name = f"digit_on_image:digit=60,unique=1,of=folder:{tmp_path}"
    reading = datasets.Reading(test_fraction=0.5)
    source = datasets.source(name, "train", data_dir=data_dir, reading=reading)
    record = next(iter(source.records))
    plain = columns(source)["image"][0]
    word = datasets.source(name, "Train", data_dir=data_dir, reading=reading)
    np.testing.assert_array_equal(columns(word)["image"][0], plain)
    halved = source.decode(record | {"halvings": tf.constant(3)})["image"]
    np.testing.assert_array_equal(halved, plain)
    with pytest.raises(errors.UserError, match="3 channels of 8 bits"):
        reading = datasets.Reading(value_range=(0.0, 255.0))
        datasets.source(name, "train", data_dir=data_dir, reading=reading)


@pytest.mark.slow
def test_multi_labels_go_through_batches(opened):
    source = opened("multidigits:count=3,canvas=32,digit=14")
    policy = views.build("none", image_size=32)
    maker = datasets.ViewMaker(views.Views(policy, 2))
    order = datasets.Order(batch_size=20)
    shown = datasets.training_batches(source, maker, order)
    _, labels = next(iter(shown))
    assert labels.dtype == tf.int32 and labels.shape == (20, 10)
    assert labels.numpy().sum(axis=1).max() == 3
    named = {"batch_size": 20}
    scored = datasets.evaluation_batches(source, views.evaluation(32), **named)
    both = datasets.view_batches(source, maker, seed=0, **named)
    for batches in (scored, both):
        assert set(next(iter(batches))[1].numpy()) == {-1}
