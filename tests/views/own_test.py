"""Views of your own: functions and Keras layers, of crops or whole images."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import distribution, views
from tf_contrastive.base import errors

_SIZE = 8
_RNG = np.random.default_rng(0)
_IMAGES = _RNG.integers(0, 256, [5, 12, 10, 3], np.uint8)
_SEEDS = _RNG.integers(0, 2**31, [5, 2]).astype(np.int32)


def _brighter(image, seed, delta=0.5):
    return tf.image.stateless_random_brightness(image, delta, seed)


def _corner(image, side=_SIZE):
    return image[:side, :side]


def _in_graph(part, **options):
    policy = views.build(part, image_size=_SIZE, flip=False, **options)
    data = tf.data.Dataset.from_tensors((_IMAGES, _SEEDS)).map(policy.batch)
    return next(iter(data)).numpy()


def test_a_view_depends_on_its_seed_alone():
    policy = views.build(_brighter, image_size=_SIZE, delta=0.4, flip=False)
    found = policy.batch(_IMAGES, _SEEDS).numpy()
    again = policy.batch(_IMAGES[::-1], _SEEDS[::-1]).numpy()[::-1]
    np.testing.assert_array_equal(found, again)
    for image, seed, view in zip(_IMAGES, _SEEDS, found, strict=True):
        np.testing.assert_array_equal(policy(image, seed), view)
    crops = views.build("crop", image_size=_SIZE, flip=False)
    change = found - crops.batch(_IMAGES, _SEEDS).numpy()
    deltas = change.reshape(5, -1).mean(1)
    assert len(set(deltas.round(4))) == 5 and abs(deltas).max() <= 0.4
    change -= deltas[:, None, None, None]
    np.testing.assert_allclose(change, np.zeros_like(change), atol=1e-5)
    np.testing.assert_array_equal(_in_graph(_brighter, delta=0.4), found)


def test_a_function_makes_the_whole_view():
    policy = views.build(_corner, image_size=_SIZE, after_crop=False)
    found = policy.batch(_IMAGES, _SEEDS)
    expected = _IMAGES[:, :_SIZE, :_SIZE] / np.float32(255)
    np.testing.assert_array_equal(found, expected)
    # Two views of each image.
    both = views.Views(policy, 2)(_IMAGES, _SEEDS)
    np.testing.assert_array_equal(both[:, 1], expected)
    assert policy.halvings(8000, 8000, policy.numbers(_SEEDS)) == 0


def test_a_keras_layer_changes_the_crops():
    layer = tf.keras.Sequential([tf.keras.layers.RandomContrast(0.5)])
    found = _in_graph(layer)
    assert found.shape == (5, _SIZE, _SIZE, 3)
    crops = views.build("crop", image_size=_SIZE, flip=False)
    crops = crops.batch(_IMAGES, _SEEDS)
    assert 0 < np.abs(found - crops).mean() < 0.5


def _sometimes(image, seed):
    if tf.random.stateless_uniform([], seed) < 0.5:  # By AutoGraph.
        return 1.0 - image
    return image


def test_a_function_may_have_branches():
    policy, crop = (
        views.build(part, image_size=_SIZE) for part in (_sometimes, "crop")
    )
    images = np.repeat(_IMAGES, 8, 0)
    seeds = np.stack([np.arange(40), np.arange(40)], 1)
    data = tf.data.Dataset.from_tensors((images, seeds.astype(np.int32)))
    found = next(iter(data.map(policy.batch))).numpy()
    crops = crop.batch(images, seeds).numpy()
    same = np.abs(found - crops).max((1, 2, 3)) < 1e-6
    assert 8 <= same.sum() <= 32
    np.testing.assert_allclose(found[~same], 1 - crops[~same], rtol=1e-6)


@pytest.mark.parametrize(
    ("part", "options", "text"),
    [
        # Values.
        (lambda x: 255 * x, {}, r"values outside of \[0, 1\]"),
        # Keras keeps the range 0..255 of a whole image.
        (
            tf.keras.layers.Resizing(_SIZE, _SIZE),
            {"after_crop": False},
            "augmentation Resizing returns values outside",
        ),
        (lambda x: x * np.random.uniform(), {}, "draws numbers of Python"),
        # Forms.
        (3, {}, "augmentation int is of the wrong form: must be a function"),
        (_brighter, {"dleta": 1.0}, "did you mean delta"),
        (lambda x, y: x, {}, "parameter y of <lambda> has no default"),
        (lambda x: x[:3], {}, r"returns float32 of shape \(3, 8, 3\): must be"),
        (lambda x: None, {}, "returns NoneType: must be floats"),
        (tf.keras.layers.Dense(3), {}, "Dense has weights, which nothing tra"),
    ],
)
def test_what_is_wrong_with_a_view_is_named(part, options, text):
    kinds = (errors.UserError, ValueError, tf.errors.InvalidArgumentError)
    with pytest.raises(kinds, match=text):
        _in_graph(part, **options)


def test_a_wrong_view_leaves_strategies_alone():
    policy = views.build(lambda x: x[:3], image_size=_SIZE)
    data = tf.data.Dataset.from_tensor_slices((_IMAGES, _SEEDS)).batch(2)
    with pytest.raises((errors.UserError, ValueError), match="returns float"):
        data.map(policy.batch)
    with distribution.strategy("mirrored", virtual_devices=2).scope():
        assert tf.Variable(1.0).numpy() == 1.0
