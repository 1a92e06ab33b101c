"""What a measurement comes to: an entry of the results, as JSON has it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_contrastive.evaluation import statistics
from tf_contrastive.evaluation.subject import Subject

# What a protocol returns: see `protocols.Protocol`.
Measurement = dict[str, Any]


def entry(
    subject: Subject,
    part: Measurement,
    *,
    protocol: str,
    variant: str,
    version: str,
    hyperparameters: dict[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """One entry of the results of `protocols.run`, which says what is in it.

    Args:
      subject: what was measured.
      part: its measurement, or one of several.
      protocol, variant, version, hyperparameters: by what.
      seconds: that it took.
    """
    correct = part.get("correct")
    scored = correct if correct is not None else part.get("labels")
    row = {
        "encoder": subject.name,
        "protocol": protocol,
        "variant": variant,
        "version": version,
        "scale": subject.options.evaluation.scale,
        "hyperparameters": hyperparameters,
        "top1": part.get("top1"),
        "top1_interval": _interval(
            correct,
            _labels_of(subject, part) if part.get("per_class") else None,
        ),
        "top5": part.get("top5"),
        "top5_interval": _interval(part.get("correct5")),
        "metrics": part.get("metrics", {}),
        "examples": subject.test.info.num_examples
        if scored is None
        else len(scored),
        "seconds": round(seconds, 3),
    }
    if "dataset" in part:
        row["dataset"] = part["dataset"]
    return plain(row)


def _labels_of(subject: Subject, part: Measurement) -> np.ndarray:
    """The labels of the examples that a measurement scored."""
    labels = part.get("labels")
    return subject.embeddings("test")[1] if labels is None else labels


def _interval(
    correct: np.ndarray | None, labels: np.ndarray | None = None
) -> list[float] | None:
    """The 95 % interval of a share of hits, or of its mean over classes."""
    return None if correct is None else statistics.interval(correct, labels)


def plain(value: Any) -> Any:
    """Returns `value` with NumPy's numbers and arrays as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
