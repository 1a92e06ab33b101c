"""Views of your own: functions and Keras layers, of crops or whole images."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import errors, views

_SIZE = 8
_RNG = np.random.default_rng(0)
_IMAGES = _RNG.integers(0, 256, [5, 12, 10, 3], np.uint8)
_SEEDS = _RNG.integers(0, 2**31, [5, 2]).astype(np.int32)


def _invert(image):
    return 1.0 - image


def _brighter(image, seed, delta=0.5):
    return tf.image.stateless_random_brightness(image, delta, seed)


def _corner(image, side=_SIZE):
    return image[:side, :side]


def test_a_function_changes_the_crop():
    policy = views.build(_invert, image_size=_SIZE)
    crop = views.build("crop", image_size=_SIZE)
    np.testing.assert_allclose(
        policy.batch(_IMAGES, _SEEDS), 1 - crop.batch(_IMAGES, _SEEDS)
    )


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
    np.testing.assert_allclose(
        change,
        np.broadcast_to(deltas[:, None, None, None], change.shape),
        atol=1e-5,
    )
    in_graph = tf.data.Dataset.from_tensors((_IMAGES, _SEEDS)).map(policy.batch)
    np.testing.assert_array_equal(next(iter(in_graph)), found)


def test_a_function_makes_the_whole_view():
    policy = views.build(_corner, image_size=_SIZE, after_crop=False)
    found = policy.batch(_IMAGES, _SEEDS)
    expected = _IMAGES[:, :_SIZE, :_SIZE] / np.float32(255)
    np.testing.assert_array_equal(found, expected)
    # Two views of each image.
    both = views.Views(policy, 2)(_IMAGES, _SEEDS)
    np.testing.assert_array_equal(both[:, 1], expected)
    assert policy.halvings(8000, 8000, _SEEDS) == 0


@pytest.mark.parametrize(
    "layer",
    [
        tf.keras.layers.RandomFlip("horizontal"),
        tf.keras.Sequential([tf.keras.layers.RandomContrast(0.5)]),
    ],
)
def test_a_keras_layer_changes_the_crops(layer):
    policy = views.build(layer, image_size=_SIZE, flip=False)
    data = tf.data.Dataset.from_tensors((_IMAGES, _SEEDS)).map(policy.batch)
    found = next(iter(data))
    assert found.shape == [5, _SIZE, _SIZE, 3]
    crops = views.build("crop", image_size=_SIZE, flip=False)
    crops = crops.batch(_IMAGES, _SEEDS)
    assert 0 < np.abs(found - crops).mean() < 0.5


@pytest.mark.parametrize(
    ("part", "options", "text"),
    [
        (3, {}, "augmentation int is of the wrong form: must be a function"),
        (_brighter, {"dleta": 1.0}, "did you mean 'delta'"),
        (lambda x, y: x, {}, "parameter y of <lambda> has no default"),
        (lambda x: x[:3], {}, r"returns float32 of shape \(3, 8, 3\): must be"),
        (lambda x: tf.cast(x, tf.int32), {}, "returns int32 of shape"),
        (lambda x: x, {"after_crop": False}, "returns uint8|shape"),
        (_invert, {"min_crop_area": 0.0}, "min_crop_area=0.0: must be"),
        ("my_module:my_view", {}, "own_modules=my_module"),
    ],
)
def test_another_form_is_named(part, options, text):
    with pytest.raises((errors.UserError, ValueError), match=text):
        views.build(part, image_size=_SIZE, **options).batch(_IMAGES, _SEEDS)
