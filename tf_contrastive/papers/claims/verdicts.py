"""Whether a claimed relation holds: a paired test over seeds."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_contrastive import errors
from tf_contrastive.papers.claims import definitions

HOLDS, FAILS, OPEN = "holds", "fails", "not significant"
INCOMPLETE = "incomplete"
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
    values = np.asarray(differences, np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise errors.UserError(
            f"differences are {values.tolist()}: pass one number per seed"
        )
    if len(values) <= _MAX_ENUMERATED:
        signs = np.array(list(itertools.product((1, -1), repeat=len(values))))
    else:
        random = np.random.RandomState(0)
        signs = random.choice((1, -1), (_DRAWS, len(values)))
        signs[0] = 1  # The observed signs.
    slack = _ROUNDING * np.abs(values).sum()
    return float(np.mean(signs @ values >= values.sum() - slack))


def judge(
    left: Sequence[float], right: Sequence[float], bound: float, at_least: bool
) -> dict[str, Any]:
    """Tests that left - right [seeds] is at least (or at most) a bound.

    Returns:
      {"differences" [seeds], "mean", "p" (of the claimed side of the bound),
      "p_against" (of the other side), "verdict": "holds" if p is at most 0.05,
      "fails" if p_against is, else "not significant"}.
    """
    differences = np.subtract(left, right, dtype=np.float64)
    beyond = differences - bound if at_least else bound - differences
    p, against = sign_flip(beyond), sign_flip(-beyond)
    return {
        "differences": differences.tolist(),
        "mean": float(differences.mean()),
        "p": p,
        "p_against": against,
        "verdict": HOLDS if p <= LEVEL else FAILS if against <= LEVEL else OPEN,
    }


def judge_all(
    relations: Sequence[definitions.Relation],
    units: Sequence[Mapping[str, Any]],
    seeds: int,
) -> list[dict[str, Any]]:
    """Judges every relation in each of its cases.

    Relations that lack one of `seeds` in the units of a result are incomplete.

    Returns:
      A row for each relation and case: "relation", "case", and what `judge`
      returns.
    """
    table = {(u["case"], u["arm"], u["seed"]): u["values"] for u in units}

    def read(term: definitions.Term | None, case: str) -> list[float] | None:
        if term is None:
            return [0.0] * seeds
        keys = [(term.case or case, term.arm, seed) for seed in range(seeds)]
        values = [table.get(key, {}).get(term.value) for key in keys]
        return None if None in values else values

    rows = []
    for relation in relations:
        for case in relation.cases:
            left, right = read(relation.left, case), read(relation.right, case)
            judged: dict[str, Any] = {"verdict": INCOMPLETE}
            if left is not None and right is not None:
                judged = judge(left, right, relation.bound, relation.at_least)
            rows.append({"relation": relation.text, "case": case} | judged)
    return rows


def combine(verdicts: Sequence[str]) -> str:
    """Returns the verdict on a claim, all of whose relations must hold.

    An intersection-union test: each relation is tested at the level of the
    whole.
    """
    order = (INCOMPLETE, FAILS, OPEN, HOLDS)
    return next((v for v in order if v in verdicts), "no relation")
