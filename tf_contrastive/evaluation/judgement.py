"""Whether an encoder is any good: better than an untrained one and guessing."""

from typing import Any, NamedTuple

import numpy as np

from tf_contrastive.config import checks
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.evaluation import results, statistics
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.results import Measurement

# By which results it is judged, if they are there: the last default first.
_PREFERRED = checks.split_list(Evaluation.protocols)[::-1]


class _Answers(NamedTuple):
    name: str  # Protocol and variant.
    correct: np.ndarray  # [n]


class Judgement:
    """Collects which test images encoders classify correctly."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], _Answers] = {}
        self._majority: tuple[str, np.ndarray] | None = None

    def add(
        self,
        context: EvaluationContext,
        rows: list[dict[str, Any]],
        parts: list[Measurement],
    ) -> None:
        """Adds results of a protocol; the last variant counts."""
        for row, part in zip(rows, parts, strict=True):
            if "predictions" not in part or "dataset" in part:
                continue
            if "labels" in part or "correct" not in part:
                continue
            key = context.subject.name, row["protocol"]
            answers = np.asarray(part["correct"])
            self._answers[key] = _Answers(results.row_name(row), answers)
            if self._majority is None:
                self._majority = _majority(context)

    def line(self) -> str:
        """Says in a line how good the trained encoder is; empty: not known."""
        trained = {
            protocol: answers
            for (encoder, protocol), answers in self._answers.items()
            if encoder == "trained"
        }
        names = [n for n in _PREFERRED if n in trained] or [*trained]
        if not names or self._majority is None:
            return ""
        name, correct = trained[names[0]]
        others = {}
        untrained = self._answers.get(("untrained", names[0]))
        if untrained and untrained.name == name:
            others["untrained"] = untrained.correct
        label, hits = self._majority
        others[f"always {label}"] = hits
        clauses = [
            _clause(correct, baseline, other)
            for other, baseline in others.items()
        ]
        return (
            f"trained encoder, {name} {correct.mean():.4f}:"
            f" {', and '.join(clauses)}, by McNemar's test"
        )


def _majority(context: EvaluationContext) -> tuple[str, np.ndarray]:
    """Returns the most frequent class of train, and where it is right."""
    info = context.data.train.info
    label = int(np.bincount(context.labels("train")).argmax())
    name = info.label_names[label] if info.label_names else f"class {label}"
    return f'"{name}"', context.labels("test") == label


def _clause(correct: np.ndarray, baseline: np.ndarray, name: str) -> str:
    found = statistics.compare(correct, baseline)
    verdict = found["verdict"]
    than = "tied with" if verdict == "tied" else f"{verdict} than"
    p_value = found["p_value"]
    p = "p < 0.0001" if p_value < 1e-4 else f"p = {p_value:.4f}"
    return (
        f"{than} {name} {baseline.mean():.4f}"
        f" ({found['difference']:+.4f}, 95 %"
        f" {found['low']:+.4f}..{found['high']:+.4f}, {p})"
    )
