"""Paired tests of whether one encoder is better than another.

Two encoders are compared on the same test examples, by the bootstrap of the
difference (Feeney and Hughes 2024, SINCERE, section 5) and by a permutation
test (Chen et al. 2020, SimCLR, appendix B.8). One is better if both find a
significant difference.
"""

import io
import json
import os
import re
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.evaluation import statistics
from tf_contrastive.evaluation.report import ABOUT, FOLDER, entry_name, row_name


class Hits(NamedTuple):
    """Which test examples one variant of a protocol classified correctly."""

    about: dict[str, Any]  # See `Report`.
    correct: np.ndarray  # Bool [n], or fractions.


def read(path: str) -> dict[tuple[str, str], Hits]:
    """Reads the npz file of one protocol: (protocol, variant) -> hits.

    Variants without hits are left out. Raises `UserError` for another file.
    """
    try:
        file = io.BytesIO(files.read(path))
        arrays = dict(np.load(file, allow_pickle=False))
        about = json.loads(str(arrays[ABOUT]))
        return {
            (facts["protocol"], variant): Hits(
                facts, arrays[entry_name(variant, "correct")]
            )
            for variant, facts in about.items()
            if "labels" in facts
        }
    except Exception as error:  # NumPy raises a dozen kinds for damaged files.
        raise errors.UserError(
            f"{path} is not a results file ({errors.first_line(error)}): use"
            " one that `evaluate` wrote, such as RUN/evaluation/trained-knn.npz"
        ) from error


def compare(a: str, b: str, seed: int = Evaluation.seed) -> dict[str, Any]:
    """Compares two encoders by every protocol that both were measured by.

    Args:
      a, b: a run, or `RUN:ENCODER`.
      seed: seed of resamples and draws.

    Returns:
      {"a", "b", "results": [{"protocol", "variant", "version", "dataset",
      "examples", "top1_a", "top1_b", and `statistics.compare` of a against
      b}, ...], "left_out": [{"protocol", "variant", "reason"}, ...],
      "warnings": a line for each side with results of several checkpoints}.

    Raises:
      UserError: without results, or without common ones.
    """
    hits_a, hits_b = find(a), find(b)
    rows, left_out = [], []
    for protocol, variant in sorted({*hits_a, *hits_b}):
        key = protocol, variant
        row: dict[str, Any] = {"protocol": protocol, "variant": variant}
        if reason := _difference(hits_a.get(key), hits_b.get(key), a, b):
            left_out.append(row | {"reason": reason})
            continue
        correct_a, correct_b = hits_a[key].correct, hits_b[key].correct
        about = hits_a[key].about
        row |= {name: about[name] for name in ("version", "dataset")}
        row |= {
            "examples": len(correct_a),
            "top1_a": float(correct_a.mean()),
            "top1_b": float(correct_b.mean()),
        }
        rows.append(row | statistics.compare(correct_a, correct_b, seed=seed))
    if not rows:
        reasons = "; ".join(
            f"{row_name(row)}: {row['reason']}" for row in left_out
        )
        raise errors.UserError(
            f"{a} and {b} have no result in common ({reasons}): evaluate both"
            " by the same protocols, hyperparameters and data"
        )
    warnings = []
    for name, hits in ((a, hits_a), (b, hits_b)):
        compared = [hits[row["protocol"], row["variant"]].about for row in rows]
        steps = {facts["checksum"]: facts["step"] for facts in compared}
        if len(steps) > 1:
            listed = ", ".join(f"step {steps[x]}, {x[:12]}" for x in steps)
            warnings.append(
                f"{name}: these results are of several checkpoints ({listed}):"
                " evaluate one checkpoint by all of the protocols"
            )
    return {
        "a": a,
        "b": b,
        "results": rows,
        "left_out": left_out,
        "warnings": warnings,
    }


def find(name: str) -> dict[tuple[str, str], Hits]:
    """Reads the results of one side of a comparison; see `compare`."""
    folder, encoder = name, "trained"
    # A colon followed by a slash belongs to a scheme or a drive.
    prefix, colon, suffix = name.rpartition(":")
    if colon and "/" not in suffix and not tf.io.gfile.isdir(name):
        folder, encoder = prefix, suffix
    hits: dict[tuple[str, str], Hits] = {}
    for path in files.entries(
        os.path.join(folder, FOLDER), rf"{re.escape(encoder)}-.*\.npz"
    ):
        hits |= read(path)
    if not hits:
        raise errors.UserError(
            f"no results of {name} to compare: run `evaluate"
            f" {errors.arg('workdir', 'RUN')}` first, and pass RUN or"
            " RUN:untrained"
        )
    return hits


def _difference(
    hits_a: Hits | None, hits_b: Hits | None, a: str, b: str
) -> str | None:
    """Returns why two results cannot be compared, or None."""
    if hits_a is None or hits_b is None:
        return f"not measured for {a if hits_a is None else b}"
    facts = "dataset split labels train_split train_labels version"
    for fact in (*facts.split(), "hyperparameters"):
        value_a, value_b = hits_a.about.get(fact), hits_b.about.get(fact)
        if value_a != value_b:
            if "labels" in fact:
                return f"the {fact} of their examples differ"
            return f"{fact} {value_a} of {a}, {value_b} of {b}"
    return None
