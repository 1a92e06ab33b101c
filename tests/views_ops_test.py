"""Operations of the augmentation policies, each against an oracle."""

import colorsys
import itertools
import re

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_images
from tensorflow_addons.image import sparse_image_warp

from tf_contrastive import errors, views
from tf_contrastive.config.views import (
    ABLATION_BRANCHES,
    ABLATIONS,
    AUGMENTATIONS,
    COLOR_JITTER_STYLES,
    Views,
)
from tf_contrastive.views import (
    ablation,
    autoaugment,
    color,
    geometry,
    pillow,
    prng,
    warp,
)

DRAWS = 10_000
# Every policy that changes more than the crop.
POLICIES = [
    *[n for n in AUGMENTATIONS if n not in ("crop", "none")],
    *[f"ablation:{name}" for name in ABLATIONS],
    "ablation:cutout+blur",
]


@pytest.fixture(scope="module")
def photos() -> np.ndarray:
    """Squares of two real photographs, uint8 [2, 427, 427, 3]."""
    return np.stack([i[:, 100:527] for i in load_sample_images().images])


def seeds(count: int, seed: int = 0) -> tf.Tensor:
    generator = np.random.default_rng(seed)
    words = generator.integers(-(2**31), 2**31, (count, 2))
    return tf.constant(words, tf.int32)


def patches(photos: np.ndarray, count: int, side: int) -> np.ndarray:
    """Pieces of the photographs, uint8 [count, side, side, 3]."""
    generator = np.random.default_rng(1)
    places = generator.integers(0, 427 - side, (count, 2))
    return np.stack(
        [
            photos[i % 2, top : top + side, left : left + side]
            for i, (top, left) in enumerate(places)
        ]
    )


def within(share: float, expected: float, count: int = DRAWS) -> bool:
    """Whether a share is within three standard errors of its expectation."""
    error = np.sqrt(expected * (1 - expected) / count)
    return abs(share - expected) <= 3 * error


def as_levels(images: np.ndarray) -> tf.Tensor:
    return pillow.as_rows(tf.constant(images, tf.float32))


def unit_of(operation, count: int) -> dict[str, tf.Tensor]:
    return prng.uniform(seeds(count), operation.streams)


# ---- Pillow -----------------------------------------------------------------


def transformed(matrix):
    def oracle(image: Image.Image) -> Image.Image:
        return image.transform(
            image.size, Image.Transform.AFFINE, matrix, fillcolor=(128,) * 3
        )

    return oracle


def rotated(degrees: float):
    return lambda image: image.rotate(degrees, fillcolor=(128,) * 3)


def moved(kind: str, *arguments: float):
    def ours(rows: tf.Tensor, static: bool) -> tf.Tensor:
        del static
        number = geometry.TRANSFORMS.index(kind)
        matrix = geometry.matrices(
            tf.fill([2], number), tf.constant(arguments), rows.shape[1]
        )
        pixels = pillow.as_pixels(rows)
        return pillow.as_rows(geometry.affine(pixels, matrix, pillow.FILL))

    return ours


def plain(operation, *arguments: float):
    """Ours with an argument per photograph, where it takes one."""
    values = [np.array(arguments, np.float32)] if arguments else []
    return lambda pixels, static: operation(pixels, *values)


def either(operation, *arguments: float):
    """Ours where it has a form of its own for devices."""
    values = [np.array(arguments, np.float32)] if arguments else []
    return lambda pixels, static: operation(pixels, *values, static)


def enhanced(kind, factor: float):
    return lambda image: kind(image).enhance(factor)


