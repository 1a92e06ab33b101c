"""Operations of ablations, each against an oracle."""

import image_helpers
import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import tensorflow as tf
from image_helpers import DRAWS, pixel_patches, seeds, uniforms_of, within
from PIL import Image, ImageOps

from tf_contrastive import views
from tf_contrastive.views import ablation, crops, prng, selection


# Chen et al. 2020, figure 4; its table 3, and Khosla et al. 2020, 10.2.
@pytest.mark.parametrize(
    ("turned", "degrees"),
    [(True, (90, 180, 270)), (False, (0, 90, 180, 270))],
)
def test_rotations_are_quarter_turns(turned, degrees):
    operation = ablation.Rotate(turned)
    pixels = np.tile(pixel_patches(1, 8), (DRAWS, 1, 1, 1))
    result = operation(tf.constant(pixels), uniforms_of(operation, DRAWS))
    # Pillow turns counter-clockwise.
    image = Image.fromarray((pixels[0] * 255).round().astype(np.uint8))
    shares = [
        np.all(
            result == np.asarray(image.rotate(d)) / np.float32(255), (1, 2, 3)
        )
        for d in degrees
    ]
    assert all(within(s.mean(), 1 / len(degrees)) for s in shares)
    assert np.all(np.any(shares, axis=0))


def test_operations_at_random_are_applied_in_their_order():
    pixels = pixel_patches(100, 16)
    operations = (
        ablation.EQUALIZE,
        ablation.SOLARIZE,
        ablation.SOBEL,
        ablation.MotionBlur(),
    )
    operation = selection.RandomApply(operations, 0.2)
    uniforms = uniforms_of(operation, 100)
    expected = pixels
    for number, one in enumerate(operations):
        acts = uniforms["random_apply"][:, number] < 0.2
        changed = one(expected, uniforms)
        expected = tf.where(acts[:, None, None, None], changed, expected)
    np.testing.assert_allclose(operation(pixels, uniforms), expected, atol=1e-6)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_a_second_crop_equals_slicing_and_tf_image_resize(static, flip):
    pixels = pixel_patches(30, 24)
    operation = ablation.SecondCrop(min_area=0.1, flip=flip)
    uniforms = uniforms_of(operation, 30)
    boxes = crops.random_boxes(uniforms["second_crop"], 24, 24, 0.1)
    result = operation(pixels, uniforms, static)
    flipped = 0
    for view, image, box in zip(result, pixels, boxes, strict=True):
        top, left, height, width = box.numpy().astype(int)
        part = image[top : top + height, left : left + width]
        expected = tf.image.resize(part, [24, 24]).numpy()
        mirror = expected[:, ::-1]
        if np.abs(view - mirror).max() < np.abs(view - expected).max():
            expected, flipped = mirror, flipped + 1
        np.testing.assert_allclose(view, expected, atol=1e-5)
    assert within(flipped / 30, 0.5, 30) if flip else not flipped
    # It is not the crop that the view got before.
    first = prng.uniform(seeds(30), crops.RandomCrop.streams)["crop"]
    assert not np.any(first == uniforms["second_crop"])


def test_a_crop_pair_crops_then_changes_one_branch():
    images = image_helpers.patches(6, 40)
    policy = views.build("ablation:crop+solarize", image_size=32)
    result = views.Views(policy, 2)(images, seeds(6))
    identity = views.build("crop", image_size=32, flip=False)
    cropped = views.Views(identity, 2)(images, seeds(6))
    # t(x) = x of the other branch, with the same x.
    np.testing.assert_array_equal(result[:, 1], cropped[:, 0])
    operation = ablation.SecondCrop(0.08, flip=True)
    folded = prng.fold(seeds(6), 2)[:, 0]
    uniforms = prng.uniform(folded, operation.streams)
    expected = ablation.SOLARIZE(operation(cropped[:, 0], uniforms), {})
    np.testing.assert_array_equal(result[:, 0], expected)


