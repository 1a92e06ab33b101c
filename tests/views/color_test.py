"""Operations of colour, each against an oracle."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from image_helpers import pixel_patches, seeds, uniforms_of

from tf_contrastive.views import color, gaussian_blur, prng, warp

# ---- Colour -----------------------------------------------------------------


def colours() -> np.ndarray:
    """Colours of every sector and border of the hue circle, and greys."""
    levels = np.linspace(0, 1, 6, dtype=np.float32)
    cube = np.stack(np.meshgrid(levels, levels, levels), -1)
    noise = np.random.default_rng(0).random((216, 3), np.float32)
    return np.concatenate([cube.reshape(-1, 3), noise]).reshape(1, 18, 24, 3)


def test_hue_and_saturation_equal_tf_image():
    # Beyond [0, 1] too: brightness and contrast come first, unclipped.
    for pixels, hue, saturation in itertools.product(
        (colours(), colours() * 2.4 - 0.8),
        (-0.5, -0.2, 0.0, 0.13, 1.0),
        (0.0, 0.2, 1.0, 3.0),
    ):
        planes = tf.transpose(pixels, [3, 0, 1, 2])
        factors = (tf.fill([1, 1, 1], x) for x in (hue, saturation))
        planes = color.adjust_hue_saturation(planes, *factors)
        ours = np.transpose(planes, [1, 2, 3, 0])
        oracle = tf.image.adjust_saturation(pixels, saturation)
        oracle = tf.image.adjust_hue(oracle, hue)
        np.testing.assert_allclose(ours, oracle, atol=2e-6)


@pytest.mark.parametrize(
    "operation",
    [
        color.ColorJitter(0.0),
        color.PyTorchColorJitter(1.0, probability=0.0),
        color.ShuffledColorJitter(1.0, probability=0.0),
        color.Grayscale(probability=0.0),
        gaussian_blur.GaussianBlur(probability=0.0),
        warp.Warp(probability=0.0),
    ],
)
def test_zero_strength_or_probability_is_the_identity(operation):
    pixels = pixel_patches(10, 32)
    result = operation(pixels, uniforms_of(operation, 10))
    np.testing.assert_array_equal(result, pixels)


def test_grayscale_equals_tf_image_and_is_exact():
    gray = color.Grayscale(probability=1.0)
    uniforms = prng.uniform(seeds(1), gray.streams)
    pixels = tf.image.resize(colours(), [24, 24], method="nearest")
    ours = gray(pixels, uniforms).numpy()
    oracle = tf.image.rgb_to_grayscale(pixels)
    np.testing.assert_allclose(ours, np.repeat(oracle, 3, -1), atol=1e-6)
    assert (ours[..., 0] == ours[..., 1]).all()
    assert (ours[..., 0] == ours[..., 2]).all()


# ---- Colour jitter in random order ------------------------------------------


def torchvision_jitter(image, steps):
    """The formulas of torchvision's documentation, in float64."""
    gray = np.array([0.2989, 0.587, 0.114])
    for name, value in steps:
        if name == "hue":
            image = tf.image.adjust_hue(image, value).numpy()
            continue
        other = {
            "brightness": 0.0,
            "contrast": (image @ gray).mean(),
            "saturation": (image @ gray)[..., None],
        }[name]
        image = np.clip(value * image + (1 - value) * other, 0, 1)
    return image


def torchvision_values(numbers, strength):
    """Brightness, contrast, saturation and hue, by four uniform numbers."""
    low, high = max(0, 1 - 0.8 * strength), 1 + 0.8 * strength
    turn = min(0.2 * strength, 0.5)
    return [*(low + (high - low) * numbers[:3]), turn * (2 * numbers[3] - 1)]


def papers_jitter(image, steps):
    """The steps of SimCLR's paper, by `tf.image`: one clip at the end."""
    functions = {
        "brightness": tf.image.adjust_brightness,
        "contrast": tf.image.adjust_contrast,
        "saturation": tf.image.adjust_saturation,
        "hue": tf.image.adjust_hue,
    }
    for name, value in steps:
        image = functions[name](image, value)
    return tf.clip_by_value(image, 0.0, 1.0)


def tensorflow_jitter(image, steps):
    """The steps of SimCLR's and SupCon's code: a clip after each."""
    for step in steps:
        image = papers_jitter(image, [step])
    return image


def tensorflow_values(numbers, strength):
    """Brightness, contrast, saturation and hue, by four uniform numbers."""
    (brightness, hue), span = 2 * numbers[:2] - 1, 0.8 * strength
    low = max(0.0, 1 - span)
    factors = low + (1 + span - low) * numbers[2:]
    return [span * brightness, *factors, 0.2 * strength * hue]


# With the largest and the mean difference, if the order is drawn: a weakly
# coloured pixel's hue amplifies rounding.
_FORMS = [
    (color.ColorJitter, papers_jitter, tensorflow_values, 1e-4),
    (color.PyTorchColorJitter, torchvision_jitter, torchvision_values, 2e-3),
    (color.ShuffledColorJitter, tensorflow_jitter, tensorflow_values, 2e-3),
]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("strength", [0.5, 3.0])
@pytest.mark.parametrize("form", _FORMS)
def test_jitters_equal_the_formulas_in_their_order(form, strength, static):
    kind, oracle, values_of, largest = form
    images = pixel_patches(30, 12)
    jitter = kind(strength, probability=1.0)
    uniforms = uniforms_of(jitter, 30)
    result = jitter(images, uniforms, static).numpy()
    names = ("brightness", "contrast", "saturation", "hue")
    orders = list(itertools.permutations(range(4)))
    # The paper's order is the first.
    drawn = uniforms.get("jitter_order", tf.zeros([30, 1])).numpy()[:, 0]
    for view, image, numbers, order in zip(
        result,
        images.numpy(),
        uniforms["jitter"].numpy()[:, 1:],
        drawn,
        strict=True,
    ):
        values = values_of(numbers, strength)
        order = orders[int(order * 24)]
        expected = oracle(image, [(names[k], values[k]) for k in order])
        np.testing.assert_allclose(view, expected, atol=largest)
        assert np.abs(view - expected).mean() < largest / 50