# Name, ours with another argument for either photograph, Pillow for each.
CASES = [
    ("autocontrast", plain(pillow.autocontrast), [ImageOps.autocontrast] * 2),
    ("equalize", plain(pillow.equalize), [ImageOps.equalize] * 2),
    ("invert", plain(pillow.invert), [ImageOps.invert] * 2),
]
for factors in [(0.1, 1.9), (0.46, 1.0), (1.36, 0.0)]:
    for name, make, kind in [
        ("color", either(pillow.color, *factors), ImageEnhance.Color),
        ("contrast", either(pillow.contrast, *factors), ImageEnhance.Contrast),
        (
            "brightness",
            plain(pillow.brightness, *factors),
            ImageEnhance.Brightness,
        ),
        (
            "sharpness",
            plain(pillow.sharpness, *factors),
            ImageEnhance.Sharpness,
        ),
    ]:
        oracles = [enhanced(kind, factor) for factor in factors]
        CASES.append((f"{name} {factors}", make, oracles))
for bits in [(1, 4), (2, 8), (0, 3)]:
    oracles = [lambda i, b=b: ImageOps.posterize(i, b) for b in bits]
    CASES.append((f"posterize {bits}", plain(pillow.posterize, *bits), oracles))
for thresholds in [(0, 256), (76, 128)]:
    oracles = [lambda i, t=t: ImageOps.solarize(i, t) for t in thresholds]
    CASES.append(
        (f"solarize {thresholds}", plain(pillow.solarize, *thresholds), oracles)
    )
for additions in [(33, 110)]:
    oracles = [
        lambda i, a=a: i.point(
            [min(x + a, 255) if x < 128 else x for x in range(256)] * 3
        )
        for a in additions
    ]
    CASES.append(
        (
            f"solarize_add {additions}",
            plain(pillow.solarize_add, *additions),
            oracles,
        )
    )
for slopes in [(0.3, -0.3), (0.12, 0.0)]:
    CASES.append(
        (
            f"shear_x {slopes}",
            moved("shear_x", *slopes),
            [transformed((1, s, 0, 0, 1, 0)) for s in slopes],
        )
    )
    CASES.append(
        (
            f"shear_y {slopes}",
            moved("shear_y", *slopes),
            [transformed((1, 0, 0, s, 1, 0)) for s in slopes],
        )
    )
for lengths in [(100.0, -37.0), (-500.0, 13.4)]:
    CASES.append(
        (
            f"translate_x {lengths}",
            moved("translate_x", *lengths),
            [transformed((1, 0, p, 0, 1, 0)) for p in lengths],
        )
    )
    CASES.append(
        (
            f"translate_y {lengths}",
            moved("translate_y", *lengths),
            [transformed((1, 0, 0, 0, 1, p)) for p in lengths],
        )
    )
for angles in [(30.0, -21.0), (6.0, 0.0), (90.0, -15.0)]:
    CASES.append(
        (
            f"rotate {angles}",
            moved("rotate", *angles),
            [rotated(a) for a in angles],
        )
    )


