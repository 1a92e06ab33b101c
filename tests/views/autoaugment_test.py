"""AutoAugment and RandAugment, as published."""

import re

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import tensorflow as tf
from image_helpers import DRAWS, pixel_patches, uniforms_of, within

from tf_contrastive.views import autoaugment

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
    form = r"\((\w+),([\d.]+),(\d+)\)"
    parsed = tuple(
        tuple((name, float(p), int(n)) for name, p, n in re.findall(form, pair))
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
        "Sharpness": {1: 0.28},
        "ShearY": {4: 0.12},
        "TranslateY": {5: 50.0},
        "Cutout": {10: 40, 3: 12},
    }.items():
        for level, expected in levels.items():
            value = autoaugment.arguments(level, 224, 100, 40)[name]
            assert value == pytest.approx(expected), (name, level)


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


@pytest.mark.parametrize(
    ("operation", "name", "filled"),
    [
        # Level 9 of 250 pixels of 224 is beyond the view.
        (autoaugment.AutoAugment(), "TranslateY", 56 * 56),
        # 100 pixels, and a square of twice 40.
        (autoaugment.RandAugment(1, 10.0), "TranslateY", 25 * 56),
        (autoaugment.RandAugment(1, 10.0), "Cutout", 20 * 20),
    ],
)
def test_lengths_are_the_published_ones(operation, name, filled):
    uniforms = uniforms_of(operation, 500)
    result = operation(pixel_patches(500, 56), uniforms).numpy()
    # Of AutoAugment, the second of two operations.
    *_, choices = tf.nest.flatten(operation.choices(uniforms))
    chosen = choices[:, -1] == autoaugment.OPERATIONS.index(name)
    fill = np.all(np.round(result[chosen] * 255) == 128, -1)
    areas = fill.sum(axis=(1, 2))
    # A pixel may have been grey, and a cutout may reach beyond the view.
    assert len(areas) > 10
    assert filled <= areas.max() <= filled + 3
    if name != "Cutout":
        assert filled <= areas.min()
        # Of either sign.
        assert fill[:, 0].all(1).any() and fill[:, -1].all(1).any()
