"""MixUp and CutMix: KerasCV's formulas, exact fractions, any replicas."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tf_contrastive.views import prng
from tf_contrastive.views.mixup_cutmix import Mixing, beta_quantile

_CLASSES, _SIDE = 5, 9
_KINDS = {
    "mixup": Mixing(_CLASSES, mixup_alpha=0.4),
    "cutmix": Mixing(_CLASSES, cutmix_alpha=1.0),
    "both": Mixing(_CLASSES, mixup_alpha=0.4, cutmix_alpha=1.0),
}


def _seeds(images, views=1, start=0):
    seeds = np.stack([np.full([images], 7), start + np.arange(images)], -1)
    return prng.fold(tf.constant(seeds, tf.int32), views)


def _data(images=64, views=1, side=_SIDE, channels=3):
    rng = np.random.default_rng(0)
    shape = [images, views, side, side, channels]
    labels = rng.integers(0, _CLASSES, [images])
    pixels = rng.random(shape, np.float32)
    return tf.constant(pixels), tf.constant(labels, tf.int32)


def _neighbours(x):
    return np.asarray(x)[np.arange(len(x)) ^ 1]


def _uniforms(images):
    return prng.uniform(_seeds(images)[:, 0], {"mixing": 5})["mixing"].numpy()


@pytest.mark.parametrize("side", [8, 9])
def test_cutmix_equals_keras_cv_with_the_same_draws(side, monkeypatch):
    from keras_cv.layers import CutMix

    views, labels = _data(side=side)
    mixed, _ = _KINDS["cutmix"](views, labels, _seeds(64))
    uniforms = _uniforms(64)
    fraction = beta_quantile(uniforms[:, 1], 1.0).numpy()
    left, top = (
        tf.constant(np.floor(uniforms[:, i] * side), tf.int32) for i in (2, 3)
    )

    order = tf.constant(_neighbours(np.arange(64)))
    monkeypatch.setattr(tf.random, "shuffle", lambda *_, **__: order)

    def keras_cv(images):
        """What it makes of a batch with these draws, and neighbours' order."""
        centers = iter([top, left])
        monkeypatch.setattr(tf.random, "uniform", lambda **_: next(centers))
        layer = CutMix(1.0)
        layer._sample_from_beta = lambda *_: tf.constant(fraction)
        inputs = {"images": images, "labels": tf.one_hot(labels, _CLASSES)}
        return layer._batch_augment(inputs)["images"].numpy()

    # The larger part is the image's own: pasted into it, or it into the other.
    own = views[:, 0].numpy()
    pasted, swapped = keras_cv(own), keras_cv(_neighbours(own))
    kept = np.mean(pasted[..., 0] == own[..., 0], axis=(1, 2))
    assert 5 < np.sum(kept < 0.5) < 59
    expected = np.where(kept[:, None, None, None] >= 0.5, pasted, swapped)
    np.testing.assert_allclose(mixed[:, 0], expected, atol=1e-6)


def test_labels_of_cutmix_are_exact_fractions_of_the_area():
    _, labels = _data(256)
    # Every image is of one colour, which tells whose pixel it is.
    colours = tf.range(256, dtype=tf.float32)
    views = tf.tile(colours[:, None, None, None, None], [1, 2, _SIDE, _SIDE, 3])
    mixed, fractions = _KINDS["cutmix"](views, labels, _seeds(256, 2))
    of_own = np.mean(mixed[..., 0] == views[..., 0], axis=(2, 3))
    one_hot = np.eye(_CLASSES)[labels][:, None]
    expected = of_own[..., None] * one_hot
    expected = expected + (1 - of_own[..., None]) * _neighbours(one_hot)
    np.testing.assert_allclose(fractions, expected, atol=1e-6)
    assert len(np.unique(np.round(of_own, 6))) > 20
    assert of_own.min() >= 0.5
    # Views of an image are mixed apart.
    assert np.mean(of_own[:, 0] != of_own[:, 1]) > 0.8