@pytest.mark.parametrize("size", [427, 32])
@pytest.mark.parametrize(
    ("ours", "oracles"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_operations_equal_pillow_with_an_argument_per_view(
    photos, ours, oracles, size
):
    images = photos[:, -size:, -size:]
    made = pillow.as_pixels(ours(as_levels(images), False)).numpy()
    for view, image, oracle in zip(made, images, oracles, strict=True):
        expected = np.asarray(oracle(Image.fromarray(image)), np.float32)
        off = np.abs(view - expected)
        assert np.mean(off <= 1) >= 0.99
        assert off.mean() < 0.05
    assert (made == np.round(made)).all()
    assert made.min() >= 0 and made.max() <= 255


@pytest.mark.parametrize(
    ("ours", "oracles"),
    [c[1:] for c in CASES if re.match("color|contrast", c[0])],
    ids=[c[0] for c in CASES if re.match("color|contrast", c[0])],
)
def test_forms_for_devices_equal_pillow(photos, ours, oracles):
    images = photos[:, -64:, -64:]
    made = pillow.as_pixels(ours(as_levels(images), True)).numpy()
    for view, image, oracle in zip(made, images, oracles, strict=True):
        expected = np.asarray(oracle(Image.fromarray(image)), np.float32)
        assert np.mean(np.abs(view - expected) <= 1) >= 0.99


@pytest.mark.parametrize("level", [0, 7, 255])
def test_plain_images_stay_plain_when_equalized_or_stretched(level):
    pixels = tf.fill([1, 8, 24], float(level))
    np.testing.assert_array_equal(pillow.equalize(pixels), pixels)
    np.testing.assert_array_equal(pillow.autocontrast(pixels), pixels)


def test_equalize_of_few_pixels_equals_pillow():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (50, 17, 17, 3), dtype=np.uint8)
    made = pillow.as_pixels(pillow.equalize(as_levels(images)))
    for view, image in zip(made, images, strict=True):
        oracle = ImageOps.equalize(Image.fromarray(image))
        np.testing.assert_array_equal(view, oracle)


def test_cutout_hides_a_square_as_far_as_it_is_inside():
    made = pillow.cutout(
        tf.zeros([3, 10, 30]),
        tf.constant([2.0, 3.0, 0.0]),
        tf.constant([5.0, 0.0, 4.0]),
        tf.constant([4.0, 9.0, 4.0]),
    )
    expected = np.zeros([3, 10, 10, 3])
    expected[0, 3:7, 2:6] = 128
    expected[1, :3, 6:] = 128
    np.testing.assert_array_equal(pillow.as_pixels(made), expected)


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


def test_the_sub_policies_are_the_published_ones():
    parsed = tuple(
        tuple(
            (name, float(share), int(level))
            for name, share, level in re.findall(
                r"\((\w+),([\d.]+),(\d+)\)", pair
            )
        )
        for pair in PUBLISHED.split("|")
    )
    assert len(parsed) == 25
    assert parsed == autoaugment.IMAGENET_POLICY


@pytest.mark.parametrize(
    ("name", "level", "expected"),
    [
        ("Rotate", 10, 30.0),
        ("Rotate", 7, 21.0),
        ("Posterize", 10, 4),
        ("Posterize", 6, 2),
        ("Posterize", 2, 1),
        ("Solarize", 3, 76),
        ("Solarize", 10, 256),
        ("SolarizeAdd", 3, 33),
        ("SolarizeAdd", 10, 110),
        ("Color", 0, 0.1),
        ("Color", 9, 1.72),
        ("Contrast", 10, 1.9),
        ("Brightness", 5, 1.0),
        ("Sharpness", 1, 0.28),
        ("ShearX", 10, 0.3),
        ("ShearY", 4, 0.12),
        ("TranslateX", 10, 100.0),
        ("TranslateY", 5, 50.0),
        ("Cutout", 10, 40),
        ("Cutout", 3, 12),
    ],
)
def test_levels_have_the_published_arguments(name, level, expected):
    given = autoaugment.argument(
        name, level, size=224, translation=100, cutout=40
    )
    assert given == pytest.approx(expected)


def test_lengths_scale_with_the_side():
    for name, expected in [("TranslateX", 250 / 7), ("Cutout", 14)]:
        given = autoaugment.argument(name, 10, 32, 250, 100)
        assert given == pytest.approx(expected)


def test_randaugment_draws_every_operation_equally_often():
    operation = autoaugment.RandAugment(layers=2)
    choices = operation.choices(unit_of(operation, DRAWS)).numpy()
    assert choices.shape == (DRAWS, 2)
    for layer in choices.T:
        counts = np.bincount(layer, minlength=16)
        assert len(counts) == 16
        assert scipy.stats.chisquare(counts).pvalue > 1e-3
        assert all(within(count / DRAWS, 1 / 16) for count in counts)
    # Layers are independent.
    pairs = np.bincount(16 * choices[:, 0] + choices[:, 1], minlength=256)
    assert scipy.stats.chisquare(pairs).pvalue > 1e-3


def test_autoaugment_draws_pairs_and_operations_as_published():
    operation = autoaugment.AutoAugment()
    pair, which = operation.choices(unit_of(operation, DRAWS))
    pair, which = pair.numpy(), which.numpy()
    counts = np.bincount(pair, minlength=25)
    assert len(counts) == 25 and all(within(c / DRAWS, 1 / 25) for c in counts)
    for number, steps in enumerate(autoaugment.IMAGENET_POLICY):
        chosen = which[pair == number]
        for step, (name, share, _) in enumerate(steps):
            expected = autoaugment.OPERATIONS.index(name)
            assert set(chosen[:, step]) <= {expected, -1}
            happened = np.mean(chosen[:, step] == expected)
            assert within(happened, share, len(chosen))


def test_operations_happen_as_often_over_whole_views():
    # Told apart by what they do to an image of four colours.
    side = 20
    image = np.zeros((side, side, 3), np.uint8)
    image[:10, :10], image[:10, 10:] = (200, 90, 40), (60, 120, 180)
    image[10:, :10], image[10:, 10:] = (100, 140, 70), (40, 50, 220)
    pixels = np.repeat(image[np.newaxis] / np.float32(255), DRAWS, axis=0)
    operation = autoaugment.RandAugment(layers=1, magnitude=5.0)
    made = operation(tf.constant(pixels), unit_of(operation, DRAWS)).numpy()
    made = np.round(made * 255)
    for name, oracle in [
        ("invert", ImageOps.invert),
        ("equalize", ImageOps.equalize),
        ("posterize", lambda i: ImageOps.posterize(i, 2)),
        ("solarize", lambda i: ImageOps.solarize(i, 128)),
        ("autocontrast", ImageOps.autocontrast),
    ]:
        expected = np.asarray(oracle(Image.fromarray(image)))
        assert not np.array_equal(expected, image), name
        happened = np.abs(made - expected).max(axis=(1, 2, 3)) <= 1
        assert within(happened.mean(), 1 / 16), name
    # Brightness, colour, contrast and sharpness have a factor of 1 at 5.
    same = np.abs(made - image).max(axis=(1, 2, 3)) == 0
    assert within(same.mean(), 4 / 16)
    # Translations by 50 pixels of 224, of either sign.
    fill = np.all(made == 128, axis=-1)
    band = fill.sum(axis=(1, 2)) == side * round(50 * side / 224)
    for edge in (fill[:, 0], fill[:, -1], fill[:, :, 0], fill[:, :, -1]):
        assert within((band & edge.all(axis=1)).mean(), 1 / 32)


def test_magnitude_and_layers_change_views(photos):
    images = patches(photos, 200, 32)
    plain = views.build("crop", image_size=32).batch(images, seeds(200))
    changed = {}
    for layers, magnitude in [(1, 2.0), (1, 10.0), (3, 10.0)]:
        policy = views.build(
            "randaugment",
            image_size=32,
            randaugment_layers=layers,
            randaugment_magnitude=magnitude,
        )
        made = policy.batch(images, seeds(200))
        changed[layers, magnitude] = np.abs(made - plain).mean()
    assert changed[1, 2.0] < changed[1, 10.0] < changed[3, 10.0]


def test_stacked_randaugment_has_both_orders(photos):
    pixels = tf.constant(patches(photos, 20, 32) / np.float32(255))
    options = {"warp_probability": 0.0, "blur": False}
    random = autoaugment.RandAugment()
    jitter, gray = color.PyTorchColorJitter(1.0), color.Grayscale()
    streams = {**random.streams, **jitter.streams, **gray.streams}
    unit = prng.uniform(seeds(20), streams)
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
            expected = step(expected, unit)
        np.testing.assert_allclose(
            policy.photometric(pixels, seeds(20)),
            gray(expected, unit),
            atol=1e-6,
        )


def test_broader_adds_operations_to_a_share_of_the_views_each(photos):
    count = 500
    pixels = tf.constant(patches(photos, count, 16) / np.float32(255))
    options = {"image_size": 16, "blur": False}
    made = views.build("broader", **options).photometric(pixels, seeds(count))
    own = prng.uniform(seeds(count), {"sometimes": 4, "motion_blur": 1})
    chosen = own["sometimes"].numpy() < views.BROADER_SHARE
    for share in chosen.mean(axis=0):
        assert within(share, views.BROADER_SHARE, count)
    expected = views.build("simclr", **options).photometric(
        pixels, seeds(count)
    )
    for operation, acts in zip(
        (
            ablation.Equalize(),
            ablation.Solarize(),
            ablation.Sobel(),
            ablation.MotionBlur(),
        ),
        chosen.T,
        strict=True,
    ):
        after = operation(expected, own)
        expected = tf.where(acts[:, None, None, None], after, expected)
    np.testing.assert_allclose(made, expected, atol=1e-6)


# ---- Colour jitter of torchvision -------------------------------------------


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


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("strength", [0.5, 1.0, 3.0])
def test_pytorch_jitter_equals_torchvision_s_formulas(photos, strength, static):
    images = patches(photos, 30, 12) / 255.0
    jitter = color.PyTorchColorJitter(strength, probability=1.0)
    unit = unit_of(jitter, 30)
    made = jitter(tf.constant(images, tf.float32), unit, static).numpy()
    names = ("brightness", "contrast", "saturation", "hue")
    orders = list(itertools.permutations(range(4)))
    low, high = max(0, 1 - 0.8 * strength), 1 + 0.8 * strength
    turn = min(0.2 * strength, 0.5)
    seen = set()
    for view, image, u, order in zip(
        made,
        images,
        unit["jitter"].numpy()[:, 1:],
        unit["jitter_order"].numpy()[:, 0],
        strict=True,
    ):
        values = [*(low + (high - low) * u[:3]), turn * (2 * u[3] - 1)]
        order = orders[int(order * 24)]
        seen.add(order)
        steps = [(names[k], values[k]) for k in order]
        expected = torchvision_jitter(image, steps)
        # A weakly coloured pixel's hue amplifies rounding.
        np.testing.assert_allclose(view, expected, atol=2e-3)
        assert np.abs(view - expected).mean() < 2e-5
    assert len(seen) > 12


def test_pytorch_jitter_has_its_probability_and_all_orders(photos):
    pixels = tf.tile(tf.constant([[[[0.3, 0.5, 0.6]]]]), [DRAWS, 2, 2, 1])
    jitter = color.PyTorchColorJitter(1.0)
    unit = unit_of(jitter, DRAWS)
    made = jitter(pixels, unit)
    same = np.all(made == pixels, axis=(1, 2, 3))
    assert within(1 - same.mean(), 0.8)
    order = np.floor(unit["jitter_order"].numpy()[:, 0] * 24)
    counts = np.bincount(order.astype(int), minlength=24)
    assert all(within(count / DRAWS, 1 / 24) for count in counts)


def test_the_jitter_s_style_is_an_option(photos):
    images = patches(photos, 10, 32)
    made = {
        style: views.build(
            "simclr", image_size=32, color_jitter_style=style
        ).batch(images, seeds(10))
        for style in COLOR_JITTER_STYLES
    }
    for one, other in itertools.combinations(made.values(), 2):
        assert np.abs(one - other).mean() > 0.01


# ---- Warp -------------------------------------------------------------------


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("size", [32, 97, 224])
def test_warp_equals_tensorflow_addons(photos, size, static):
    pixels = tf.constant(patches(photos, 4, size) / np.float32(255))
    operation = warp.Warp(1.0)
    unit = unit_of(operation, 4)
    made = operation(pixels, unit, static)
    points = np.array(
        [[i * size / 3, j * size / 3] for i in (1, 2) for j in (1, 2)]
    )
    points = np.repeat(points[np.newaxis], 4, axis=0)
    shifts = operation.displacements(tf.cast(unit["warp"], tf.float64), size)
    oracle, _ = sparse_image_warp(
        tf.cast(pixels, tf.float64), points, points + shifts
    )
    # The spline is interpolated, which costs most beside the four points.
    off = np.abs(made.numpy() - oracle)
    assert off.max() < 1.5 / 255
    assert off.mean() < 2e-5
    assert np.abs(made - pixels).mean() > 0.004


def test_displacements_have_the_published_lengths():
    operation = warp.Warp(0.5)
    unit = unit_of(operation, DRAWS)["warp"]
    for size in (32, 224):
        length = unit[:, 1].numpy() * 23 * size / 224
        shifts = operation.displacements(unit, size).numpy()
        normal = shifts / length[:, np.newaxis, np.newaxis]
        assert scipy.stats.kstest(normal.ravel(), "norm").pvalue > 1e-3
        correlation = np.corrcoef(normal.reshape(DRAWS, 8).T) - np.eye(8)
        assert np.abs(correlation).max() < 4.5 / np.sqrt(DRAWS)
    assert scipy.stats.kstest(length / 23, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("static", [False, True])
def test_views_are_warped_as_often_as_asked(static):
    image = np.random.default_rng(0).random((1, 4, 4, 3), np.float32)
    pixels = tf.constant(np.repeat(image, DRAWS, axis=0))
    for share in (0.0, 0.3):
        operation = warp.Warp(share)
        made = operation(pixels, unit_of(operation, DRAWS), static)
        changed = np.any(made != pixels, axis=(1, 2, 3)).mean()
        assert within(changed, share)


# ---- Ablations --------------------------------------------------------------


def test_rotations_are_quarter_turns(photos):
    pixels = patches(photos, 40, 16) / np.float32(255)
    operation = ablation.Rotate()
    unit = unit_of(operation, 40)
    turns = np.floor(unit["rotate"].numpy()[:, 0] * 4).astype(int)
    assert set(turns) == {0, 1, 2, 3}
    made = operation(tf.constant(pixels), unit)
    for view, image, turn in zip(made, pixels, turns, strict=True):
        np.testing.assert_array_equal(view, np.rot90(image, turn))
    many = unit_of(operation, DRAWS)["rotate"].numpy()[:, 0]
    counts = np.bincount((many * 4).astype(int))
    assert all(within(count / DRAWS, 1 / 4) for count in counts)


def test_cutout_hides_half_the_side(photos):
    pixels = tf.constant(patches(photos, 500, 16) / np.float32(255))
    operation = ablation.Cutout()
    made = operation(pixels, unit_of(operation, 500)).numpy()
    hidden = np.all(made == 0.5, axis=-1).sum(axis=(1, 2))
    assert hidden.max() == 64 and hidden.min() == 16
    shown = np.any(made != 0.5, axis=-1)
    np.testing.assert_array_equal(made[shown], pixels.numpy()[shown])


def test_noise_is_gaussian_with_a_level_per_view():
    pixels = tf.fill([200, 32, 32, 3], 0.5)
    operation = ablation.Noise(size=32, deviation=0.1)
    unit = unit_of(operation, 200)
    noise = operation(pixels, unit).numpy().reshape(200, -1) - 0.5
    expected = 0.1 * unit["noise"].numpy()[:, 0]
    np.testing.assert_allclose(noise.std(axis=1), expected, rtol=0.06)
    for row, deviation in zip(noise[:20], expected, strict=False):
        assert scipy.stats.kstest(row / deviation, "norm").pvalue > 1e-4
    assert np.abs(np.corrcoef(noise) - np.eye(200)).max() < 0.1


def test_sobel_equals_scipy(photos):
    pixels = patches(photos, 3, 24) / np.float32(255)
    made = ablation.Sobel()(tf.constant(pixels), {})
    for view, image in zip(made, pixels, strict=True):
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
        (ablation.Equalize(), ImageOps.equalize),
        (ablation.Solarize(), lambda i: ImageOps.solarize(i, 128)),
    ],
)
def test_ablations_of_levels_equal_pillow(photos, operation, oracle):
    images = patches(photos, 3, 64)
    made = operation(tf.constant(images / np.float32(255)), {})
    for view, image in zip(made, images, strict=True):
        expected = np.asarray(oracle(Image.fromarray(image))) / 255
        np.testing.assert_allclose(view, expected, atol=1e-6)


