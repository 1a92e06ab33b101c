"""kNN and the path of logistic regression, next to scikit-learn.

Both get the same float32 embeddings. kNN must predict the same classes, and our
objective must be as low at every penalty. scikit-learn's fits start at zero and
end after `path_steps`, where their objective may still be higher.
"""

import dataclasses
import warnings

import numpy as np
from scipy import special

from tf_contrastive import classifiers
from tf_contrastive.benchmarks import measure
from tf_contrastive.config import fields
from tf_contrastive.config.benchmark import Benchmark
from tf_contrastive.evaluation import logistic

# Fraction of predictions that may differ (votes that are equal up to rounding),
# and the largest relative difference of an objective.
_PREDICTIONS = 1e-3
_OBJECTIVE = 1e-4

_COLUMNS = {
    "task": "{case}",
    "implementation": "{implementation}",
    "s": "{seconds:.2f}",
    "times ours": "{times_ours:.2f}",
    "peak growth MiB": "{peak_growth_mib:.0f}",
    "memory, times ours": "{memory_times_ours:.2f}",
    "error": "{error:.1e}",
    "note": "{note}",
}


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
        """Returns the bank [m, D], its labels [m], and queries [n, D]."""
        rows, labels = embeddings(
            self.bank + self.queries, self.dimension, self.classes
        )
        return rows[: self.bank], labels[: self.bank], rows[self.bank :]


@dataclasses.dataclass(frozen=True)
class Path:
    """Logistic regression on the same embeddings at every penalty."""

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


def embeddings(
    count: int, dimension: int, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns embeddings as encoders make them: few strong directions, a ReLU.

    Classes overlap, so that the objective has a proper minimum even at the
    lowest penalty.

    Args:
      count: n.
      dimension: D.
      classes: each with about n / classes examples.

    Returns:
      (float32 [n, D], not negative; labels int64 [n]).
    """
    generator = np.random.default_rng(0)
    labels = generator.integers(0, classes, count)
    latent = min(64, dimension)
    centers = generator.standard_normal([classes, latent], np.float32)
    mixing = generator.standard_normal([latent, dimension], np.float32)
    # Variances that follow a power law, as in trained encoders.
    mixing *= np.arange(1, latent + 1, dtype=np.float32)[:, np.newaxis] ** -0.5
    rows = np.empty([count, dimension], np.float32)
    for start in range(0, count, 4096):
        own = labels[start : start + 4096]
        noise = generator.standard_normal([len(own), latent], np.float32)
        part = (0.25 * centers[own] + noise) @ mixing
        part += 0.3 * generator.standard_normal(part.shape, np.float32)
        rows[start : start + 4096] = np.maximum(part, 0)
    return rows, labels


def run(options: Benchmark) -> measure.Report:
    """Measures each of the tasks."""
    chosen = options.evaluation
    cases = {
        "knn": Neighbors(
            chosen.queries,
            chosen.bank,
            chosen.bank_dimension,
            chosen.bank_classes,
            chosen.neighbors,
        ),
        "logistic": Path(
            chosen.path_examples,
            chosen.path_dimension,
            chosen.path_classes,
            chosen.path_penalties,
            chosen.path_steps,
        ),
    }
    rows: list[measure.Row] = []
    for task in fields.split_list(chosen.tasks):
        case = cases[task]
        compared = measure.compare(
            IMPLEMENTATIONS[task], case, options.benchmarking, _ERRORS[task]
        )
        ours = compared[0]["peak_growth_mib"]
        for row in compared:
            growth, spent = row["peak_growth_mib"], row["milliseconds"]
            ratio = growth / ours if growth and ours else None
            row["memory_times_ours"] = ratio
            row["seconds"] = None if spent is None else spent / 1000
            row["error"] = max(row["errors"].values(), default=None)
            rows.append({"task": task, "case": str(case), **row})
    return measure.Report(rows, [measure.table(_COLUMNS, rows)])


def _prediction_error(
    outputs: np.ndarray, ours: np.ndarray
) -> dict[str, measure.Error]:
    """Fraction of the predictions that differ."""
    fraction = float(np.mean(outputs != ours))
    return {"predictions": measure.Error(fraction, _PREDICTIONS)}


def _objective_error(
    outputs: np.ndarray, ours: np.ndarray
) -> dict[str, measure.Error]:
    """Largest relative excess of our objective over the penalties.

    Theirs may be higher: its steps are limited.
    """
    error = float(np.max((ours - outputs) / np.abs(outputs), initial=0.0))
    return {"objective": measure.Error(error, _OBJECTIVE)}


# ---- Implementations ---------------------------------------------------------


def our_neighbors(case: Neighbors) -> measure.Call:
    """This package's kNN."""
    bank, labels, queries = case.inputs()
    return lambda: classifiers.knn(bank, labels, queries, case.k)


def their_neighbors(case: Neighbors) -> measure.Call:
    """scikit-learn's kNN by cosine, with the cosines as weights of votes."""
    from sklearn import neighbors

    bank, labels, queries = case.inputs()

    def call() -> np.ndarray:
        model = neighbors.KNeighborsClassifier(
            case.k, weights=lambda x: 1 - x, algorithm="brute", metric="cosine"
        )
        return model.fit(bank, labels).predict(queries)

    return call


def our_path(case: Path) -> measure.Call:
    """This package's warm-started path: the objective at every penalty."""
    rows, labels = embeddings(case.examples, case.dimension, case.classes)
    path = logistic.path_of(case.penalties)

    def call() -> np.ndarray:
        problem = logistic.Problem(rows, labels, case.classes)
        fits = logistic.fit_path(problem, path)
        return _objectives(rows, labels, path, fits)

    return call


def their_path(case: Path) -> measure.Call:
    """scikit-learn's fits, each of which starts at zero."""
    from sklearn import exceptions, linear_model

    rows, labels = embeddings(case.examples, case.dimension, case.classes)
    path = logistic.path_of(case.penalties)

    def fit(penalty: float) -> logistic.Fit:
        model = linear_model.LogisticRegression(
            C=1 / penalty, solver="lbfgs", tol=1e-8, max_iter=case.steps
        ).fit(rows, labels)
        return logistic.Fit(model.coef_.T, model.intercept_, 0.0, 0)

    def call() -> np.ndarray:
        with warnings.catch_warnings():
            # Many fits end early, see `_objective_error`.
            warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
            fits = [fit(penalty) for penalty in path]
        return _objectives(rows, labels, path, fits)

    return call


def _objectives(
    rows: np.ndarray,
    labels: np.ndarray,
    path: np.ndarray,
    fits: list[logistic.Fit],
) -> np.ndarray:
    """Returns the objective of each fit, computed in float64: [penalties]."""
    own = (np.arange(len(labels)), labels)
    objectives = []
    for penalty, fit in zip(path, fits, strict=True):
        logits = fit._replace(
            kernel=np.asarray(fit.kernel, np.float64),
            bias=np.asarray(fit.bias, np.float64),
        ).logits(rows)
        losses = special.logsumexp(logits, axis=1) - logits[own]
        weights = np.sum(np.float64(fit.kernel) ** 2)
        objectives.append(losses.sum() + penalty / 2 * weights)
    return np.array(objectives)


# Task -> its implementations; the first is ours.
IMPLEMENTATIONS: dict[str, dict[str, measure.Maker]] = {
    "knn": {"ours": our_neighbors, "scikit-learn": their_neighbors},
    "logistic": {"ours": our_path, "scikit-learn": their_path},
}
_ERRORS = {"knn": _prediction_error, "logistic": _objective_error}
