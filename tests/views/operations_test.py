"""Operations of the augmentation policies, each against an oracle."""

import colorsys
import itertools
import re

import image_helpers
import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import tensorflow as tf
from image_helpers import pixel_patches, seeds
from PIL import Image, ImageEnhance, ImageOps

from tf_contrastive import views
from tf_contrastive.views import (
    ablation,
    affine,
    autoaugment,
    color,
    crops,
    gaussian_blur,
    pillow,
    prng,
    warp,
)

DRAWS = 10_000


def within(fraction, expected, count=DRAWS):
    return image_helpers.within(fraction, expected, count)


def as_levels(images: np.ndarray) -> tf.Tensor:
    return pillow.as_rows(tf.constant(images, tf.float32))


def uniforms_of(operation, count: int) -> dict[str, tf.Tensor]:
    return prng.uniform(seeds(count), operation.streams)


# ---- Pillow -----------------------------------------------------------------


def moved(kind):
    def ours(rows, arguments, static):
        number = affine.TRANSFORMS.index(kind)
        matrix = affine.matrices(tf.fill([2], number), arguments, rows.shape[1])
        pixels = pillow.as_pixels(rows)
        return pillow.as_rows(affine.transform(pixels, matrix, pillow.FILL))

    return ours


def transformed(matrix):
    return lambda image, argument: image.transform(
        image.size,
        Image.Transform.AFFINE,
        matrix(argument),
        fillcolor=(128,) * 3,
    )


def enhanced(kind):
    return lambda image, factor: kind(image).enhance(factor)


def solarize_add(image, addition):
    table = [min(x + addition, 255) if x < 128 else x for x in range(256)]
    return image.point(table * 3)


def without_argument(ours, oracle):
    return lambda x, a, s: ours(x), lambda i, a: oracle(i), [(0, 0)]


def with_argument(ours):
    return lambda x, a, s: ours(x, a)


# Our operation (rows, an argument per view, static), Pillow's (image,
# argument), pairs of arguments for the two photographs.
FACTORS = [(0.1, 1.9), (1.36, 0.0)]
PILLOW = {
    "autocontrast": without_argument(
        pillow.autocontrast, ImageOps.autocontrast
    ),
    "equalize": without_argument(pillow.equalize, ImageOps.equalize),
    "invert": without_argument(pillow.invert, ImageOps.invert),
    "color": (pillow.color, enhanced(ImageEnhance.Color), FACTORS),
    "contrast": (pillow.contrast, enhanced(ImageEnhance.Contrast), FACTORS),
    "brightness": (
        with_argument(pillow.brightness),
        enhanced(ImageEnhance.Brightness),
        FACTORS,
    ),
    "sharpness": (
        with_argument(pillow.sharpness),
        enhanced(ImageEnhance.Sharpness),
        FACTORS,
    ),
    "posterize": (
        with_argument(pillow.posterize),
        ImageOps.posterize,
        [(1, 4), (2, 8), (0, 3)],
    ),
    "solarize": (
        with_argument(pillow.solarize),
        ImageOps.solarize,
        [(0, 256), (76, 128)],
    ),
    "solarize_add": (
        with_argument(pillow.solarize_add),
        solarize_add,
        [(33, 110)],
    ),
    "shear_x": (
        moved("shear_x"),
        transformed(lambda a: (1, a, 0, 0, 1, 0)),
        [(0.3, -0.12)],
    ),
    "shear_y": (
        moved("shear_y"),
        transformed(lambda a: (1, 0, 0, a, 1, 0)),
        [(0.3, -0.12)],
    ),
    "translate_x": (
        moved("translate_x"),
        transformed(lambda a: (1, 0, a, 0, 1, 0)),
        [(100.0, -37.0), (-500.0, 13.4)],
    ),
    "translate_y": (
        moved("translate_y"),
        transformed(lambda a: (1, 0, 0, 0, 1, a)),
        [(100.0, -37.0), (-500.0, 13.4)],
    ),
    "rotate": (
        moved("rotate"),
        lambda i, a: i.rotate(a, fillcolor=(128,) * 3),
        [(30.0, -21.0), (6.0, 0.0), (90.0, -15.0)],
    ),
}


