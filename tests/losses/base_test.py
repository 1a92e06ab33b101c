"""Losses: invalid input is named, NaN is not hidden, chance is known."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import losses
from tf_contrastive.config import fields
from tf_contrastive.config.loss import LOSSES
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.losses import labels as label_checks

_ANGLES = np.deg2rad([[0, 12], [25, 41], [100, 131], [200, 216]])  # [B, V]
_GOLDEN = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], -1)  # [B, V, 2]
_LABELS = np.array([0, 0, 1, 1])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", [1, (1, 0, 3)])
@pytest.mark.parametrize("name", [n for n in LOSSES if n != "moco"])
def test_non_finite_projections_are_not_hidden(name, bad, where):
    z = np.random.default_rng(0).normal(size=[4, 2, 8]).astype(np.float32)
    z[where] = bad
    assert not np.isfinite(losses.build(name)(z, _LABELS))


_LOGITS = losses.CrossEntropy()
_COLUMN = np.arange(4)[:, np.newaxis]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: losses.SupCon()(_GOLDEN), "SupCon needs labels"),
        (lambda: losses.SupCon()(_GOLDEN, [1, 2]), r"labels of shape \(2,\)"),
        *(
            (lambda n=n: losses.build(n)(_GOLDEN, _COLUMN), r"pass int \[B\]")
            for n in ("supcon", "sincere", "npairs", "triplet")
        ),
        (lambda: losses.NTXent()(_GOLDEN[0]), r"must be floating \[B"),
        (lambda: losses.Margin()(np.ones([4, 3, 2])), "projections have 3"),
        (
            lambda: losses.Margin()(_GOLDEN, small_views=1),
            "have 1 and 1 small ones",
        ),
        (lambda: _LOGITS(_GOLDEN, np.ones([4, 3])), "labels of 3 classes"),
        (lambda: losses.MoCo()(_GOLDEN), r"needs keys \[B, V, P\]"),
        (
            lambda: losses.build("swd_normal").per_anchor(_GOLDEN),
            "no loss for each view",
        ),
    ],
)
def test_invalid_input_is_named(call, text):
    with pytest.raises((ValueError, TypeError), match=text):
        call()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_of_distributions(smoothing):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=[4, 2, 5]).astype(np.float32)
    shares = rng.dirichlet(np.ones(5), [4, 2]).astype(np.float32)
    loss = losses.build("cross_entropy", label_smoothing=smoothing)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    target = (1 - smoothing) * shares + smoothing / 5
    expected = -(target * log_p).sum(-1)
    np.testing.assert_allclose(
        loss.per_anchor(logits, shares), expected, rtol=1e-5
    )
    np.testing.assert_allclose(loss(logits, shares), expected.mean(), rtol=1e-5)
    # Shares of one class alone are labels; rank 2 is several yeses.
    labels = np.array([0, 3, 4, 1])
    certain = np.repeat(np.eye(5, dtype=np.float32)[labels][:, None], 2, 1)
    np.testing.assert_array_equal(loss(logits, certain), loss(logits, labels))
    assert abs(loss(logits, certain[:, 0]) - loss(logits, labels)) > 0.1


@pytest.mark.parametrize(
    ("name", "labels", "text"),
    [
        ("cross_entropy", [0, -1, 1, 1], "integers from 0 to 1"),
        ("cross_entropy", [0, 2, 1, 1], "integers from 0 to 1"),
        ("supcon", [0, -1, 1, 1], "integers from 0 to 2147483647"),
        ("sincere", [1, 2, 1 + 2**32, 2 + 2**32], "from 0 to 2147483647"),
        ("triplet", np.uint64([1, 2, 2**63, 2]), "from 0 to 2147483647"),
        ("supcon", np.full([4, 2], 0.5, np.float32), "0 or 1"),
        ("npairs", np.full([4, 2], 2), "0 or 1"),
        ("cross_entropy", np.full([4, 2], 0.1, np.float32), "0 or 1"),
        ("supcon", np.full([4, 2], np.nan, np.float32), "0 or 1"),
    ],
)
def test_labels_that_make_no_classes_are_refused(name, labels, text):
    loss, labels = losses.build(name), tf.constant(labels)
    with pytest.raises(ValueError, match=text):
        loss(_GOLDEN, labels)
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        tf.function(loss)(_GOLDEN, labels)
    # XLA raises nothing.
    compiled = tf.function(loss, jit_compile=True)
    assert np.isnan(compiled(tf.constant(_GOLDEN), labels))


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.uint8, np.uint64])
def test_labels_may_be_of_any_integer_type(kind):
    loss, labels = losses.build("supcon"), _LABELS + 100
    assert loss(_GOLDEN, labels.astype(kind)) == loss(_GOLDEN, labels)
    # More classes than the type has numbers.
    assert all(label_checks.is_id(labels.astype(kind), classes=301))


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        ("ntxent", {}),
        ("supcon_in", {}),
        ("supcon", {"scale_by_temperature": True, "temperature": 0.2}),
    ],
)
def test_the_chance_loss_is_that_of_equal_embeddings(loss, options):
    run = fields.replace(Pretrain(), loss=loss, batch_size=8, **options)
    equal = np.ones([8, 2, 4], np.float32)
    value = losses.build(loss, **options)(equal, np.arange(8) // 2)
    assert run.loss.chance_level(2 * 8 - 1) == pytest.approx(float(value), 1e-5)
