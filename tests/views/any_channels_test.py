"""Policies on any number of channels, against views of three of them."""

import numpy as np
import pytest
import tensorflow as tf
from image_helpers import noise, seeds

from tf_contrastive import views
from tf_contrastive.base import errors

IMAGES = noise(5, 40, 52, channels=4)


def made(images, name, size=24, **options):
    policy = views.build(
        name, image_size=size, channels=images.shape[-1], **options
    )
    return policy.batch(images, seeds(len(images))).numpy()


@pytest.mark.parametrize("size", [24, 80])
@pytest.mark.parametrize(
    "name",
    ["crop", "none", "ablation:blur+sobel+rotate+cutout+crop", "simaugment"],
)
def test_every_channel_is_changed_as_one_of_three(name, size):
    found = made(IMAGES, name, size, colors=())
    assert found.shape == (5, size, size, 4)
    for k in range(4):
        alone = np.repeat(IMAGES[..., k : k + 1], 3, axis=-1)
        expected = made(alone, name, size, colors=())[..., 0]
        np.testing.assert_allclose(found[..., k], expected, atol=1e-6)


@pytest.mark.parametrize("name", ["crop", "none", "simclr"])
def test_three_channels_are_those_of_8_bits(name):
    levels = np.round(IMAGES[..., :3] * 255)
    policy = views.build(name, image_size=24)
    expected = policy.batch(levels.astype(np.uint8), seeds(5))
    floats = levels.astype(np.float32) / np.float32(255)
    np.testing.assert_allclose(made(floats, name), expected, atol=2e-6)


def test_colours_of_named_channels_alone_change():
    options = {"min_crop_area": 1.0, "flip": False, "blur": False}
    plain = made(IMAGES, "crop", min_crop_area=1.0, flip=False)
    found = made(IMAGES, "simclr", colors=(3, 0, 2), **options)
    colors = IMAGES[..., [3, 0, 2]]
    expected = made(colors, "simclr", colors=(0, 1, 2), **options)
    np.testing.assert_array_equal(found[..., [3, 0, 2]], expected)
    np.testing.assert_array_equal(found[..., 1], plain[..., 1])
    assert np.abs(found - plain)[..., 0].mean() > 0.05


def test_colours_are_left_out_with_a_line(capfd):
    options = {"min_crop_area": 1.0, "flip": False, "blur": False}
    found = made(IMAGES[..., :2], "simclr", colors=(), **options)
    plain = made(IMAGES[..., :2], "crop", min_crop_area=1.0, flip=False)
    np.testing.assert_array_equal(found, plain)
    assert capfd.readouterr().err.count("ColorJitter, Grayscale left out") == 1


def test_noise_differs_between_channels():
    grey = np.full([2, 24, 24, 4], 0.5, np.float32)
    found = made(grey, "ablation:noise", ablation_branch="both") - 0.5
    found = found.reshape(2, -1, 4)
    for image in found:
        assert np.abs(np.corrcoef(image.T) - np.eye(4)).max() < 0.15


def test_images_of_another_form_are_refused():
    policy = views.build("crop", image_size=24, channels=4)
    for images in (IMAGES[..., :3], tf.cast(IMAGES * 255, tf.uint8)):
        with pytest.raises(errors.UserError, match="float32"):
            policy.batch(images, seeds(5))
