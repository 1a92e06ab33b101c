"""Verdicts: tests of relations, corrections, and what invalidates a claim."""

import math

import pytest

from lab.claims import definitions, verdicts
from tf_contrastive.base import errors


def test_sign_flips_are_counted():
    assert verdicts.sign_flip([1.0]) == 0.5
    assert verdicts.sign_flip([0.3, 0.1, 0.2, 0.5, 0.4]) == 1 / 32
    # Two sign assignments of 2, 3, -1 reach their sum 4: +++ and ++-.
    assert verdicts.sign_flip([2.0, 3.0, -1.0]) == 2 / 8
    assert verdicts.sign_flip([0.0] * 5) == 1.0
    for invalid in ([], [1.0, math.nan], [1.0] * 17):
        with pytest.raises(errors.UserError, match=r"differences|seeds"):
            verdicts.sign_flip(invalid)


@pytest.mark.parametrize(
    ("left", "bound", "kind", "verdict"),
    [
        ([3, 4, 3, 5, 4], 2.0, "at_least", "holds"),
        ([3, 4, 3, 5, 4], 5.5, "at_least", verdicts.SMALLER),
        ([3, 4, 3, 5, 4], 4.0, "at_least", verdicts.SMALLER),
        ([3, 4, -3, 5, 4], 4.0, "at_least", verdicts.NONE_FOUND),
        ([-3, -4, -3, -5, -4], 1.0, "at_least", "contradicted"),
        ([-3, -4, -3, -5, -4], -1.0, "at_most", "holds"),
        ([3, 4, 3, 5], 2.0, "at_least", verdicts.NONE_FOUND),  # 1/16 at best.
        # Ties: a difference of at most 5.5, of at least -1.
        ([3, 4, 3, 5, 4], 5.5, "at_most", "holds"),
        ([3, 4, 3, 5, 4], 2.0, "at_most", "contradicted"),
        ([3, 4, 3, 5, 4], 4.0, "at_most", "undecided"),
        ([0.5, -0.4, 0.1, 0.2, -0.3], -1.0, "at_least", "holds"),
        # On both sides.
        ([3, 4, 3, 5, 4], 5.5, "within", "holds"),
        ([-3, -4, -3, -5, -4], 5.5, "within", "holds"),
        ([3, 4, 3, 5, 4], 2.0, "within", "contradicted"),
        ([-3, -4, -3, -5, -4], 2.0, "within", "contradicted"),
        ([3, 4, 3, 5, 4], 4.0, "within", "undecided"),
        ([3, -4, 3, -5, 4], 3.5, "within", "undecided"),
    ],
)
def test_a_relation_is_tested_against_zero_and_its_bound(
    left, bound, kind, verdict
):
    judged = verdicts.judge(left, [0.0] * len(left), bound, kind)
    assert judged["verdict"] == verdict


def _judged(left, gate=None, **relation):
    """The row of a relation on made-up units."""
    unit = {"case": "", "arm": "a"} | ({"gate": gate} if gate else {})
    units = [
        unit | {"seed": seed, "values": {"x": value}}
        for seed, value in enumerate(left)
    ]
    given = {"left": "x of a", "at_least": 2, **relation}
    tested = definitions.read_relation(given, [""], "a", ["x"])
    (row,) = verdicts.judge_all([tested], units, len(left))
    return row["verdict"]


_HOLDS, _SMALLER, _NONE = "holds", verdicts.SMALLER, verdicts.NONE_FOUND
_AGAINST, _TIE = "contradicted", "undecided"


