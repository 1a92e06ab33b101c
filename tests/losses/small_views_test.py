"""Losses of small views: anchors that are compared with large views only."""

import loss_oracles as oracles
import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import losses

_LABELS = np.array([0, 1, 0, 2, 1, 0, 2, 3], np.int32)
_Z = np.random.default_rng(3).normal(size=[8, 2 + 3, 5])
_SMALL = {"small_views": 3}
_WARM = {"temperature": 0.5}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ntxent", _WARM),
        ("ntxent", {"denominator": "only_negatives", **_WARM}),
        ("ntxent", {"tau_plus": 0.05, "beta": 1.0, **_WARM}),
        ("supcon", _WARM),
        *(("supcon", {"positives_cap": n, **_WARM}) for n in (1, 2, 4)),
        ("supcon_in", _WARM),
        ("sincere", _WARM),
        ("npairs", _WARM),
        ("triplet", {}),
        ("margin", {"negatives": "all_views"}),
        ("nt_logistic", {"negatives": "all_views", **_WARM}),
        ("decoupled_ntxent", _WARM),
    ],
    ids=str,
)
@pytest.mark.parametrize("blocks", [None, 7])
def test_every_anchor_is_compared_with_the_large_views(name, options, blocks):
    loss = losses.build(name, block_size=blocks, **options)
    z = tf.constant(_Z, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(z)
        total = loss(z, _LABELS, **_SMALL)
    gradient = tape.gradient(total, z)
    values, _ = oracles.per_anchor(name, _Z, _LABELS, **options, **_SMALL)
    found = loss.per_anchor(z, _LABELS, **_SMALL)
    np.testing.assert_allclose(found, values, rtol=2e-5, atol=1e-5)

    def expected(z):
        return oracles.value(name, z, _LABELS, **options, **_SMALL)

    np.testing.assert_allclose(total, expected(_Z), rtol=1e-5)
    # Along a random direction, by central differences in float64.
    step = np.random.default_rng(4).normal(size=_Z.shape)
    slope = (expected(_Z + 1e-5 * step) - expected(_Z - 1e-5 * step)) / 2e-5
    np.testing.assert_allclose(np.sum(gradient * step), slope, rtol=1e-3)


def test_cross_entropy_classifies_every_view():
    logits = _Z[..., :4]
    found = losses.build("cross_entropy")(logits, _LABELS, **_SMALL)
    expected = oracles.value("cross_entropy", logits, _LABELS)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