@pytest.mark.parametrize("name", PILLOW)
def test_operations_equal_pillow_with_an_argument_per_view(name):
    ours, oracle, pairs = PILLOW[name]
    forms = [False, True] if name in ("color", "contrast") else [False]
    for size, arguments, static in itertools.product((427, 32), pairs, forms):
        images = image_helpers.photos()[:, -size:, -size:]
        values = np.array(arguments, np.float32)
        rows = pillow.as_pixels(ours(as_levels(images), values, static)).numpy()
        for view, image, argument in zip(rows, images, arguments, strict=True):
            expected = oracle(Image.fromarray(image), argument)
            off = np.abs(view - np.asarray(expected, np.float32))
            assert np.mean(off <= 1) >= 0.99, (size, argument)
            assert static or off.mean() < 0.05, (size, argument)
        assert static or (rows == np.round(rows)).all()
        assert rows.min() >= 0 and rows.max() <= 255


def test_constant_images_are_unchanged_by_contrast_operations():
    levels = tf.constant([0.0, 7.0, 255.0])[:, None, None]
    pixels = tf.tile(levels, [1, 8, 24])
    np.testing.assert_array_equal(pillow.equalize(pixels), pixels)
    np.testing.assert_array_equal(pillow.autocontrast(pixels), pixels)


def test_equalize_of_few_pixels_equals_pillow():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (50, 17, 17, 3), dtype=np.uint8)
    result = pillow.as_pixels(pillow.equalize(as_levels(images)))
    for view, image in zip(result, images, strict=True):
        oracle = ImageOps.equalize(Image.fromarray(image))
        np.testing.assert_array_equal(view, oracle)


def test_cutout_fills_the_part_of_a_square_inside_the_view():
    result = pillow.cutout(
        tf.zeros([3, 10, 30]),
        tf.constant([2.0, 3.0, 0.0]),
        tf.constant([5.0, 0.0, 4.0]),
        tf.constant([4.0, 9.0, 4.0]),
    )
    expected = np.zeros([3, 10, 10, 3])
    expected[0, 3:7, 2:6] = 128
    expected[1, :3, 6:] = 128
    np.testing.assert_array_equal(pillow.as_pixels(result), expected)


# ---- AutoAugment and RandAugment --------------------------------------------

# The ImageNet policy as it was published: (operation, probability, level).
PUBLISHED = """
(Equalize,.8,1)(ShearY,.8,4) | (Color,.4,9)(Equalize,.6,3)
| (Color,.4,1)(Rotate,.6,8) | (Solarize,.8,3)(Equalize,.4,7)
| (Solarize,.4,2)(Solarize,.6,2) | (Color,.2,0)(Equalize,.8,8)
| (Equalize,.4,8)(SolarizeAdd,.8,3) | (ShearX,.2,9)(Rotate,.6,8)
| (Color,.6,1)(Equalize,1,2) | (Invert,.4,9)(Rotate,.6,0)
| (Equalize,1,9)(ShearY,.6,3) | (Color,.4,7)(Equalize,.6,0)
| (Posterize,.4,6)(AutoContrast,.4,7) | (Solarize,.6,8)(Color,.6,9)
| (Solarize,.2,4)(Rotate,.8,9) | (Rotate,1,7)(TranslateY,.8,9)
| (ShearX,0,0)(Solarize,.8,4) | (ShearY,.8,0)(Color,.6,4)
| (Color,1,0)(Rotate,.6,2) | (Equalize,.8,4)(Equalize,0,8)
| (Equalize,1,4)(AutoContrast,.6,2) | (ShearY,.4,7)(SolarizeAdd,.6,7)
| (Posterize,.8,2)(Solarize,.6,10) | (Solarize,.6,8)(Equalize,.6,1)
| (Color,.8,6)(Rotate,.4,5)
"""


