"""The oracles of the losses against golden values.

The batch and its values are those of the losses' reference sheet: eight unit
vectors in the plane, two views of four images. `contract_test.py` holds the
losses against the oracles.
"""

import loss_oracles as oracles
import numpy as np
import pytest

_ANGLES = np.deg2rad([[0, 12], [25, 41], [100, 131], [200, 216]])  # [B, V]
_GOLDEN = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], -1)  # [B, V, 2]
_LABELS = np.array([0, 0, 1, 1])


def _case(expected, name, **options):
    return expected, name, options


_DEBIASED = {"beta": 1.0, "tau_plus": 0.1}
_MEANS = [
    # (mean over all anchors, loss, options)
    _case(0.8302185926, "ntxent"),
    # By the sums of exponentials in the codes of their authors; of the eight
    # anchors, the bound exp(-1 / t) holds for two, one and one.
    _case(0.1566957127, "ntxent", denominator="only_negatives"),
    _case(0.6210590892, "ntxent", tau_plus=0.1),
    _case(1.2563800958, "ntxent", beta=1.0),
    _case(1.1062072107, "ntxent", **_DEBIASED),
    _case(0.4532819343, "ntxent", denominator="only_negatives", **_DEBIASED),
    _case(1.5255794392, "supcon"),
    _case(1.2872157938, "supcon_in"),
    _case(0.5947817159, "sincere"),
    _case(0.4433183330, "eps_supinfonce", epsilon=0.25),
    _case(0.4433183330, "eps_supinfonce", epsilon=0.125, epsilon_in="cosine"),
    _case(1.7174435228, "npairs", temperature=1.0),
    _case(0.3048958203, "supcon", positives_cap=1),
    _case(1.1574965470, "supcon", positives_cap=2),
    _case(0.8302185926, "supcon", positives_cap=1, keep_dropped_positives=True),
    # The paper's, of size 2: 1000 * (0.0605404267 + 0.1 * 2.141052287).
    _case(274.6456554, "decoupled_ntxent", temperature=1.0),
    _case(0.4151092963, "decoupled_ntxent", alignment="similarity", weight=0.5),
]
_OTHER_VIEW = {"negatives": "other_view"}
_SEMI_HARD = {"negatives": "other_view", "mining": "semi_hard"}
_FROM_FIRST_VIEW = [
    # (mean over the anchors of the first view, loss, options)
    _case(0.5393707569, "ntxent", **_OTHER_VIEW),
    _case(0.8590384005, "nt_logistic", **_OTHER_VIEW),
    _case(2.2917182035, "nt_logistic", negative_reduction="sum", **_OTHER_VIEW),
    _case(1.2961696077, "nt_logistic", **_SEMI_HARD),
    _case(0.0539617602, "margin", margin=0.4, **_OTHER_VIEW),
    _case(0.5574951727, "margin", margin=1.6, **_OTHER_VIEW),
    _case(0.0586081884, "margin", margin=0.4, **_SEMI_HARD),
    _case(0.9986599889, "margin", margin=1.6, **_SEMI_HARD),
]


def _options(name, options):
    return options if name == "margin" else {"temperature": 0.5, **options}


def _exact(actual, expected):
    """Up to the ten decimals of the golden values."""
    np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("expected", "name", "options"), _MEANS)
def test_mean(expected, name, options):
    options = _options(name, options)
    _exact(oracles.value(name, _GOLDEN, _LABELS, **options), expected)


@pytest.mark.parametrize(("expected", "name", "options"), _FROM_FIRST_VIEW)
def test_from_the_first_view(expected, name, options):
    options = _options(name, options)
    values, _ = oracles.per_anchor(name, _GOLDEN, _LABELS, **options)
    _exact(values[:, 0].mean(), expected)


def test_npairs_of_one_view():
    z = _GOLDEN[:, :1]
    _exact(oracles.value("npairs", z, _LABELS, temperature=1.0), 0.7066497604)


@pytest.mark.parametrize(
    ("include_self", "distribution"),
    [(True, 3.1230569848), (False, 2.7091377393)],
)
def test_align_uniform(include_self, distribution):
    options = {"temperature": 0.5, "include_self": include_self}
    _exact(oracles.align(_GOLDEN), 0.0605404267)
    _exact(oracles.uniform(_GOLDEN, **options), distribution)


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [("paper", 1.4297277717), ("mean", 0.9531518478)],
)
def test_sliced_wasserstein(normalization, expected):
    h = [[1, 2], [0, -1], [-2, 0.5]]
    prior = [[0.5, 0], [-1, 1], [2, -1]]
    c, s = np.cos(np.deg2rad(30)), np.sin(np.deg2rad(30))
    found = oracles.sliced_wasserstein(
        h, prior, [[c, -s], [s, c]], normalization
    )
    _exact(found, expected)
