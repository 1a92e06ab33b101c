"""Verdicts: tests of relations, corrections, and what invalidates a claim."""

import math

import numpy as np
import pytest
from scipy import stats

from tf_contrastive import errors
from tf_contrastive.lab.claims import definitions, verdicts


def test_sign_flips_are_counted():
    assert verdicts.sign_flip([1.0]) == 0.5
    assert verdicts.sign_flip([0.3, 0.1, 0.2, 0.5, 0.4]) == 1 / 32
    # Two sign assignments of 2, 3, -1 reach their sum 4: +++ and ++-.
    assert verdicts.sign_flip([2.0, 3.0, -1.0]) == 2 / 8
    assert verdicts.sign_flip([0.0] * 5) == 1.0
    for invalid in ([], [1.0, math.nan]):
        with pytest.raises(errors.UserError, match="differences"):
            verdicts.sign_flip(invalid)


def test_many_pairs_approximate_the_t_test():
    sample = np.random.RandomState(0).normal(0.4, 1.0, 30)
    expected = stats.ttest_1samp(sample, 0, alternative="greater").pvalue
    assert abs(verdicts.sign_flip(sample) - expected) < 0.01


@pytest.mark.parametrize(
    ("left", "bound", "at_least", "verdict"),
    [
        ([3, 4, 3, 5, 4], 2.0, True, "holds"),
        ([3, 4, 3, 5, 4], 5.5, True, verdicts.SMALLER),
        ([3, 4, 3, 5, 4], 4.0, True, verdicts.SMALLER),
        ([3, 4, -3, 5, 4], 4.0, True, verdicts.NONE_FOUND),
        ([-3, -4, -3, -5, -4], 1.0, True, "contradicted"),
        # Ties: a difference of at most 5.5, of at least -1.
        ([3, 4, 3, 5, 4], 5.5, False, "holds"),
        ([3, 4, 3, 5, 4], 2.0, False, "contradicted"),
        ([3, 4, 3, 5, 4], 4.0, False, "undecided"),
        ([0.5, -0.4, 0.1, 0.2, -0.3], -1.0, True, "holds"),
        ([3, 4, 3, 5], 2.0, True, verdicts.NONE_FOUND),  # 1/16 at best.
    ],
)
def test_a_relation_is_tested_against_zero_and_its_bound(
    left, bound, at_least, verdict
):
    judged = verdicts.judge(left, [0.0] * len(left), bound, at_least)
    assert judged["verdict"] == verdict


def _judged(*lefts, bound=2.0, gates=(), **relation):
    """Rows of relations on made-up units, one arm per relation."""
    arms = [str(number) for number in range(len(lefts))]
    relations = [
        definitions.Relation(
            arm, (definitions.Term("x", (arm,), ""),), (), bound, True, ("",)
        )
        for arm in arms
    ]
    units = [
        {"case": "", "arm": arm, "seed": seed, "values": {"x": value}}
        for arm, left in zip(arms, lefts, strict=True)
        for seed, value in enumerate(left)
    ]
    for unit, gate in zip(units, gates, strict=False):
        unit["gate"] = gate
    return verdicts.judge_all(relations, units, len(lefts[0]))


def test_p_values_are_corrected_for_the_number_of_relations():
    above = [3, 4, 3, 5, 4]
    # Significant together: only the observed signs reach both sums.
    assert verdicts.corrected([above, above]) == [1 / 32, 1 / 32]
    # Other signs make the second as large as the first is.
    mixed = [3, 4, -3, 5, 4]
    assert verdicts.corrected([above, mixed]) == [2 / 32, 3 / 32]
    # At least the uncorrected ones, at most Bonferroni's.
    random = np.random.RandomState(0).normal(0.5, 1.0, (4, 8))
    alone = np.array([verdicts.sign_flip(row) for row in random])
    both = np.array(verdicts.corrected(random))
    assert (alone <= both).all()
    assert (both <= np.minimum(1, 4 * alone) + 1e-9).all()
    # Of nothing, a relation of eight is significant as often as the level.
    draws = np.random.RandomState(1).normal(size=(300, 8, 8))
    false = [min(verdicts.corrected(draw)) <= 0.05 for draw in draws]
    assert np.mean(false) < 0.08


def test_the_verdict_on_a_claim():
    above, smaller = [3, 4, 3, 5, 4], [1, 3, 1, 1, 3]
    mixed, below = [1, -1, 1, 2, -2], [-1, -2, -1, -1, -3]

    def verdict(*lefts, **options):
        return verdicts.combine(_judged(*lefts, **options))

    assert verdict(above, above) == "holds"
    assert verdict(above, smaller) == verdicts.SMALLER
    assert verdict(above, mixed) == verdicts.NONE_FOUND
    assert verdict(below, below) == "contradicted"
    # Of one among two relations, five seeds show it at 2/32 only.
    assert verdict(above, below) == "undecided"
    assert verdict([*above, 4], [*below, -2]) == "contradicted"
    assert verdict(above, [3, 4, 3, 5, None]) == "incomplete"
    assert verdicts.combine([]) == "no relation"


def test_sums_and_spreads():
    """The spread shrinks by 2.5, and a gains 2.5 more than b."""
    values = {
        "short": {"a": 1.0, "b": 4.0, "c": 2.0},
        "long": {"a": 5.0, "b": 5.5, "c": 5.2},
    }
    units = [
        {"case": case, "arm": arm, "seed": seed, "values": {"x": x}}
        for case, arms in values.items()
        for arm, x in arms.items()
        for seed in range(5)
    ]
    relations = [
        definitions._relation(
            {"left": left, "right": right, "at_least": 1, "cases": ["long"]},
            values,
            "abc",
            ["x"],
        )
        for left, right in (
            ("spread of x on short", "spread of x on long"),
            (["x of a", "x of b on short"], ["x of a on short", "x of b"]),
        )
    ]
    rows = verdicts.judge_all(relations, units, 5)
    assert [row["mean"] for row in rows] == pytest.approx([2.5, 2.5])
    # One arm less leaves the spread incomplete.
    few = [u for u in units if (u["arm"], u["case"]) != ("c", "long")]
    rows = verdicts.judge_all(relations, few, 5)
    assert [row["verdict"] for row in rows] == ["incomplete", "holds"]


def test_an_arm_that_did_not_train_makes_a_claim_invalid():
    # SI-T1 on CIFAR-2: 5.3, where equal embeddings have ln(127).
    gates = [{"final": 5.3, "collapsed": math.log(127)}]
    rows = _judged([3, 4, 3, 5, 4], gates=gates)
    assert verdicts.combine(rows) == "invalid"
    assert rows[0]["mean"] == 3.8
    gates = [{"final": 4.8, "collapsed": math.log(127)}]
    assert verdicts.combine(_judged([3, 4, 3, 5, 4], gates=gates)) == "holds"
    gates = [{"final": math.nan, "collapsed": 4.8}]
    assert verdicts.combine(_judged([3, 4, 3, 5, 4], gates=gates)) == "invalid"