def test_autoaugment_has_the_published_sub_policies():
    parsed = tuple(
        tuple(
            (name, float(fraction), int(level))
            for name, fraction, level in re.findall(
                r"\((\w+),([\d.]+),(\d+)\)", pair
            )
        )
        for pair in PUBLISHED.split("|")
    )
    assert len(parsed) == 25
    assert parsed == autoaugment.IMAGENET_POLICY


def test_levels_have_the_published_arguments():
    for name, levels in {
        "Rotate": {10: 30.0, 7: 21.0},
        "Posterize": {10: 4, 6: 2, 2: 1},
        "Solarize": {3: 76, 10: 256},
        "SolarizeAdd": {3: 33, 10: 110},
        "Color": {0: 0.1, 9: 1.72},
        "Contrast": {10: 1.9},
        "Brightness": {5: 1.0},
        "Sharpness": {1: 0.28},
        "ShearX": {10: 0.3},
        "ShearY": {4: 0.12},
        "TranslateX": {10: 100.0},
        "TranslateY": {5: 50.0},
        "Cutout": {10: 40, 3: 12},
    }.items():
        for level, expected in levels.items():
            value = autoaugment.arguments(level, 224, 100, 40)[name]
            assert value == pytest.approx(expected), (name, level)


def test_lengths_scale_with_the_side():
    for name, expected in [("TranslateX", 250 / 7), ("Cutout", 14)]:
        given = autoaugment.arguments(10, 32, 250, 100)[name]
        assert given == pytest.approx(expected)


def test_randaugment_draws_every_operation_equally_often():
    operation = autoaugment.RandAugment(2, 10.0)
    choices = operation.choices(uniforms_of(operation, DRAWS)).numpy()
    assert choices.shape == (DRAWS, 2)
    for layer in choices.T:
        # 16 operations, and none (-1), as in the authors' code.
        counts = np.bincount(layer + 1, minlength=17)
        assert len(counts) == 17
        assert scipy.stats.chisquare(counts).pvalue > 1e-3
        assert all(within(count / DRAWS, 1 / 17) for count in counts)
    # Layers are independent.
    pairs = np.bincount(
        17 * (choices[:, 0] + 1) + choices[:, 1] + 1, minlength=289
    )
    assert scipy.stats.chisquare(pairs).pvalue > 1e-3


def test_autoaugment_draws_pairs_and_operations_as_published():
    operation = autoaugment.AutoAugment()
    pair, which = operation.choices(uniforms_of(operation, DRAWS))
    pair, which = pair.numpy(), which.numpy()
    counts = np.bincount(pair, minlength=25)
    assert len(counts) == 25 and all(within(c / DRAWS, 1 / 25) for c in counts)
    for number, steps in enumerate(autoaugment.IMAGENET_POLICY):
        chosen = which[pair == number]
        for step, (name, fraction, _) in enumerate(steps):
            expected = autoaugment.OPERATIONS.index(name)
            assert set(chosen[:, step]) <= {expected, -1}
            happened = np.mean(chosen[:, step] == expected)
            assert within(happened, fraction, len(chosen))


def test_randaugment_applies_operations_equally_often():
    # Recognized by what they do to an image of four colours.
    side = 20
    image = np.zeros((side, side, 3), np.uint8)
    image[:10, :10], image[:10, 10:] = (200, 90, 40), (60, 120, 180)
    image[10:, :10], image[10:, 10:] = (100, 140, 70), (40, 50, 220)
    pixels = np.repeat(image[np.newaxis] / np.float32(255), DRAWS, axis=0)
    operation = autoaugment.RandAugment(layers=1, magnitude=5.0)
    result = operation(
        tf.constant(pixels), uniforms_of(operation, DRAWS)
    ).numpy()
    result = np.round(result * 255)
    for name, oracle in [
        ("invert", ImageOps.invert),
        ("equalize", ImageOps.equalize),
        ("posterize", lambda i: ImageOps.posterize(i, 2)),
        ("solarize", lambda i: ImageOps.solarize(i, 128)),
        ("autocontrast", ImageOps.autocontrast),
    ]:
        expected = np.asarray(oracle(Image.fromarray(image)))
        assert not np.array_equal(expected, image), name
        happened = np.abs(result - expected).max(axis=(1, 2, 3)) <= 1
        assert within(happened.mean(), 1 / 17), name
    # Brightness, colour, contrast and sharpness have a factor of 1 at 5; a
    # seventeenth of the draws is no operation.
    same = np.abs(result - image).max(axis=(1, 2, 3)) == 0
    assert within(same.mean(), 5 / 17)
    # Translations by 50 pixels of 224, of either sign.
    fill = np.all(result == 128, axis=-1)
    band = fill.sum(axis=(1, 2)) == side * round(50 * side / 224)
    for edge in (fill[:, 0], fill[:, -1], fill[:, :, 0], fill[:, :, -1]):
        assert within((band & edge.all(axis=1)).mean(), 1 / 34)


