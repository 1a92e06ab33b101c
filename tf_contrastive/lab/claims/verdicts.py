"""Verdicts on claimed relations: paired tests over seeds, and a gate."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_contrastive import errors
from tf_contrastive.lab.claims import definitions

HOLDS = "holds"
# Significantly above 0, but not above the bound.
SMALLER = "right direction, smaller than the bound"
NONE_FOUND = "no difference found"
# Of a claimed tie: neither within its bound nor beyond it.
UNDECIDED = "undecided"
# Significantly on the other side of 0, or a claimed tie beyond its bound.
CONTRADICTED = "contradicted"
# Reads a network that was not trained.
INVALID = "invalid"
INCOMPLETE = "incomplete"
NOT_JUDGED = "not judged"
NO_RELATION = "no relation"
# Highest p at which a relation holds. The smallest p of n seeds is 2^-n, so
# that a test needs five.
LEVEL = 0.05
MIN_SEEDS = 5
# With more pairs than this, signs are drawn rather than enumerated.
_MAX_ENUMERATED = 16
_DRAWS = 100_000
# Sums of the same terms in another order differ by rounding.
_ROUNDING = 1e-12


def sign_flip(differences: Sequence[float] | np.ndarray) -> float:
    """One-sided p-value of a mean above zero, by the paired sign-flip test.

    The fraction of sign assignments of the differences, one per seed, whose
    mean is at least the observed one: in [2^-n, 1]; exact up to 16 pairs,
    otherwise of 100,000 draws. Fisher 1935, section 21.
    """
    return corrected([differences])[0]


def corrected(
    relations: Sequence[Sequence[float] | np.ndarray],
) -> list[float]:
    """p-values of `sign_flip`, corrected for the number of relations.

    Each relation has a difference per seed, of the same seeds. By the step-down
    maxT procedure of Westfall and Young 1993: a sign is drawn per seed for all
    relations together, and a relation's statistic, its sum of signed
    differences over that of their magnitudes, is compared with the largest one
    of the relations that are no more significant. The family-wise error is at
    most the level, and 2^-n remains the smallest p, while Holm's correction
    would let no two relations hold with five seeds.
    """
    values = np.asarray(relations, np.float64)
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise errors.UserError(
            f"differences are {values.tolist()}: pass one number per seed"
        )
    seeds = values.shape[1]
    if seeds <= _MAX_ENUMERATED:
        signs = np.array(list(itertools.product((1, -1), repeat=seeds)))
    else:
        random = np.random.RandomState(0)
        signs = random.choice((1, -1), (_DRAWS, seeds))
        signs[0] = 1  # The observed signs.
    magnitudes = np.abs(values).sum(axis=1)
    statistics = values @ signs.T / np.where(magnitudes, magnitudes, 1)[:, None]
    order = np.argsort(-statistics[:, 0], kind="stable")
    p_values = np.empty(len(values))
    highest = 0.0
    for rank, relation in enumerate(order):
        largest = statistics[order[rank:]].max(axis=0)
        reached = largest >= statistics[relation, 0] - _ROUNDING
        highest = p_values[relation] = max(highest, float(reached.mean()))
    return p_values.tolist()


# What is tested of a relation, each with its own correction.
_TESTS = ("p_zero", "p_bound", "p_against")


def _tested(row: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns, of each test, the differences whose mean is above 0 if it is so.

    A claimed tie, whose bound is beyond 0, is not tested against 0.
    """
    sign = 1.0 if row["at_least"] else -1.0
    differences = sign * np.asarray(row["differences"], np.float64)
    bound = sign * row["bound"]
    tested = {
        "p_bound": differences - bound,
        "p_against": min(bound, 0.0) - differences,
    }
    return tested if bound < 0 else {"p_zero": differences} | tested


def _verdict(row: Mapping[str, Any], p_values: Mapping[str, float]) -> str:
    if p_values["p_bound"] <= LEVEL:
        return HOLDS
    if p_values["p_against"] <= LEVEL:
        return CONTRADICTED
    if "p_zero" not in p_values:
        return UNDECIDED
    return SMALLER if p_values["p_zero"] <= LEVEL else NONE_FOUND