def test_motion_blur_averages_along_a_line():
    # Of one white pixel it makes a line through its place.
    pixels = np.zeros((60, 64, 64, 3), np.float32)
    pixels[:, 32, 32] = 1.0
    operation = ablation.MotionBlur()
    unit = unit_of(operation, 60)
    made = operation(tf.constant(pixels), unit).numpy()
    np.testing.assert_allclose(made.sum(axis=(1, 2)), 1.0, atol=1e-6)
    for view, share in zip(made, unit["motion_blur"].numpy(), strict=True):
        rows, columns = np.nonzero(view[..., 0])
        angle = np.pi * share[0]
        down, right = np.sin(angle), np.cos(angle)
        np.testing.assert_allclose(
            [np.ptp(rows), np.ptp(columns)],
            [2 * round(3 * abs(down)), 2 * round(3 * abs(right))],
        )
        across = down * (columns - 32) - right * (rows - 32)
        assert np.abs(across).max() <= 0.75
    even = operation(tf.fill([60, 64, 64, 3], 0.4), unit)
    np.testing.assert_allclose(even, 0.4, atol=1e-6)


@pytest.mark.parametrize("branch", ABLATION_BRANCHES)
def test_an_ablation_changes_one_branch_or_both(photos, branch):
    images = patches(photos, 6, 40)
    policy = views.build(
        "ablation:solarize+sobel", image_size=32, ablation_branch=branch
    )
    made = views.views(policy, 3)(images, seeds(6))
    identity = views.build("crop", image_size=32, flip=False)
    cropped = views.views(identity, 3)(images, seeds(6))
    changed = np.any(made != cropped, axis=(2, 3, 4))
    expected = [True, branch == "both", branch == "both"]
    np.testing.assert_array_equal(changed, [expected] * 6)
    flat = tf.reshape(cropped, [-1, 32, 32, 3])
    both = ablation.Sobel()(ablation.Solarize()(flat, {}), {})
    np.testing.assert_array_equal(
        made[:, 0], tf.reshape(both, made.shape)[:, 0]
    )