def test_stacked_randaugment_has_both_orders():
    pixels = pixel_patches(20, 32)
    options = {"warp_probability": 0.0, "blur": False}
    random = autoaugment.RandAugment(2, 10.0)
    jitter, gray = color.PyTorchColorJitter(1.0), color.Grayscale()
    streams = {**random.streams, **jitter.streams, **gray.streams}
    uniforms = prng.uniform(seeds(20), streams)
    for order, steps in [
        ("paper", (random, jitter)),
        ("code", (jitter, random)),
    ]:
        policy = views.build(
            "stacked_randaugment",
            image_size=32,
            stacked_randaugment_order=order,
            color_jitter_style="pytorch",
            **options,
        )
        expected = pixels
        for step in steps:
            expected = step(expected, uniforms)
        np.testing.assert_allclose(
            policy.photometric(pixels, seeds(20)),
            gray(expected, uniforms),
            atol=1e-6,
        )


def test_broader_applies_each_operation_to_a_fraction_of_views():
    count = 500
    pixels = pixel_patches(count, 16)
    options = {"image_size": 16, "blur": False}
    result = views.build("broader", **options).photometric(pixels, seeds(count))
    own = prng.uniform(seeds(count), {"random_apply": 4, "motion_blur": 1})
    chosen = own["random_apply"].numpy() < 0.2
    for fraction in chosen.mean(axis=0):
        assert within(fraction, 0.2, count)
    expected = views.build("simclr", **options).photometric(
        pixels, seeds(count)
    )
    for operation, acts in zip(
        (
            ablation.EQUALIZE,
            ablation.SOLARIZE,
            ablation.SOBEL,
            ablation.MotionBlur(),
        ),
        chosen.T,
        strict=True,
    ):
        after = operation(expected, own)
        expected = tf.where(acts[:, None, None, None], after, expected)
    np.testing.assert_allclose(result, expected, atol=1e-6)


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


@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_color_jitter_equals_the_papers_chain(strength):
    pixels = pixel_patches(20, 16).numpy()
    uniforms = prng.uniform(seeds(20), {"jitter": 5})
    jitter = color.ColorJitter(strength, probability=1.0)
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


@pytest.mark.parametrize(
    "operation",
    [
        color.ColorJitter(0.0),
        color.LinearColorJitter(0.0),
        color.LinearColorJitter(0.0, gray=1e-9),
        color.LinearColorJitter(1.0, probability=0.0),
        color.Grayscale(probability=0.0),
        gaussian_blur.GaussianBlur(probability=0.0),
    ],
    ids=[
        "jitter strength 0",
        "linear strength 0",
        "linear strength 0, hardly gray",
        "linear probability 0",
        "gray probability 0",
        "blur probability 0",
    ],
)
def test_zero_strength_or_probability_is_the_identity(operation):
    pixels = pixel_patches(10, 32)
    uniforms = prng.uniform(seeds(10), operation.streams)
    np.testing.assert_array_equal(operation(pixels, uniforms), pixels)


def test_jitter_of_probability_0_only_rounds():
    pixels = pixel_patches(10, 32)
    jitter = color.ColorJitter(1.0, probability=0.0)
    uniforms = prng.uniform(seeds(10), jitter.streams)
    np.testing.assert_allclose(jitter(pixels, uniforms), pixels, atol=1e-6)


