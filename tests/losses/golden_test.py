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


_MEANS = [
    # (loss, options, mean over all anchors)
    ("ntxent", {}, 0.8302185926),
    # By the sums of exponentials in the codes of their authors; of the eight
    # anchors, the bound exp(-1 / t) holds for two, one and one.
    ("ntxent", {"denominator": "only_negatives"}, 0.1566957127),
    ("ntxent", {"tau_plus": 0.1}, 0.6210590892),
    ("ntxent", {"beta": 1.0}, 1.2563800958),
    ("ntxent", {"beta": 1.0, "tau_plus": 0.1}, 1.1062072107),
    (
        "ntxent",
        {"beta": 1.0, "tau_plus": 0.1, "denominator": "only_negatives"},
        0.4532819343,
    ),
    ("supcon", {}, 1.5255794392),
    ("supcon_in", {}, 1.2872157938),
    ("sincere", {}, 0.5947817159),
    ("eps_supinfonce", {"epsilon": 0.25}, 0.4433183330),
    (
        "eps_supinfonce",
        {"epsilon": 0.125, "epsilon_in": "cosine"},
        0.4433183330,
    ),
    ("npairs", {"temperature": 1.0}, 1.7174435228),
    ("supcon", {"positives_cap": 1}, 0.3048958203),
    ("supcon", {"positives_cap": 2}, 1.1574965470),
    (
        "supcon",
        {"positives_cap": 1, "keep_dropped_positives": True},
        0.8302185926,
    ),
    # The paper's, of size 2: 1000 * (0.0605404267 + 0.1 * 2.141052287).
    ("decoupled_ntxent", {"temperature": 1.0}, 274.6456554),
    (
        "decoupled_ntxent",
        {"alignment": "similarity", "weight": 0.5},
        0.4151092963,
    ),
]
_OTHER_VIEW = {"negatives": "other_view"}
_SEMI_HARD = {"negatives": "other_view", "mining": "semi_hard"}
_NO_TEMPERATURE = ("margin", "triplet", "cross_entropy")
_FROM_FIRST_VIEW = [
    # (loss, options, mean over the anchors of the first view)
    ("ntxent", _OTHER_VIEW, 0.5393707569),
    ("nt_logistic", _OTHER_VIEW, 0.8590384005),
    (
        "nt_logistic",
        {**_OTHER_VIEW, "negative_reduction": "sum"},
        2.2917182035,
    ),
    ("nt_logistic", _SEMI_HARD, 1.2961696077),
    ("margin", {**_OTHER_VIEW, "margin": 0.4}, 0.0539617602),
    ("margin", {**_OTHER_VIEW, "margin": 1.6}, 0.5574951727),
    ("margin", {**_SEMI_HARD, "margin": 0.4}, 0.0586081884),
    ("margin", {**_SEMI_HARD, "margin": 1.6}, 0.9986599889),
]


def _options(name, options):
    if name in _NO_TEMPERATURE:
        return options
    return {"temperature": 0.5, **options}


def _exact(actual, expected):
    """Up to the ten decimals of the golden values."""
    np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("name", "options", "expected"), _MEANS)
def test_mean(name, options, expected):
    options = _options(name, options)
    _exact(oracles.value(name, _GOLDEN, _LABELS, **options), expected)


@pytest.mark.parametrize(("name", "options", "expected"), _FROM_FIRST_VIEW)
def test_from_the_first_view(name, options, expected):
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
    ("degrees", "normalization", "expected"),
    [
        (30, "paper", 1.4297277717),
        (30, "mean", 0.9531518478),
    ],
)
def test_sliced_wasserstein(degrees, normalization, expected):
    h = [[1, 2], [0, -1], [-2, 0.5]]
    prior = [[0.5, 0], [-1, 1], [2, -1]]
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    found = oracles.sliced_wasserstein(
        h, prior, [[c, -s], [s, c]], normalization
    )
    _exact(found, expected)