def test_an_ablation_of_one_branch_needs_to_know_the_view(photos):
    policy = views.build("ablation:sobel", image_size=16)
    pixels = tf.constant(patches(photos, 2, 16) / np.float32(255))
    with pytest.raises(ValueError, match="pass view="):
        policy.photometric(pixels, seeds(2))


# ---- Every policy -----------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_framing_and_colours_apart_make_the_same_views(photos, name):
    images, keys = patches(photos, 6, 48), seeds(12)
    owners = tf.repeat(tf.range(6), 2)
    view = tf.tile([0, 1], [6])
    policy = views.build(name, image_size=33)
    whole = policy.views_of(images, owners, keys, view)
    # Framed image by image, coloured as a batch.
    framed = [
        policy.frame(images[i][np.newaxis], [0, 0], keys[2 * i : 2 * i + 2])
        for i in range(6)
    ]
    apart = policy.photometric(tf.concat(framed, axis=0), keys, view=view)
    np.testing.assert_array_equal(apart, whole)


@pytest.mark.parametrize("name", POLICIES)
def test_views_are_equal_alone_in_batches_and_in_tf_data(photos, name):
    images, keys = patches(photos, 14, 40), seeds(14)
    policy = views.build(name, image_size=33)
    make_views = views.views(policy, 2)
    eager = make_views(images, keys).numpy()
    assert eager.shape == (14, 2, 33, 33, 3) and eager.dtype == np.float32
    assert eager.min() >= 0.0 and eager.max() <= 1.0
    data = tf.data.Dataset.from_tensor_slices((images, keys))
    batches = data.batch(3).map(make_views, 4)
    made = np.concatenate(list(batches.as_numpy_iterator()))
    np.testing.assert_array_equal(made, eager)
    of_view, some = prng.fold(keys, 1)[:, 0], (0, 4, 7, 13)
    alone = [policy(images[i], of_view[i]) for i in some]
    np.testing.assert_array_equal(alone, eager[some, 0])


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in POLICIES]
    + [
        ("simclr", {"color_jitter_style": "pytorch"}),
        ("simclr", {"color_jitter_style": "linear"}),
    ],
)
def test_forms_for_devices_compile_and_make_the_same_views(
    photos, name, options
):
    count = 48
    pixels = tf.constant(patches(photos, count, 32) / np.float32(255))
    policy = views.build(name, image_size=32, **options)

    @tf.function(jit_compile=True, autograph=False)
    def compiled(pixels, keys):
        return policy.photometric(
            pixels, keys, static=True, view=tf.zeros([count], tf.int32)
        )

    host = policy.photometric(
        pixels, seeds(count), view=tf.zeros([count], tf.int32)
    )
    off = np.abs(compiled(pixels, seeds(count)) - host)
    # Where rounding decides between two levels, what follows (a table, a
    # threshold, the nearest pixel) may decide otherwise.
    assert np.mean(off < 1.01 / 255) > 0.995
    assert off.mean() < 5e-4