def test_jitter_and_grayscale_have_the_published_probabilities():
    pixels = tf.tile([[[[0.3, 0.5, 0.6]]]], [DRAWS, 1, 1, 1])
    gray = color.Grayscale()
    for jitter in (color.ColorJitter(1.0), color.LinearColorJitter(1.0)):
        uniforms = prng.uniform(
            seeds(DRAWS), {**jitter.streams, **gray.streams}
        )
        off = np.abs(jitter(pixels, uniforms) - pixels)
        changed = off.max(axis=(1, 2, 3)) > 1e-5
        assert within(changed.mean(), 0.8)
        grayed = np.ptp(gray(pixels, uniforms), axis=3)[:, 0, 0] == 0
        assert within(grayed.mean(), 0.2)
        # The two coins are independent.
        assert within((changed & grayed).mean(), 0.8 * 0.2)
    # A weak jitter makes no grey by itself.
    both = color.LinearColorJitter(0.125, gray=0.2)(pixels, uniforms)
    np.testing.assert_array_equal(np.ptp(both, axis=3)[:, 0, 0] == 0, grayed)


# ---- The colour jitter in YIQ -----------------------------------------------


def yiq_jitter(image, brightness, hue, contrast, saturation):
    """Step by step in float64; hues turn about the axis of the luma."""
    image = image + brightness
    mean = image.mean(axis=(0, 1))
    image = (image - mean) * contrast + mean
    luma = image @ [0.299, 0.587, 0.114]
    # I and Q are U and V after 33 degrees, which a turn does not depend on.
    u = 0.492111 * (image[..., 2] - luma)
    v = 0.877283 * (image[..., 0] - luma)
    turned = saturation * (u + 1j * v) * np.exp(2j * np.pi * hue)
    red = luma + turned.imag / 0.877283
    blue = luma + turned.real / 0.492111
    green = (luma - 0.299 * red - 0.114 * blue) / 0.587
    return np.clip(np.stack([red, green, blue], axis=-1), 0, 1)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_linear_jitter_equals_the_steps_in_yiq(strength, static):
    pixels = pixel_patches(20, 16).numpy()
    jitter = color.LinearColorJitter(strength, probability=1.0)
    uniforms = prng.uniform(seeds(20), jitter.streams)
    result = jitter(tf.constant(pixels), uniforms, static).numpy()
    low, span = max(0.0, 1 - 0.8 * strength), 0.8 * strength
    for view, image, u in zip(
        result, pixels, uniforms["jitter"].numpy()[:, 1:], strict=True
    ):
        expected = yiq_jitter(
            image.astype(np.float64),
            span * (2 * u[0] - 1),
            0.2 * strength * (2 * u[1] - 1),
            *(low + (1 + span - low) * u[2:]),
        )
        np.testing.assert_allclose(view, expected, atol=5e-6)
    assert np.abs(result - pixels).mean() > 0.02 * strength


def test_linear_jitter_keeps_luma_and_greys():
    hue = tf.constant(np.linspace(-0.5, 0.5, 11).repeat(3))
    saturation = tf.constant(np.tile([0.0, 0.5, 1.8], 11))
    matrices = color.hue_matrix(hue, saturation).numpy()
    luma = np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(luma @ matrices, np.tile(luma, [33, 1]))
    np.testing.assert_allclose(matrices @ np.ones(3), np.ones([33, 3]))


def test_linear_jitter_shifts_hues_like_hsv():
    # A hue of HSV is the angle of a colour about the greys, but for the skew.
    reds = np.array([[[[0.7, 0.3, 0.3]]]])
    for turns in (1 / 3, -1 / 3, 0.15, -0.15):
        matrix = color.hue_matrix(tf.constant([turns], tf.float64), [1.0])[0]
        linear = np.clip(reds @ np.transpose(matrix), 0, 1)
        hue = tf.image.rgb_to_hsv(linear).numpy()[0, 0, 0, 0]
        off = (hue - turns + 0.5) % 1.0 - 0.5
        assert abs(off) < 0.09


