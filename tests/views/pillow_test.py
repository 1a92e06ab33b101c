"""Pillow's operations on tensors, against Pillow."""

import itertools

import image_helpers
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from tf_contrastive.views import affine, pillow


def as_levels(images: np.ndarray) -> tf.Tensor:
    return pillow.as_rows(tf.constant(images, tf.float32))


def moved(kind):
    def ours(rows, arguments):
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
    make = getattr(ImageEnhance, kind)
    return lambda image, factor: make(image).enhance(factor)


def solarize_add(image, addition):
    table = [min(x + addition, 255) if x < 128 else x for x in range(256)]
    return image.point(table * 3)


# Our operation (rows, an argument per view), Pillow's (image, argument), pairs
# of arguments for the two photographs.
FACTORS = [(0.1, 1.9), (1.36, 0.0)]
SHEARS = [(0.3, -0.12)]
SHIFTS = [(100.0, -37.0), (-500.0, 13.4)]
TURNS = [(30.0, -21.0), (6.0, 0.0), (90.0, -15.0)]
BITS, LEVELS = [(1, 4), (2, 8), (0, 3)], [(0, 256), (76, 128)]

PILLOW = {
    name: (lambda x, a, f=ours: f(x), lambda i, a, f=oracle: f(i), [(0, 0)])
    for name, ours, oracle in (
        ("autocontrast", pillow.autocontrast, ImageOps.autocontrast),
        ("equalize", pillow.equalize, ImageOps.equalize),
        ("invert", pillow.invert, ImageOps.invert),
    )
} | {
    "color": (pillow.color, enhanced("Color"), FACTORS),
    "contrast": (pillow.contrast, enhanced("Contrast"), FACTORS),
    "brightness": (pillow.brightness, enhanced("Brightness"), FACTORS),
    "sharpness": (pillow.sharpness, enhanced("Sharpness"), FACTORS),
    "posterize": (pillow.posterize, ImageOps.posterize, BITS),
    "solarize": (pillow.solarize, ImageOps.solarize, LEVELS),
    "solarize_add": (pillow.solarize_add, solarize_add, [(33, 110)]),
    **{
        name: (moved(name), transformed(matrix), arguments)
        for name, matrix, arguments in (
            ("ShearX", lambda a: (1, a, 0, 0, 1, 0), SHEARS),
            ("ShearY", lambda a: (1, 0, 0, a, 1, 0), SHEARS),
            ("TranslateX", lambda a: (1, 0, a, 0, 1, 0), SHIFTS),
            ("TranslateY", lambda a: (1, 0, 0, 0, 1, a), SHIFTS),
        )
    },
    "Rotate": (
        moved("Rotate"),
        lambda i, a: i.rotate(a, fillcolor=(128,) * 3),
        TURNS,
    ),
}


@pytest.mark.parametrize("name", PILLOW)
def test_operations_equal_pillow_with_an_argument_per_view(name):
    ours, oracle, pairs = PILLOW[name]
    forms = [False, True] if name in ("color", "contrast") else [False]
    for size, arguments, static in itertools.product((427, 32), pairs, forms):
        images = image_helpers.photos()[:, -size:, -size:]
        values = np.array(arguments, np.float32)
        options = {"static": True} if static else {}
        rows = ours(as_levels(images), values, **options)
        rows = pillow.as_pixels(rows).numpy()
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
