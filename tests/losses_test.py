"""Losses: mistakes are told, and what is no number is not hidden."""

import numpy as np
import pytest

from tf_contrastive import losses
from tf_contrastive.config.loss import LOSSES, SUPERVISED_LOSSES

_ANGLES = np.deg2rad([[0, 12], [25, 41], [100, 131], [200, 216]])  # [B, V]
_GOLDEN = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], -1)  # [B, V, 2]
_LABELS = np.array([0, 0, 1, 1])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", [n for n in LOSSES if n != "moco"])
def test_what_is_no_number_is_not_hidden(name, bad, whole):
    z = np.random.default_rng(0).normal(size=[4, 2, 8]).astype(np.float32)
    if whole:
        z[1] = bad
    else:
        z[1, 0, 3] = bad
    assert not np.isfinite(losses.build(name)(z, _LABELS))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: losses.build("ntxnt"), "did you mean 'ntxent'"),
        (lambda: losses.build("supcon", temprature=1), "'temperature'"),
        (lambda: losses.build("supcon", temperature=0), "must be above 0"),
        (lambda: losses.build("supcon", reduction="avg"), "known: mean, sum"),
        (lambda: losses.build("supcon")(_GOLDEN), "SupCon needs labels"),
        (
            lambda: losses.build("supcon", positives_cap=0),
            "positives_cap=0 keeps no positive: give at least 1",
        ),
        (
            lambda: losses.build("supcon_in", denominator="al"),
            "unknown denominator 'al': did you mean 'all'",
        ),
        (
            lambda: losses.build("supcon", contrast="first"),
            "known: all_views, one_view",
        ),
        (
            lambda: losses.build("eps_supinfonce", epsilon=-1.0),
            "epsilon=-1.0: must be at least 0",
        ),
        (
            lambda: losses.build("eps_supinfonce", epsilon_in="angle"),
            "known: logit, cosine",
        ),
        (
            lambda: losses.build("triplet", margin=-0.1),
            "margin=-0.1: must be at least 0",
        ),
        (
            lambda: losses.build("nt_logistic", mining="hard"),
            "known: none, semi_hard",
        ),
        (
            lambda: losses.build("margin")(np.ones([4, 3, 2])),
            "compares two views, and the projections have 3",
        ),
        (
            lambda: losses.build("decoupled_ntxent", weight=-1),
            "weight=-1: must be at least 0",
        ),
        (
            lambda: losses.build("swd_normal", scale=0.0),
            "scale=0.0: must be above 0",
        ),
        (
            lambda: losses.build("swd_normal", normalization="rows"),
            "known: mean, paper",
        ),
        (
            lambda: losses.build("cross_entropy", label_smoothing=1.0),
            r"label_smoothing=1.0: must be in \[0, 1\)",
        ),
        (
            lambda: losses.build("cross_entropy")(_GOLDEN, np.ones([4, 3])),
            "labels of 3 classes for logits of 2",
        ),
        (
            lambda: losses.build("cross_entropy")(_GOLDEN, np.ones([4, 2, 3])),
            "labels of 3 classes for logits of 2",
        ),
        (
            lambda: losses.build("cross_entropy")(_GOLDEN, np.ones([4, 1, 2])),
            r"for views of shape \(4, 2\): distributions must be floating",
        ),
        (
            lambda: losses.build("cross_entropy")(
                _GOLDEN, np.ones([4, 2, 2], int)
            ),
            r"distributions must be floating \[B, V, C\]",
        ),
        (lambda: losses.build("moco")(_GOLDEN), r"needs keys \[B, V, P\]"),
        (
            lambda: losses.build("moco")(
                _GOLDEN, keys=_GOLDEN, queue=np.ones([5, 3])
            ),
            r"a queue of shape \(5, 3\)",
        ),
        (
            lambda: losses.build("sincere", block_size=-1),
            "block_size=-1: must be at least 1, or 0",
        ),
        (lambda: losses.build("supcon")(_GOLDEN, [1, 2]), r"labels of shape"),
        (lambda: losses.build("ntxent")(_GOLDEN[0]), r"must be floating \[B"),
    ],
)
def test_bad_input_is_told(call, text):
    with pytest.raises(ValueError, match=text):
        call()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_takes_a_distribution_for_each_view(smoothing):
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


def test_options_stand_in_the_config():
    assert tuple(losses.LOSSES) == LOSSES
    supervised = {n for n, c in losses.LOSSES.items() if c.needs_labels}
    assert supervised == set(SUPERVISED_LOSSES)


@pytest.mark.parametrize("name", ["swd_normal", "align_uniform"])
def test_a_loss_that_is_no_mean_has_no_loss_of_an_anchor(name):
    with pytest.raises(TypeError, match="is no mean over anchors"):
        losses.build(name).per_anchor(_GOLDEN)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