def test_linear_jitter_with_gray_equals_jitter_then_grayscale():
    pixels = pixel_patches(20, 16)
    # So weak that nothing is clipped.
    pixels = 0.3 + 0.4 * pixels
    plain = color.LinearColorJitter(0.125, probability=1.0)
    uniforms = prng.uniform(seeds(20), plain.streams)
    result = color.LinearColorJitter(0.125, 1.0, gray=0.5)(pixels, uniforms)
    gray = color.Grayscale(probability=0.5)
    np.testing.assert_allclose(
        result, gray(plain(pixels, uniforms), uniforms), atol=1e-6
    )
    chosen = uniforms["gray"].numpy()[:, 0] < 0.5
    assert 0 < chosen.sum() < 20
    same = np.ptp(result, axis=-1).max(axis=(1, 2)) == 0
    np.testing.assert_array_equal(same, chosen)


def test_linear_jitter_is_distributed_like_the_hsv_jitter():
    pixels = pixel_patches(400, 16)
    result = {}
    for form in (color.ColorJitter, color.LinearColorJitter):
        jitter = form(0.5, probability=1.0)
        uniforms = prng.uniform(seeds(400), jitter.streams)
        result[form] = jitter(pixels, uniforms).numpy()
    exact, linear = result.values()
    # The same draws: brightness and contrast are the same, the colours alike.
    for moment, bound in ((np.mean, 0.02), (np.std, 0.02)):
        for axis in ((0, 1, 2), (0, 1, 2, 3)):
            off = moment(exact, axis=axis) - moment(linear, axis=axis)
            assert np.abs(off).max() < bound
    luma = [
        x.mean(axis=(1, 2)) @ [0.299, 0.587, 0.114] for x in result.values()
    ]
    assert np.corrcoef(*luma)[0, 1] > 0.98
    colourfulness = [
        np.ptp(x, axis=3).mean(axis=(1, 2)) for x in result.values()
    ]
    assert np.corrcoef(*colourfulness)[0, 1] > 0.9
    hues = [tf.image.rgb_to_hsv(x).numpy()[..., 0] for x in result.values()]
    coloured = np.minimum(*(np.ptp(x, axis=3) for x in result.values())) > 0.1
    off = np.abs((hues[0] - hues[1] + 0.5) % 1.0 - 0.5)[coloured]
    assert np.median(off) < 0.03


# ---- Blur -------------------------------------------------------------------