@pytest.mark.parametrize(
    ("outcomes", "untested", "parts", "verdict"),
    [
        # All relations hold; some do, in one part, or in one of them.
        ({"a": [_HOLDS] * 2, "b": [_HOLDS]}, [], ["shown"] * 2, "shown"),
        ({"a": [_HOLDS, _SMALLER]}, [], ["partly shown"], "partly shown"),
        ({"a": [_HOLDS, _AGAINST]}, [], ["partly shown"], "partly shown"),
        (
            *({"a": [_NONE], "b": [_HOLDS], "c": [_AGAINST]}, []),
            *(["not shown", "shown", "opposite seen"], "partly shown"),
        ),
        # None holds: one contradiction is the opposite.
        ({"a": [_SMALLER, _AGAINST]}, [], ["opposite seen"], "opposite seen"),
        # The right direction alone shows nothing, nor does a tie.
        ({"a": [_SMALLER]}, [], ["not shown"], "not shown"),
        ({"a": [_TIE, _NONE]}, [], ["not shown"], "not shown"),
        # Parts without a relation.
        ({}, ["u"], ["not tested"], "not tested"),
        ({"a": [_HOLDS]}, ["u"], ["shown", "not tested"], "partly shown"),
        # Invalid before incomplete, and both before the rest.
        (
            *({"a": ["incomplete"], "b": ["invalid"]}, []),
            *(["incomplete", "invalid"], "invalid"),
        ),
        (
            *({"a": [_AGAINST], "b": ["incomplete"]}, ["u"]),
            *(["opposite seen", "incomplete", "not tested"], "incomplete"),
        ),
    ],
)
def test_the_verdict_follows_from_the_parts(outcomes, untested, parts, verdict):
    rows = [
        {"part": part, "verdict": outcome}
        for part, listed in outcomes.items()
        for outcome in listed
    ]
    # What supports no part decides nothing, whatever it is.
    for outcome in (_HOLDS, _AGAINST, "invalid", "incomplete"):
        rows.append({"also": "weaker", "verdict": outcome})
        judged, of_claim = verdicts.judge_claim(rows, untested)
        assert list(judged.values()) == parts
        assert list(judged) == [*outcomes, *untested]
        assert of_claim == verdict


def test_a_network_that_did_not_train_makes_its_relations_invalid():
    above = [3, 4, 3, 5, 4]
    missing = [*above[:4], None]
    # SI-T4 on CIFAR-2: 5.3, where equal embeddings have ln(127).
    gate = {"final": 5.3, "collapsed": math.log(127)}
    for relation in ({}, {"part": "a"}, {"also": "weaker"}):
        assert _judged(above, gate, **relation) == "invalid"
        assert _judged(missing, gate, **relation) == "invalid"
        assert _judged(missing, **relation) == "incomplete"
        assert _judged(above, gate | {"final": 4.8}, **relation) == "holds"
    assert _judged(above, {"final": math.nan, "collapsed": 4.8}) == "invalid"


def _units(values):
    """Five seeds of numbers: case -> arm -> name -> number."""
    return [
        {"case": case, "arm": arm, "seed": seed, "values": {**numbers}}
        for case, arms in values.items()
        for arm, numbers in arms.items()
        for seed in range(5)
    ]


def test_correlations_over_arms():
    """Deviations of -4/3, -1/3, 5/3 and -1, 1, 0: r = 1 / sqrt(14/3 * 2)."""
    pairs = {"a": (1.0, 3.0), "b": (2.0, 5.0), "c": (4.0, 4.0)}
    units = _units({"": {a: {"x": x, "y y": y} for a, (x, y) in pairs.items()}})
    given = {"left": "correlation of x with y y", "at_least": 0.2}
    relation = definitions.read_relation(given, [""], "abc", ["x", "y y"])
    (row,) = verdicts.judge_all([relation], units, 5)
    assert row["mean"] == pytest.approx(1 / math.sqrt(14 / 3 * 2))
    assert row["verdict"] == "holds"
    # Equal values have none; a missing one leaves it incomplete.
    for unit in units:
        unit["values"]["x"] = 1.0
    (row,) = verdicts.judge_all([relation], units, 5)
    assert (row["mean"], row["verdict"]) == (0.0, "no difference found")
    units[0]["values"]["y y"] = None
    (row,) = verdicts.judge_all([relation], units, 5)
    assert row["verdict"] == "incomplete"


def test_sums_and_spreads():
    """The spread shrinks by 2.5, and a gains 2.5 more than b."""
    values = {"short": (1.0, 4.0, 2.0), "long": (5.0, 5.5, 5.2)}
    units = _units(
        {
            case: {a: {"x": x} for a, x in zip("abc", numbers, strict=True)}
            for case, numbers in values.items()
        }
    )
    relations = [
        definitions.read_relation(
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
