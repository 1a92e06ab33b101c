"""Is one encoder better than another? Paired tests on the same test examples.

SINCERE's bootstrap of the difference, and SimCLR's permutation test (PAPERS
5.5): a difference counts where both of them say so.
"""

import os
from typing import Any

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.evaluation import records, statistics

# Of `statistics.compare`.
_FOUND = ("difference", "low", "high", "p_value", "verdict")
# Folder of a run's records.
FOLDER = "evaluation"


def compare(a: str, b: str, seed: int = 0) -> dict[str, Any]:
    """Compares two encoders by every protocol that both were measured by.

    Args:
      a, b: a run, `RUN:ENCODER` of one, a folder of records, or a record.
      seed: of resamples and draws.

    Returns:
      {"a", "b", "results": [{"protocol", "variant", "version", "dataset",
      "examples", "top1_a", "top1_b", "difference" (of a over b), "low", "high"
      (95 %), "p_value", "verdict" ("better", "worse" or "tied": what a is)},
      ...], "left_out": [{"protocol", "variant", "reason"}, ...]}.

    Raises:
      UserError: for no results, or none in common.
    """
    ours, theirs = find(a), find(b)
    results, left_out = [], []
    for key in sorted({*ours, *theirs}):
        reason = _differing(ours.get(key), theirs.get(key), a, b)
        if reason:
            named = {"protocol": key[0], "variant": key[1]}
            left_out.append({**named, "reason": reason})
        else:
            results.append(_compared(key, ours[key], theirs[key], seed))
    if not results:
        reasons = "; ".join(
            f"{records.name_of(x)}: {x['reason']}" for x in left_out
        )
        raise errors.UserError(
            f"{a} and {b} have no result in common ({reasons}): evaluate both"
            " by the same protocols, hyperparameters and data"
        )
    return {"a": a, "b": b, "results": results, "left_out": left_out}


def find(name: str) -> dict[tuple[str, str], records.Hits]:
    """Reads the results that a side of the comparison names.

    Args:
      name: see `compare`.

    Raises:
      UserError: if there are none.
    """
    if name.endswith(".npz"):
        found = records.read(name)
    else:
        folder, encoder = name, "trained"
        # What follows a scheme or a drive begins with a slash.
        place, colon, last = name.rpartition(":")
        if colon and "/" not in last and not tf.io.gfile.isdir(name):
            folder, encoder = place, last
        if tf.io.gfile.isdir(os.path.join(folder, FOLDER)):
            folder = os.path.join(folder, FOLDER)
        found = records.read_all(folder, encoder)
    if not found:
        raise errors.UserError(
            f"no results of {name} to compare: run `evaluate workdir=RUN`"
            " first, and give RUN, RUN:untrained or a file of"
            " RUN/evaluation/*.npz"
        )
    return found


def _differing(
    ours: records.Hits | None, theirs: records.Hits | None, a: str, b: str
) -> str | None:
    """What keeps two results from being compared, or None."""
    if ours is None or theirs is None:
        return f"not measured of {a if ours is None else b}"
    for fact in ("dataset", "split", "labels", "version", "hyperparameters"):
        mine, other = ours.about[fact], theirs.about[fact]
        if mine != other:
            if fact == "labels":
                return "their test examples differ"
            return f"{fact} {mine} of {a}, {other} of {b}"
    return None


def _compared(
    key: tuple[str, str], ours: records.Hits, theirs: records.Hits, seed: int
) -> dict[str, Any]:
    found = statistics.compare(
        ours.correct, theirs.correct, seed=seed, labels=ours.classes
    )
    return {
        "protocol": key[0],
        "variant": key[1],
        "version": ours.about["version"],
        "dataset": ours.about["dataset"],
        "examples": len(ours.correct),
        "top1_a": ours.top1,
        "top1_b": theirs.top1,
        **{name: found[name] for name in _FOUND},
    }
