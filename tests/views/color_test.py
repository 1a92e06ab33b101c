"""Operations of colour, each against an oracle."""

import colorsys
import itertools

import numpy as np
import pytest
import tensorflow as tf
from image_helpers import pixel_patches, seeds, uniforms_of

from tf_contrastive.views import color, gaussian_blur, prng, warp

# ---- Colour -----------------------------------------------------------------


def as_planes(pixels: np.ndarray) -> tf.Tensor:
    return tf.transpose(pixels, [3, 0, 1, 2])


def as_pixels(planes: tf.Tensor) -> np.ndarray:
    return np.transpose(planes, [1, 2, 3, 0])


def scalars(values: np.ndarray) -> tf.Tensor:
    return tf.constant(values, tf.float32)[:, tf.newaxis, tf.newaxis]


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
        ours = color.adjust_hue_saturation(
            as_planes(pixels), scalars([hue]), scalars([saturation])
        )
        oracle = tf.image.adjust_saturation(pixels, saturation)
        oracle = tf.image.adjust_hue(oracle, hue)
        np.testing.assert_allclose(as_pixels(ours), oracle, atol=2e-6)


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
    ids=lambda operation: type(operation).__name__,
)
def test_zero_strength_or_probability_is_the_identity(operation):
    pixels = pixel_patches(10, 32)
    result = operation(pixels, uniforms_of(operation, 10))
    np.testing.assert_array_equal(result, pixels)


@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_color_jitter_equals_the_papers_chain(strength):
    pixels = pixel_patches(20, 16).numpy()
    jitter = color.ColorJitter(strength, probability=1.0)
    uniforms = prng.uniform(seeds(20), jitter.streams)
    ours = jitter(tf.constant(pixels), uniforms)
    low, span = max(0.0, 1 - 0.8 * strength), 0.8 * strength
    for view, image, u in zip(
        ours, pixels, uniforms["jitter"].numpy()[:, 1:], strict=True
    ):
        x = tf.image.adjust_brightness(image, span * (2 * u[0] - 1))
        x = tf.image.adjust_contrast(x, low + (1 + span - low) * u[2])
        x = tf.image.adjust_saturation(x, low + (1 + span - low) * u[3])
        x = tf.image.adjust_hue(x, 0.2 * strength * (2 * u[1] - 1))
        x = tf.clip_by_value(x, 0, 1)
        # A weakly coloured pixel's hue amplifies rounding.
        np.testing.assert_allclose(view, x, atol=1e-4)
        assert np.abs(view - x).mean() < 2e-6


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
        if name == "brightness":
            image = value * image
        elif name == "contrast":
            image = value * image + (1 - value) * (image @ gray).mean()
        elif name == "saturation":
            image = value * image + (1 - value) * (image @ gray)[..., None]
        else:
            image = np.array(
                [
                    [turned(pixel, value) for pixel in row]
                    for row in np.clip(image, 0, 1)
                ]
            )
        image = np.clip(image, 0, 1)
    return image


def turned(pixel, value):
    hue, saturation, brightness = colorsys.rgb_to_hsv(*pixel)
    return colorsys.hsv_to_rgb((hue + value) % 1.0, saturation, brightness)


def torchvision_values(numbers, strength):
    """Brightness, contrast, saturation and hue, by four uniform numbers."""
    low, high = max(0, 1 - 0.8 * strength), 1 + 0.8 * strength
    turn = min(0.2 * strength, 0.5)
    return [*(low + (high - low) * numbers[:3]), turn * (2 * numbers[3] - 1)]


def tensorflow_jitter(image, steps):
    """The steps of SimCLR's and SupCon's code, by `tf.image`."""
    functions = {
        "brightness": tf.image.adjust_brightness,
        "contrast": tf.image.adjust_contrast,
        "saturation": tf.image.adjust_saturation,
        "hue": tf.image.adjust_hue,
    }
    for name, value in steps:
        image = tf.clip_by_value(functions[name](image, value), 0.0, 1.0)
    return image


def tensorflow_values(numbers, strength):
    """Brightness, contrast, saturation and hue, by four uniform numbers."""
    (brightness, hue), span = 2 * numbers[:2] - 1, 0.8 * strength
    factors = 1 - span + 2 * span * numbers[2:]
    return [span * brightness, *factors, 0.2 * strength * hue]


_TORCHVISION = color.PyTorchColorJitter, torchvision_jitter, torchvision_values


_TENSORFLOW = color.ShuffledColorJitter, tensorflow_jitter, tensorflow_values


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(
    ("form", "strength"),
    [
        (_TORCHVISION, 0.5),
        (_TORCHVISION, 3.0),
        (_TENSORFLOW, 0.5),
        (_TENSORFLOW, 1.0),
    ],
)
def test_jitters_equal_the_formulas_in_the_drawn_order(form, strength, static):
    kind, oracle, values_of = form
    images = pixel_patches(30, 12)
    jitter = kind(strength, probability=1.0)
    uniforms = uniforms_of(jitter, 30)
    result = jitter(images, uniforms, static).numpy()
    names = ("brightness", "contrast", "saturation", "hue")
    orders = list(itertools.permutations(range(4)))
    seen = set()
    for view, image, numbers, order in zip(
        result,
        images.numpy(),
        uniforms["jitter"].numpy()[:, 1:],
        uniforms["jitter_order"].numpy()[:, 0],
        strict=True,
    ):
        values = values_of(numbers, strength)
        order = orders[int(order * 24)]
        seen.add(order)
        expected = oracle(image, [(names[k], values[k]) for k in order])
        # A weakly coloured pixel's hue amplifies rounding.
        np.testing.assert_allclose(view, expected, atol=2e-3)
        assert np.abs(view - expected).mean() < 2e-5
    assert len(seen) > 12