def test_views_are_equal_in_groups_that_fit_in_the_cache(photos):
    # Ten views of 224 pixels are coloured in two groups.
    images, keys = patches(photos, 10, 200), seeds(10)
    policy = views.build("stacked_randaugment", image_size=224)
    made = policy.batch(images, keys).numpy()
    for i in (0, 7, 8, 9):
        np.testing.assert_array_equal(policy(images[i], keys[i]), made[i])


def test_the_options_of_a_run_are_those_of_build():
    run = Views(flip=False, randaugment_layers=3)
    policy = views.build("randaugment", image_size=32, **run.options())
    again = views.build(
        "randaugment", image_size=32, flip=False, randaugment_layers=3
    )
    assert policy == again
    assert policy != views.build("randaugment", image_size=32)


# ---- Bad input --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        (
            "autoaugmnt",
            {},
            "augmentation=autoaugmnt: must be one of simclr, simaugment,"
            r".* \(did you mean autoaugment\?\)",
        ),
        (
            "ablation:bluur",
            {},
            r"ablation:OP\[\+OP\] with each operation once, out of rotate, .*"
            r"\(did you mean blur\?\)",
        ),
        ("ablation:blur+blur", {}, "each operation once"),
        ("ablation", {}, "ablation:OP"),
        ("simclr", {"blurr": True}, "unknown option of views 'blurr': did you"),
        (
            "simclr",
            {"color_jitter_style": "torch"},
            "color_jitter_style=torch: must be one of tensorflow, pytorch,",
        ),
        (
            "randaugment",
            {"randaugment_layers": 0},
            "randaugment_layers=0: must be at least 1",
        ),
        (
            "randaugment",
            {"randaugment_magnitude": 31.0},
            "randaugment_magnitude=31.0: must be at least 0 and at most 30",
        ),
        (
            "simaugment",
            {"warp_probability": 1.5},
            "warp_probability=1.5: must be at least 0 and at most 1",
        ),
    ],
)
def test_mistakes_get_one_line(name, options, told):
    with pytest.raises(errors.UserError, match=told):
        views.build(name, image_size=32, **options)


def test_ablations_are_those_of_the_flag():
    assert tuple(views.ABLATIONS) == ABLATIONS


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