@pytest.mark.parametrize("size", [20, 29, 64, 113, 224])
def test_blur_equals_scipy_with_a_sigma_per_image(size):
    pixels = pixel_patches(3, size).numpy()
    operation = gaussian_blur.GaussianBlur(probability=1.0)
    uniforms = prng.uniform(seeds(3), operation.streams)
    ours = operation(tf.constant(pixels), uniforms).numpy()
    sigmas = 0.1 + 1.9 * uniforms["blur"].numpy()[:, 1]
    assert len(set(sigmas)) == 3
    for view, image, sigma in zip(ours, pixels, sigmas, strict=True):
        oracle = scipy.ndimage.gaussian_filter(
            image,
            [sigma, sigma, 0],
            mode="mirror",
            radius=[size // 10 // 2] * 2 + [0],
        )
        np.testing.assert_allclose(view, oracle, atol=2e-6)


def test_blur_keeps_a_constant_image():
    pixels = tf.fill([4, 96, 96, 3], 0.7)
    operation = gaussian_blur.GaussianBlur(probability=1.0)
    uniforms = prng.uniform(seeds(4), operation.streams)
    np.testing.assert_allclose(operation(pixels, uniforms), 0.7, atol=1e-6)


def test_half_of_the_views_are_blurred_with_uniform_sigmas():
    operation = gaussian_blur.GaussianBlur()
    uniforms = prng.uniform(seeds(DRAWS), operation.streams)["blur"]
    kernel = operation.weights(uniforms, 11).numpy()
    blurred = kernel[:, 1] > 0
    assert within(blurred.mean(), 0.5)
    ratio = kernel[blurred, 1] / kernel[blurred, 0]
    sigma = np.sqrt(-0.5 / np.log(ratio))
    fractions = (sigma - 0.1) / 1.9
    assert scipy.stats.kstest(fractions, "uniform").pvalue > 1e-3


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


def test_pytorch_jitter_has_its_probability_and_all_orders():
    pixels = tf.tile(tf.constant([[[[0.3, 0.5, 0.6]]]]), [DRAWS, 2, 2, 1])
    jitter = color.PyTorchColorJitter(1.0)
    uniforms = uniforms_of(jitter, DRAWS)
    result = jitter(pixels, uniforms)
    same = np.all(result == pixels, axis=(1, 2, 3))
    assert within(1 - same.mean(), 0.8)
    order = np.floor(uniforms["jitter_order"].numpy()[:, 0] * 24)
    counts = np.bincount(order.astype(int), minlength=24)
    assert all(within(count / DRAWS, 1 / 24) for count in counts)


# ---- Warp -------------------------------------------------------------------


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("size", [32, 97])
def test_warp_equals_tensorflow_addons(size, static):
    addons = pytest.importorskip("tensorflow_addons.image")
    pixels = pixel_patches(4, size)
    operation = warp.Warp(1.0)
    uniforms = uniforms_of(operation, 4)
    result = operation(pixels, uniforms, static)
    points = np.array(
        [[i * size / 3, j * size / 3] for i in (1, 2) for j in (1, 2)]
    )
    points = np.repeat(points[np.newaxis], 4, axis=0)
    shifts = operation.displacements(
        tf.cast(uniforms["warp"], tf.float64), size
    )
    oracle, _ = addons.sparse_image_warp(
        tf.cast(pixels, tf.float64), points, points + shifts
    )
    # The spline is interpolated, which costs most beside the four points.
    off = np.abs(result.numpy() - oracle)
    assert off.max() < 1.5 / 255
    assert off.mean() < 2e-5
    assert np.abs(result - pixels).mean() > 0.004


def test_displacements_have_the_published_lengths():
    operation = warp.Warp(0.5)
    uniforms = uniforms_of(operation, DRAWS)["warp"]
    for size in (32, 224):
        length = uniforms[:, 1].numpy() * 23 * size / 224
        shifts = operation.displacements(uniforms, size).numpy()
        normal = shifts / length[:, np.newaxis, np.newaxis]
        assert scipy.stats.kstest(normal.ravel(), "norm").pvalue > 1e-3
        correlation = np.corrcoef(normal.reshape(DRAWS, 8).T) - np.eye(8)
        assert np.abs(correlation).max() < 4.5 / np.sqrt(DRAWS)
    assert scipy.stats.kstest(length / 23, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("static", [False, True])
def test_warp_has_its_probability(static):
    image = np.random.default_rng(0).random((1, 4, 4, 3), np.float32)
    pixels = tf.constant(np.repeat(image, DRAWS, axis=0))
    for fraction in (0.0, 0.3):
        operation = warp.Warp(fraction)
        result = operation(pixels, uniforms_of(operation, DRAWS), static)
        changed = np.any(result != pixels, axis=(1, 2, 3)).mean()
        assert within(changed, fraction)


# ---- Ablations --------------------------------------------------------------


def test_rotations_are_quarter_turns():
    pixels = pixel_patches(40, 16)
    operation = ablation.Rotate()
    uniforms = uniforms_of(operation, 40)
    turns = np.floor(uniforms["rotate"].numpy()[:, 0] * 4).astype(int)
    assert set(turns) == {0, 1, 2, 3}
    result = operation(pixels, uniforms)
    for view, image, turn in zip(result, pixels, turns, strict=True):
        np.testing.assert_array_equal(view, np.rot90(image, turn))
    many = uniforms_of(operation, DRAWS)["rotate"].numpy()[:, 0]
    counts = np.bincount((many * 4).astype(int))
    assert all(within(count / DRAWS, 1 / 4) for count in counts)


@pytest.mark.parametrize("static", [False, True])
def test_a_second_crop_equals_slicing_and_tf_image_resize(static):
    pixels = pixel_patches(30, 24)
    operation = ablation.SecondCrop(min_area=0.1)
    uniforms = uniforms_of(operation, 30)
    boxes = crops.random_boxes(uniforms["second_crop"], 24, 24, 0.1)
    result = operation(pixels, uniforms, static)
    for view, image, box in zip(result, pixels, boxes, strict=True):
        top, left, height, width = box.numpy().astype(int)
        part = image[top : top + height, left : left + width]
        expected = tf.image.resize(part, [24, 24])
        np.testing.assert_allclose(view, expected, atol=1e-5)
    # It is not the crop that the view got before.
    first = prng.uniform(seeds(30), crops.RandomCrop.streams)["crop"]
    assert not np.any(first == uniforms["second_crop"])


def test_a_crop_pair_crops_then_changes_one_branch():
    images = image_helpers.patches(6, 40)
    policy = views.build("ablation:crop+solarize", image_size=32)
    result = views.Views(policy, 2)(images, seeds(6))
    identity = views.build("crop", image_size=32, flip=False)
    cropped = views.Views(identity, 2)(images, seeds(6))
    np.testing.assert_array_equal(result[:, 1], cropped[:, 1])
    operation = ablation.SecondCrop(0.08)
    folded = prng.fold(seeds(6), 2)[:, 0]
    uniforms = prng.uniform(folded, operation.streams)
    expected = ablation.SOLARIZE(operation(cropped[:, 0], uniforms), {})
    np.testing.assert_array_equal(result[:, 0], expected)


def test_simclr_with_a_further_operation():
    generator = np.random.default_rng(0)
    pixels = generator.uniform(size=[DRAWS // 10, 8, 8, 3])
    pixels, keys = tf.constant(pixels, tf.float32), seeds(DRAWS // 10)
    options = {"image_size": 8, "color_jitter_strength": 0.25}
    base = views.build("simclr", **options).photometric(pixels, keys)
    kinds = {"rotate": 3 / 4, "sobel": 1 / 2, "noise": 1 / 2}
    for name, fraction in kinds.items():
        policy = views.build(f"simclr+{name}", **options)
        result = policy.photometric(pixels, keys)
        changed = np.any(result != base, axis=(1, 2, 3))
        assert within(changed.mean(), fraction, DRAWS // 10), name
        if name == "sobel":
            np.testing.assert_array_equal(
                result[changed], ablation.sobel(base[changed])
            )


def test_simaugment_can_rotate():
    pixels, keys = pixel_patches(60, 16), seeds(60)
    options = {"color_jitter_strength": 0.0, "blur": False}
    options["warp_probability"] = 0.0
    for name in ("simaugment", "stacked_randaugment"):
        policy = views.build(name, image_size=16, rotate=True, **options)
        plain = views.build(name, image_size=16, **options)
        turned = ablation.Rotate()
        turned = turned(pixels, prng.uniform(keys, turned.streams))
        np.testing.assert_array_equal(
            policy.photometric(pixels, keys), plain.photometric(turned, keys)
        )


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
    for view, fraction in zip(
        result, uniforms["motion_blur"].numpy(), strict=True
    ):
        rows, columns = np.nonzero(view[..., 0])
        angle = np.pi * fraction[0]
        down, right = np.sin(angle), np.cos(angle)
        np.testing.assert_allclose(
            [np.ptp(rows), np.ptp(columns)],
            [2 * round(3 * abs(down)), 2 * round(3 * abs(right))],
        )
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
    cropped = views.Views(identity, 3)(images, seeds(6))
    changed = np.any(result != cropped, axis=(2, 3, 4))
    expected = [True, branch == "both", branch == "both"]
    np.testing.assert_array_equal(changed, [expected] * 6)
    flat = tf.reshape(cropped, [-1, 32, 32, 3])
    both = ablation.SOBEL(ablation.SOLARIZE(flat, {}), {})
    np.testing.assert_array_equal(
        result[:, 0], tf.reshape(both, result.shape)[:, 0]
    )


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
