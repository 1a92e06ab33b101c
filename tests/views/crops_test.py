"""Crop, resize, flip."""

import image_helpers
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from image_helpers import DRAWS, seeds, within

from tf_contrastive import views
from tf_contrastive.views import crops, prng


def boxes(height, width, min_area, count=DRAWS):
    uniforms = prng.uniform(seeds(count), crops.RandomCrop.streams)
    return crops.random_boxes(uniforms["crop"], height, width, min_area).numpy()


def test_boxes_have_the_published_areas_and_aspects():
    top, left, height, width = boxes(3000, 4000, 0.08).T
    assert (top >= 0).all() and (top + height <= 3000).all()
    assert (left >= 0).all() and (left + width <= 4000).all()
    aspect = width / height
    assert aspect.min() > 0.749 and aspect.max() < 1.335
    area = height * width / (3000 * 4000)
    assert area.min() > 0.0799
    # Below 9/16 every aspect fits, so there nothing is rejected.
    free = area < 0.56
    fractions = (area[free] - 0.08) / (0.56 - 0.08)
    assert scipy.stats.kstest(fractions, "uniform").pvalue > 1e-3
    logs = np.log(aspect[free]) / np.log(4 / 3) / 2 + 0.5
    assert scipy.stats.kstest(logs, "uniform").pvalue > 1e-3
    # Positions are uniform over the room that is left, borders included.
    place = (top + 0.5) / (3000 - height + 1)
    assert scipy.stats.kstest(place, "uniform").pvalue > 1e-3


def test_boxes_reach_every_position_of_a_small_image():
    top, left, height, width = boxes(4, 4, 0.25).T
    square = (height == 2) & (width == 2)
    counts = np.unique(4 * top[square] + left[square], return_counts=True)[1]
    assert len(counts) == 9 and scipy.stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
    ("height", "width", "min_area"), [(1, 5000, 0.08), (32, 32, 1.0)]
)
def test_the_box_is_the_whole_image_if_no_crop_fits(height, width, min_area):
    expected = np.tile([0, 0, height, width], (50, 1))
    np.testing.assert_array_equal(boxes(height, width, min_area, 50), expected)


@pytest.mark.parametrize("size", [(3000, 4000), (500, 375), (200, 900)])
def test_images_are_halved_as_often_as_their_crops_allow(size):
    policy = views.build("simclr", image_size=64)
    made = views.Views(policy, 2)
    streams = crops.RandomCrop.streams
    for seed in seeds(40):
        numbers = {k: u[0] for k, u in made.numbers(seed[tf.newaxis]).items()}
        number = int(made.halvings(tf.constant(size), numbers))
        uniforms = prng.uniform(prng.fold(seed[tf.newaxis], 2)[0], streams)
        drawn = crops.random_boxes(
            uniforms["crop"], *size, policy.min_crop_area
        )
        least = drawn.numpy()[:, 2:].min()
        assert number == 0 or least >= 64 * 2**number
        assert number == 3 or least < 64 * 2 ** (number + 1)


@pytest.mark.parametrize(
    ("size", "mirrored", "whole", "average"),
    [
        (17, False, (60, 70), 1),
        (64, True, (60, 70), 1),
        (65, False, (60, 70), 1),
        (80, True, (427, 330), 2),
        (65, False, (427, 427), 3),
    ],
)
def test_crops_equal_slice_and_resize(size, mirrored, whole, average):
    image = image_helpers.photos()[0, : whole[0], : whole[1]]
    box = boxes(*whole, 0.08, 8)
    ours = crops.sample(
        tf.constant(image)[tf.newaxis],
        tf.zeros([8], tf.int32),
        tf.constant(box),
        tf.fill([8], mirrored),
        size,
    ).numpy()
    assert ours.min() >= 0.0 and ours.max() <= 1.0
    for view, (top, left, height, width) in zip(
        ours, box.astype(int), strict=True
    ):
        piece = image[top : top + height, left : left + width]
        # As in SimCLR's code, which reads no pixels beyond the crop.
        oracle = tf.image.resize(piece, [size * average] * 2).numpy() / 255
        cells = oracle.reshape(size, average, size, average, 3)
        oracle = cells.mean(axis=(1, 3))
        oracle = oracle[:, ::-1] if mirrored else oracle
        # Small views use the pixels beyond the box at its border.
        edge = int(np.ceil(0.5 * size / min(height, width)))
        inner = slice(edge, size - edge) if size <= 64 else slice(None)
        np.testing.assert_allclose(
            view[inner, inner], oracle[inner, inner], atol=4e-5
        )
        assert np.abs(view - oracle).max() < 0.35


def test_half_of_the_views_are_mirrored():
    image = np.zeros((1, 2, 2, 3), np.uint8)
    image[:, :, 1] = 255
    images = np.repeat(image, DRAWS, axis=0)
    policy = views.build("crop", image_size=2, min_crop_area=1.0)
    left = policy.batch(images, seeds(DRAWS)).numpy()[:, 0, 0, 0]
    assert set(np.round(left, 5)) == {0.0, 1.0}
    assert within(np.mean(left > 0.5), 0.5)
