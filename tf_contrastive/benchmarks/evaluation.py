"""kNN and the path of logistic regression, beside scikit-learn's.

Both get the same embeddings, float32. kNN must predict the same classes, and
the objective must be as low at every penalty: scikit-learn's fits, each from
zero, end after `--path_steps`, and then stand higher than ours.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_contrastive import classifiers
from tf_contrastive.benchmarks import measure
from tf_contrastive.config import fields
from tf_contrastive.config.benchmark import Benchmark, EvaluationBenchmark
from tf_contrastive.evaluation import logistic

# Share of predictions that may differ (votes that are equal up to rounding),
# and the largest relative difference of an objective.
_PREDICTIONS = 1e-3
_OBJECTIVE = 1e-4


@dataclasses.dataclass(frozen=True)
class Neighbors:
    """Queries against a bank of labelled embeddings."""

    queries: int
    bank: int
    dimension: int
    classes: int
    k: int

    def __str__(self) -> str:
        return (
            f"{self.k}NN of {self.queries:,} against {self.bank:,} embeddings"
            f" of {self.dimension:,}"
        )

    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bank [m, D], its labels [m], and queries [n, D]."""
        rows, labels = embeddings(
            self.bank + self.queries, self.dimension, self.classes
        )
        return rows[: self.bank], labels[: self.bank], rows[self.bank :]


@dataclasses.dataclass(frozen=True)
class Path:
    """Logistic regression of the same embeddings at every penalty."""

    examples: int
    dimension: int
    classes: int
    penalties: int
    steps: int

    def __str__(self) -> str:
        return (
            f"{self.penalties} penalties on {self.examples:,} embeddings of"
            f" {self.dimension:,}, {self.classes} classes"
        )

    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Embeddings [n, D] and labels [n]."""
        return embeddings(self.examples, self.dimension, self.classes)

    def path(self) -> np.ndarray:
        """The penalties, the highest first."""
        return logistic.path_of(self.penalties)


def embeddings(
    count: int, dimension: int, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings such as encoders make: a few strong directions, and a ReLU.

    Classes overlap, so that the objective has a minimum worth the name at the
    lowest penalty, too.

    Args:
      count: n.
      dimension: D.
      classes: of which the n have about as many examples each.

    Returns:
      (float32 [n, D], not negative; labels int64 [n]).
    """
    draws = np.random.default_rng(0)
    labels = draws.integers(0, classes, count)
    latent = min(64, dimension)
    centers = draws.standard_normal([classes, latent], np.float32)
    mixing = draws.standard_normal([latent, dimension], np.float32)
    # Variances that fall as a power, the trained encoder's mark.
    mixing *= np.arange(1, latent + 1, dtype=np.float32)[:, np.newaxis] ** -0.5
    rows = np.empty([count, dimension], np.float32)
    for start in range(0, count, 4096):
        own = labels[start : start + 4096]
        noise = draws.standard_normal([len(own), latent], np.float32)
        part = (0.25 * centers[own] + noise) @ mixing
        part += 0.3 * draws.standard_normal(part.shape, np.float32)
        rows[start : start + 4096] = np.maximum(part, 0)
    return rows, labels


def run(options: Benchmark, say: Callable[[str], None]) -> measure.Report:
    """Measures each of the tasks.

    Args:
      options: validated.
      say: is told what is being done.
    """
    chosen = options.evaluation
    results = []
    passed = True
    for task in fields.split_list(chosen.tasks):
        case = _case(task, chosen)
        makers = IMPLEMENTATIONS[task]
        if options.benchmarking.only_ours:
            makers = {"ours": makers["ours"]}
        found = measure.side_by_side(
            makers,
            case,
            errors=_ERRORS[task],
            skipped={},
            repeats=options.benchmarking.repeats,
            memory=options.benchmarking.memory,
            say=say,
        )
        passed &= not any(result.failed for result in found)
        results += [
            {
                "task": task,
                "case": str(case),
                **dataclasses.asdict(case),
                **dataclasses.asdict(result),
                "memory_times_ours": _memory_ratio(result, found[0]),
            }
            for result in found
        ]
    return measure.Report(results, [_table(results)], passed)


def _case(task: str, chosen: EvaluationBenchmark) -> Neighbors | Path:
    if task == "knn":
        return Neighbors(
            chosen.queries,
            chosen.bank,
            chosen.bank_dimension,
            chosen.bank_classes,
            chosen.neighbors,
        )
    return Path(
        chosen.path_examples,
        chosen.path_dimension,
        chosen.path_classes,
        chosen.path_penalties,
        chosen.path_steps,
    )