def test_cutout_covers_half_the_side():
    pixels = pixel_patches(500, 16)
    operation = ablation.Cutout()
    result = operation(pixels, uniforms_of(operation, 500)).numpy()
    hidden = np.all(result == 0.5, axis=-1).sum(axis=(1, 2))
    assert hidden.max() == 64 and hidden.min() == 16
    shown = np.any(result != 0.5, axis=-1)
    np.testing.assert_array_equal(result[shown], pixels.numpy()[shown])


def test_noise_is_gaussian_with_a_level_per_view():
    pixels = tf.fill([200, 32, 32, 3], 0.5)
    operation = ablation.Noise(size=32, deviation=0.1)
    uniforms = uniforms_of(operation, 200)
    noise = operation(pixels, uniforms).numpy().reshape(200, -1) - 0.5
    expected = 0.1 * uniforms["noise"].numpy()[:, 0]
    np.testing.assert_allclose(noise.std(axis=1), expected, rtol=0.06)
    for row, deviation in zip(noise[:20], expected, strict=False):
        assert scipy.stats.kstest(row / deviation, "norm").pvalue > 1e-4
    assert np.abs(np.corrcoef(noise) - np.eye(200)).max() < 0.1


def test_sobel_equals_scipy():
    pixels = pixel_patches(3, 24).numpy()
    result = ablation.sobel(tf.constant(pixels))
    for view, image in zip(result, pixels, strict=True):
        for channel in range(3):
            gradients = [
                scipy.ndimage.sobel(image[..., channel], axis, mode="mirror")
                for axis in (0, 1)
            ]
            expected = np.minimum(np.hypot(*gradients), 1.0)
            np.testing.assert_allclose(view[..., channel], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("operation", "oracle"),
    [
        (ablation.EQUALIZE, ImageOps.equalize),
        (ablation.SOLARIZE, lambda i: ImageOps.solarize(i, 128)),
    ],
)
def test_equalize_and_solarize_of_pixels_equal_pillow(operation, oracle):
    images = image_helpers.patches(3, 64)
    result = operation(tf.constant(images / np.float32(255)), {})
    for view, image in zip(result, images, strict=True):
        expected = np.asarray(oracle(Image.fromarray(image))) / 255
        np.testing.assert_allclose(view, expected, atol=1e-6)


def test_motion_blur_averages_along_a_line():
    # Of one white pixel it makes a line through its place.
    pixels = np.zeros((60, 64, 64, 3), np.float32)
    pixels[:, 32, 32] = 1.0
    operation = ablation.MotionBlur()
    uniforms = uniforms_of(operation, 60)
    result = operation(tf.constant(pixels), uniforms).numpy()
    np.testing.assert_allclose(result.sum(axis=(1, 2)), 1.0, atol=1e-6)
    angles = np.pi * uniforms["motion_blur"].numpy()[:, 0]
    for view, angle in zip(result, angles, strict=True):
        rows, columns = np.nonzero(view[..., 0])
        down, right = np.sin(angle), np.cos(angle)
        assert np.ptp(rows) == 2 * round(3 * abs(down))
        assert np.ptp(columns) == 2 * round(3 * abs(right))
        across = down * (columns - 32) - right * (rows - 32)
        assert np.abs(across).max() <= 0.75
    even = operation(tf.fill([60, 64, 64, 3], 0.4), uniforms)
    np.testing.assert_allclose(even, 0.4, atol=1e-6)


@pytest.mark.parametrize("branch", ["one", "both"])
def test_an_ablation_changes_one_branch_or_both(branch):
    images = image_helpers.patches(6, 40)
    policy = views.build(
        "ablation:solarize+sobel", image_size=32, ablation_branch=branch
    )
    result = views.Views(policy, 3)(images, seeds(6))
    identity = views.build("crop", image_size=32, flip=False)
    cropped = views.Views(identity, 1)(images, seeds(6))
    cropped = np.repeat(cropped, 3, axis=1)
    changed = np.any(result != cropped, axis=(2, 3, 4))
    expected = [True, branch == "both", branch == "both"]
    np.testing.assert_array_equal(changed, [expected] * 6)
    both = ablation.SOBEL(ablation.SOLARIZE(cropped[:, 0], {}), {})
    np.testing.assert_array_equal(result[:, 0], both)