@pytest.mark.parametrize("alpha", [0.1, 1.0, 8.0])
def test_quantiles_are_those_of_beta(alpha):
    uniforms = np.linspace(1e-4, 1 - 1e-4, 4001, dtype=np.float32)
    expected = stats.beta.ppf(uniforms.astype(np.float64), alpha, alpha)
    result = beta_quantile(tf.constant(uniforms), alpha)
    np.testing.assert_allclose(result, expected, atol=1e-4)
    # At the ends, which a draw may hit.
    np.testing.assert_allclose(
        beta_quantile(tf.constant([0.0, 1.0]), alpha), [0, 1], atol=1e-3
    )


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_fractions_of_mixup_are_quantiles(alpha):
    labels = tf.tile([0, 1], [1000])
    mixing = Mixing(2, mixup_alpha=alpha)
    _, fractions = mixing(tf.zeros([2000, 1, 1, 1, 1]), labels, _seeds(2000))
    expected = beta_quantile(_uniforms(2000)[:, 0], alpha).numpy()
    expected = np.maximum(expected, 1 - expected)
    own = np.max(fractions[:, 0], axis=-1)
    np.testing.assert_allclose(own, expected, atol=1e-6)


def test_mixup_and_cutmix_each_take_half_of_the_views():
    _, labels = _data(4000)
    views = tf.tile(tf.reshape([0.0, 1.0], [2, 1, 1, 1, 1]), [2000, 1, 6, 6, 1])
    both, mixup, cutmix = (
        mixing(views, labels, _seeds(4000))[0].numpy()
        for mixing in map(_KINDS.get, ("both", "mixup", "cutmix"))
    )
    cut, blended = (
        np.all(both == one, axis=(1, 2, 3, 4)) for one in (cutmix, mixup)
    )
    assert np.all(cut | blended)
    # A box leaves pixels as they are, which few blends do.
    assert abs(cut.mean() - 0.5) < 3 * np.sqrt(0.25 / 4000)


@pytest.mark.parametrize("kind", _KINDS)
def test_a_mixture_depends_only_on_its_pair_and_seeds(kind):
    mixing = _KINDS[kind]
    views, labels = _data(views=2, channels=5)
    seeds = _seeds(64, 2)
    mixed, fractions = mixing(views, labels, seeds)
    assert mixed.shape == views.shape
    assert fractions.shape == (64, 2, _CLASSES)
    part = slice(20, 32)
    apart, apart_shares = mixing(views[part], labels[part], seeds[part])
    np.testing.assert_array_equal(apart, mixed[part])
    np.testing.assert_array_equal(apart_shares, fractions[part])
    compiled = tf.function(mixing, jit_compile=True)(views, labels, seeds)
    np.testing.assert_allclose(compiled[0], mixed, atol=1e-4)
    np.testing.assert_allclose(compiled[1], fractions, atol=1e-4)
    # Of another epoch, another mixture.
    other, _ = mixing(views, labels, _seeds(64, 2, start=64))
    assert np.all(other == mixed, axis=(2, 3, 4)).mean() < 0.1
    # All channels are mixed alike.
    own = (
        tf.ones_like(views[..., :1]) * tf.range(64.0)[:, None, None, None, None]
    )
    of_each = mixing(tf.tile(own, [1, 1, 1, 1, 5]), labels, seeds)[0]
    np.testing.assert_array_equal(of_each, np.tile(of_each[..., :1], 5))
    # The image's own class has the largest fraction.
    own_fraction = np.take_along_axis(
        fractions.numpy(), labels.numpy()[:, None, None], -1
    )
    assert own_fraction.min() >= 0.5 - 1e-6
    np.testing.assert_allclose(np.sum(fractions, -1), 1, atol=1e-6)


def test_invalid_batches_are_refused():
    mixing, seeds = _KINDS["mixup"], _seeds(3)
    with pytest.raises(ValueError, match="3 images cannot be mixed in pairs"):
        mixing(tf.zeros([3, 1, 4, 4, 3]), tf.zeros([3], tf.int32), seeds)
    with pytest.raises(ValueError, match=r"must be int \[B\] to be mixed"):
        mixing(tf.zeros([2, 1, 4, 4, 3]), tf.zeros([2, 5]), seeds[:2])
