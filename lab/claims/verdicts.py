"""Outcomes of relations, and the verdict on a paper's claim by them.

A relation is tested over the seeds (`judge`). It supports a named part of the
paper's claim, or is measured in addition and decides nothing. `judge_claim`
derives the verdict on the claim from the supporting relations alone:

- A part is shown if all of its relations hold, partly shown if some do. If none
  holds, the opposite is seen if one is contradicted; otherwise it is not shown.
- The claim's verdict follows from its parts by the same rule. A part without
  relations is not tested, and a claim with one is at most partly shown.
- Before all that, a part or claim is invalid if a network that one of its
  relations reads did not train, and else incomplete if runs are missing.

Relations are tested at 5 % each. That all relations hold needs no correction
for their number (Berger 1982); a claim that is partly shown states each of its
parts by itself.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lab.claims import definitions
from tf_contrastive.base import errors

# ---- Outcomes of a relation --------------------------------------------------

HOLDS = "holds"
# Significantly above 0, but not above the bound.
SMALLER = "right direction, not shown above the bound"
NONE_FOUND = "no difference found"
# Of a claimed tie: neither within its bound nor beyond it.
UNDECIDED = "undecided"
# Significantly on the other side of 0, or a claimed tie beyond its bound.
CONTRADICTED = "contradicted"

# ---- Of both -----------------------------------------------------------------

# Reads a network that was not trained.
INVALID = "invalid"
INCOMPLETE = "incomplete"

# ---- Verdicts on a claim, and on its parts -----------------------------------

SHOWN = "shown"
PARTLY = "partly shown"
NOT_SHOWN = "not shown"
OPPOSITE = "opposite seen"
NOT_TESTED = "not tested"

# A relation's outcome -> what it says of the part that it supports.
_SUPPORT = {
    HOLDS: SHOWN,
    CONTRADICTED: OPPOSITE,
    INVALID: INVALID,
    INCOMPLETE: INCOMPLETE,
}
# Highest p at which a relation holds. The smallest p of n seeds is 2^-n, so
# that a test needs five.
LEVEL = 0.05
MIN_SEEDS = 5
# Of more, the signs are too many to enumerate.
_MAX_SEEDS = 16
# Sums of the same terms in another order differ by rounding.
_ROUNDING = 1e-12


def sign_flip(differences: Sequence[float] | np.ndarray) -> float:
    """One-sided p-value of a mean above zero, by the paired sign-flip test.

    The fraction of sign assignments of the differences, one per seed, whose
    mean is at least the observed one: in [2^-n, 1]. Fisher 1935, section 21.
    """
    values = np.asarray(differences, np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise errors.UserError(
            f"differences are {values.tolist()}: pass one number per seed"
        )
    if len(values) > _MAX_SEEDS:
        raise errors.UserError(
            f"{errors.arg('seeds', len(values))}: at most {_MAX_SEEDS}"
        )
    signs = np.array(list(itertools.product((1, -1), repeat=len(values))))
    rounding = _ROUNDING * np.abs(values).sum()
    return float((signs @ values >= values.sum() - rounding).mean())


def judge(
    left: Sequence[float] | np.ndarray,
    right: Sequence[float] | np.ndarray,
    bound: float,
    kind: str,
) -> dict[str, Any]:
    """Tests left - right [seeds] against a bound and against 0.

    `kind` is "at_least" or "at_most" the bound, or "within" it on both sides
    of 0, which holds if both sides do and is contradicted if one is.

    Returns:
      {"differences" [seeds], "mean", "bound", "kind", "p_bound" (that the
      bound is exceeded), "p_zero" (that 0 is, in the claimed direction; not of
      a tie, whose bound is beyond 0), "p_against" (that the difference has the
      other direction; of a tie, that it is beyond the bound), "verdict" by
      these p-values}.
    """
    differences = np.subtract(left, right, dtype=np.float64)
    if kind == definitions.WITHIN:
        sides = [(differences, -bound), (-differences, -bound)]
    else:
        sign = 1.0 if kind == definitions.AT_LEAST else -1.0
        sides = [(sign * differences, sign * bound)]
    row = {
        "differences": differences.tolist(),
        "mean": float(differences.mean()),
        "bound": bound,
        "kind": kind,
        "p_bound": max(sign_flip(x - least) for x, least in sides),
        "p_against": min(sign_flip(min(least, 0.0) - x) for x, least in sides),
    }
    ((claimed, least), *_) = sides
    if least >= 0:
        row["p_zero"] = sign_flip(claimed)
    return row | {"verdict": _outcome(row)}


def _outcome(row: Mapping[str, Any]) -> str:
    if row["p_bound"] <= LEVEL:
        return HOLDS
    if row["p_against"] <= LEVEL:
        return CONTRADICTED
    if "p_zero" not in row:
        return UNDECIDED
    return SMALLER if row["p_zero"] <= LEVEL else NONE_FOUND


def judge_all(
    relations: Sequence[definitions.Relation],
    units: Sequence[Mapping[str, Any]],
    seeds: int,
) -> list[dict[str, Any]]:
    """Judges every relation in each of its cases.

    Relations that read a unit that `is_untrained` are invalid, whatever else
    they are; those that lack one of `seeds` in the units are incomplete.

    Returns:
      A row for each relation and case: "relation", "case", "part" (of the
      paper's claim, that it supports) or "also" (why it supports none), and
      what `judge` returns.
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
            found = [
                [unit["values"].get(v) for unit in of] for v in term.values
            ]
            complete = complete and None not in itertools.chain(*found)
            if len(of) < len(term.arms) * seeds or not complete:
                complete = False
                continue
            shape = len(term.values), len(term.arms), seeds
            total += _of_arms(np.reshape(np.array(found, np.float64), shape))
        return total if complete else None, trained

    rows = []
    for relation in relations:
        for case in relation.cases:
            left, left_trained = read(relation.left, case)
            right, right_trained = read(relation.right, case)
            row: dict[str, Any] = {"relation": relation.text, "case": case}
            if relation.also:
                row["also"] = relation.also
            else:
                row["part"] = relation.part
            row["verdict"] = INCOMPLETE
            if left is not None and right is not None:
                row |= judge(left, right, relation.bound, relation.kind)
            if not (left_trained and right_trained):
                row["verdict"] = INVALID
            rows.append(row)
    return rows


def _of_arms(values: np.ndarray) -> np.ndarray:
    """Returns a term by seed, of [values, arms, seeds]; see `Term`."""
    if len(values) == 2:
        first, second = values - values.mean(axis=1, keepdims=True)
        norms = np.sqrt((first**2).sum(axis=0) * (second**2).sum(axis=0))
        # Of equal values: no correlation.
        return (first * second).sum(axis=0) / np.where(norms > 0, norms, 1.0)
    (numbers,) = values
    return np.ptp(numbers, axis=0) if numbers[1:].size else numbers[0]


def is_untrained(unit: Mapping[str, Any]) -> bool:
    """Whether a unit's final loss is not below that of equal embeddings.

    A unit without a recorded "gate" (`measures.gate`) is taken as trained.
    """
    gate = unit.get("gate")
    return gate is not None and not gate["final"] < gate["collapsed"]


def judge_claim(
    rows: Sequence[Mapping[str, Any]], untested: Sequence[str]
) -> tuple[dict[str, str], str]:
    """Returns the verdict on each part of a claim, and on the claim.

    Args:
      rows: Of `judge_all`; those of relations that support no part are left
        out.
      untested: Parts of the paper's claim that have no relation.
    """
    supported: dict[str, list[str]] = {}
    for row in rows:
        if "part" in row:
            said = _SUPPORT.get(row["verdict"], NOT_SHOWN)
            supported.setdefault(row["part"], []).append(said)
    parts = {part: combine(said) for part, said in supported.items()}
    parts |= dict.fromkeys(untested, NOT_TESTED)
    return parts, combine(list(parts.values()))


def combine(verdicts: Sequence[str]) -> str:
    """Returns the verdict on the whole, of those on its parts."""
    for verdict in (INVALID, INCOMPLETE):
        if verdict in verdicts:
            return verdict
    for verdict in (NOT_TESTED, SHOWN):
        if set(verdicts) <= {verdict}:
            return verdict
    if SHOWN in verdicts or PARTLY in verdicts:
        return PARTLY
    return OPPOSITE if OPPOSITE in verdicts else NOT_SHOWN
