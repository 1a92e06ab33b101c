"""Whether a relation that a paper claims holds, by a paired test over seeds."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_contrastive import errors

HOLDS, FAILS, OPEN = "holds", "fails", "not significant"
INCOMPLETE = "incomplete"
# Probability below which chance is ruled out. Of n seeds the test cannot go
# below 2^-n: five are needed.
LEVEL = 0.05
FEWEST = 5
# Beyond so many seeds, signs are drawn, not enumerated.
_ENUMERATED = 16
_DRAWS = 100_000
# |d*| >= |d| compares sums of the same terms in another order.
_ROUNDING = 1e-12


def sign_flip(differences: Sequence[float]) -> float:
    """One-sided p of a mean above zero, by the paired sign-flip test.

    Where there is no effect, a difference is as likely as its negative: p is
    the share of the assignments of signs whose mean is at least the one seen.

    Args:
      differences: of the pairs, one for each seed.

    Returns:
      p in [2^-n, 1]; exact up to 16 pairs, then of 100,000 draws.

    Raises:
      UserError: for no differences, or NaN.

    Fisher 1935, section 21.
    """
    found = np.asarray(differences, np.float64)
    if found.ndim != 1 or not found.size or not np.isfinite(found).all():
        raise errors.UserError(
            f"differences are {found.tolist()}: give one number for each seed"
        )
    if len(found) <= _ENUMERATED:
        signs = np.array(list(itertools.product((1, -1), repeat=len(found))))
    else:
        draws = np.random.RandomState(0)
        signs = draws.choice((1, -1), (_DRAWS, len(found)))
        signs[0] = 1  # The one seen is among them.
    slack = _ROUNDING * np.abs(found).sum()
    return float(np.mean(signs @ found >= found.sum() - slack))


def judge(
    left: Sequence[float], right: Sequence[float], bound: float, at_least: bool
) -> dict[str, Any]:
    """Tests that left - right is at least (or at most) a bound.

    Args:
      left, right: [seeds], paired.
      bound: the minimal effect, in their unit.
      at_least: or else at most.

    Returns:
      {"differences" [seeds], "mean", "p" that chance alone puts them on the
      claimed side of the bound, "p_against" that it puts them on the other,
      "verdict": "holds" or "fails" where the one or the other is at most 0.05,
      else "not significant"}.
    """
    differences = np.subtract(left, right, dtype=np.float64)
    beyond = differences - bound if at_least else bound - differences
    p, against = sign_flip(beyond), sign_flip(-beyond)
    verdict = HOLDS if p <= LEVEL else FAILS if against <= LEVEL else OPEN
    return {
        "differences": differences.tolist(),
        "mean": float(differences.mean()),
        "p": p,
        "p_against": against,
        "verdict": verdict,
    }


def combine(verdicts: Sequence[str]) -> str:
    """The verdict on a claim of several relations, which must all hold.

    An intersection-union test: each at its own level keeps the whole one's.
    """
    for verdict in (INCOMPLETE, FAILS, OPEN):
        if verdict in verdicts:
            return verdict
    return HOLDS