def judge(
    left: Sequence[float] | np.ndarray,
    right: Sequence[float] | np.ndarray,
    bound: float,
    at_least: bool,
) -> dict[str, Any]:
    """Tests that left - right [seeds] is at least (or at most) a bound.

    Returns:
      {"differences" [seeds], "mean", "bound", "at_least", "p_bound" (that the
      bound is exceeded), "p_zero" (that 0 is, in the claimed direction; not of
      a tie, whose bound is beyond 0), "p_against" (that the difference has the
      other direction; of a tie, that it is beyond the bound), "verdict" by
      these p-values}.
    """
    differences = np.subtract(left, right, dtype=np.float64)
    row: dict[str, Any] = {
        "differences": differences.tolist(),
        "mean": float(differences.mean()),
        "bound": bound,
        "at_least": at_least,
    }
    p_values = {name: sign_flip(x) for name, x in _tested(row).items()}
    return row | p_values | {"verdict": _verdict(row, p_values)}


def judge_all(
    relations: Sequence[definitions.Relation],
    units: Sequence[Mapping[str, Any]],
    seeds: int,
) -> list[dict[str, Any]]:
    """Judges every relation in each of its cases.

    Relations that lack one of `seeds` in the units of a result are incomplete;
    those that read a unit that `is_untrained` are invalid.

    Returns:
      A row for each relation and case: "relation", "case", what `judge`
      returns, and of judged relations "corrected": the p-values for their
      number. Rows of relations that cannot fail have the reason "not_judged".
    """
    table = {(u["case"], u["arm"], u["seed"]): u for u in units}

    def read(
        terms: Sequence[definitions.Term], case: str
    ) -> tuple[np.ndarray | None, bool]:
        """Returns the sum of terms by seed, and whether all were trained."""
        total, trained, complete = np.zeros(seeds), True, True
        for term in terms:
            place = term.case or case
            keys = itertools.product([place], term.arms, range(seeds))
            of = [table[key] for key in keys if key in table]
            trained = trained and not any(map(is_untrained, of))
            found = [unit["values"].get(term.value) for unit in of]
            complete = complete and None not in found
            if len(found) < len(term.arms) * seeds or not complete:
                complete = False
                continue
            values = np.reshape(np.array(found, np.float64), [-1, seeds])
            total += np.ptp(values, axis=0) if term.arms[1:] else values[0]
        return total if complete else None, trained

    rows = []
    for relation in relations:
        for case in relation.cases:
            left, left_trained = read(relation.left, case)
            right, right_trained = read(relation.right, case)
            row: dict[str, Any] = {"relation": relation.text, "case": case}
            judged: dict[str, Any] = {"verdict": INCOMPLETE}
            if left is not None and right is not None:
                judged = judge(left, right, relation.bound, relation.at_least)
                if not (left_trained and right_trained):
                    judged["verdict"] = INVALID
            if relation.not_judged:
                row["not_judged"] = relation.not_judged
                judged["verdict"] = NOT_JUDGED
            rows.append(row | judged)
    _correct(rows)
    return rows


def _correct(rows: Sequence[dict[str, Any]]) -> None:
    """Adds "corrected" to the judged rows, in place."""
    without = (INCOMPLETE, INVALID, NOT_JUDGED)
    judged = [row for row in rows if row["verdict"] not in without]
    for name in _TESTS:
        tested = [(row, _tested(row).get(name)) for row in judged]
        family = [(row, x) for row, x in tested if x is not None]
        if family:
            p_values = corrected([x for _, x in family])
            for (row, _), p_value in zip(family, p_values, strict=True):
                row.setdefault("corrected", {})[name] = p_value


def is_untrained(unit: Mapping[str, Any]) -> bool:
    """Whether a unit's final loss is not below that of equal embeddings.

    A unit without a recorded "gate" (`measures.gate`) is taken as trained.
    """
    gate = unit.get("gate")
    return gate is not None and not gate["final"] < gate["collapsed"]


def combine(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the verdict on a claim, of the rows of `judge_all`.

    It holds if all judged relations do, and is contradicted if one is, both by
    the corrected p-values. Otherwise it is smaller than the bound if every
    relation is at least that, which needs no correction: a statement about all
    relations is tested at the level of each (Berger 1982).
    """
    verdicts = {row["verdict"] for row in rows} - {NOT_JUDGED}
    for verdict in (INCOMPLETE, INVALID):
        if verdict in verdicts:
            return verdict
    if not verdicts:
        return NO_RELATION
    corrected_verdicts = {
        _verdict(row, row["corrected"]) for row in rows if "corrected" in row
    }
    if corrected_verdicts == {HOLDS}:
        return HOLDS
    if CONTRADICTED in corrected_verdicts:
        return CONTRADICTED
    if SMALLER in verdicts and verdicts <= {HOLDS, SMALLER}:
        return SMALLER
    return NONE_FOUND if NONE_FOUND in verdicts else UNDECIDED