def _memory_ratio(result: measure.Result, ours: measure.Result) -> float | None:
    if result.peak_growth_mib is None or not ours.peak_growth_mib:
        return None
    return result.peak_growth_mib / ours.peak_growth_mib


def _table(results: list[dict[str, Any]]) -> str:
    columns = {
        "task": "{case}",
        "implementation": "{implementation}",
        "s": "{seconds:.2f}",
        "times ours": "{times_ours:.2f}",
        "peak growth MiB": "{peak_growth_mib:.0f}",
        "memory, times ours": "{memory_times_ours:.2f}",
        "error": "{error:.1e}",
        "note": "{note}",
    }
    rows = [
        {
            **result,
            "seconds": None
            if result["milliseconds"] is None
            else result["milliseconds"] / 1000,
            "error": max(result["errors"].values(), default=None),
        }
        for result in results
    ]
    return measure.table(columns, rows)


def _differing(
    outputs: np.ndarray, ours: np.ndarray
) -> dict[str, measure.Error]:
    """Share of the predictions that differ."""
    share = float(np.mean(outputs != ours))
    return {"predictions": measure.Error(share, _PREDICTIONS)}


def _objective_error(
    outputs: np.ndarray, ours: np.ndarray
) -> dict[str, measure.Error]:
    """By what share ours is worse than theirs, at most over the penalties.

    Theirs may be the worse one: its steps are limited.
    """
    error = float(np.max((ours - outputs) / np.abs(outputs), initial=0.0))
    return {"objective": measure.Error(error, _OBJECTIVE)}


# ---- Implementations ---------------------------------------------------------


def our_neighbors(case: Neighbors) -> measure.Call:
    """This package's kNN."""
    bank, labels, queries = case.inputs()
    return lambda: classifiers.knn(bank, labels, queries, case.k)


def _cosines(distances: np.ndarray) -> np.ndarray:
    return 1 - distances


def their_neighbors(case: Neighbors) -> measure.Call:
    """scikit-learn's kNN, by cosine, whose votes have the cosines' weights."""
    from sklearn import neighbors

    bank, labels, queries = case.inputs()

    def call():
        model = neighbors.KNeighborsClassifier(
            case.k, weights=_cosines, algorithm="brute", metric="cosine"
        )
        return model.fit(bank, labels).predict(queries)

    return call


def our_path(case: Path) -> measure.Call:
    """This package's warm-started path: the objective at every penalty."""
    rows, labels = case.inputs()

    def call():
        problem = logistic.Problem(rows, labels, case.classes)
        fits = logistic.fit_path(problem, case.path())
        return _objectives(rows, labels, case.path(), fits)

    return call


def their_path(case: Path) -> measure.Call:
    """scikit-learn's fits, each from zero."""
    from sklearn import exceptions, linear_model

    rows, labels = case.inputs()

    def fit(penalty):
        model = linear_model.LogisticRegression(
            C=1 / penalty, solver="lbfgs", tol=1e-8, max_iter=case.steps
        ).fit(rows, labels)
        return logistic.Fit(model.coef_.T, model.intercept_, 0.0, 0)

    def call():
        with warnings.catch_warnings():
            # Of fits that end early: known, and many.
            warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
            fits = [fit(penalty) for penalty in case.path()]
        return _objectives(rows, labels, case.path(), fits)

    return call


def _objectives(
    rows: np.ndarray,
    labels: np.ndarray,
    path: np.ndarray,
    fits: list[logistic.Fit],
) -> np.ndarray:
    """The objective of each fit in float64, whoever made it: [penalties]."""
    own = (np.arange(len(labels)), labels)
    found = []
    for penalty, fit in zip(path, fits, strict=True):
        logits = fit._replace(
            kernel=np.float64(fit.kernel), bias=np.float64(fit.bias)
        ).logits(rows)
        largest = logits.max(axis=1)
        total = np.exp(logits - largest[:, np.newaxis]).sum(axis=1)
        losses = largest + np.log(total) - logits[own]
        weights = np.sum(np.float64(fit.kernel) ** 2)
        found.append(losses.sum() + penalty / 2 * weights)
    return np.array(found)


# Task -> implementations of it; the first is ours.
IMPLEMENTATIONS: dict[str, dict[str, measure.Make]] = {
    "knn": {"ours": our_neighbors, "scikit-learn": their_neighbors},
    "logistic": {"ours": our_path, "scikit-learn": their_path},
}
_ERRORS = {"knn": _differing, "logistic": _objective_error}
