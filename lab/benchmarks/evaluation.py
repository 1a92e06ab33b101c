"""kNN and the path of logistic regression, next to scikit-learn.

kNN must predict the same classes, and our objective must be as low at every
penalty. Theirs may be higher, since its steps are limited.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from lab.benchmarks import measure
from lab.benchmarks.options import Common, Evaluation
from tf_contrastive import classifiers
from tf_contrastive.evaluation import logistic

_NEIGHBORS, _BANK_CLASSES, _PATH_CLASSES = 5, 100, 10
# Steps of a fit of scikit-learn, at most: its own default, with which fits at
# low penalties do not converge.
_PATH_STEPS = 100

_COLUMNS = {
    "task": "{case}",
    "implementation": "{implementation}",
    "s": "{seconds:.2f}",
    "times ours": "{times_ours:.2f}",
    "peak growth MiB": "{peak_growth_mib:.0f}",
    "error": "{error:.1e}",
    "note": "{note}",
}


def embeddings(
    count: int, dimension: int, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns embeddings as encoders make them: few strong directions, a ReLU.

    Classes overlap, so that the objective has a proper minimum even at the
    lowest penalty: (float32 [n, D], not negative; labels int64 [n]).
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


def run(common: Common, options: Evaluation) -> measure.Report:
    """Measures each of the tasks."""
    rows: list[measure.Row] = []
    for name in options.tasks:
        task = TASKS[name]
        title = task.title.format(**vars(options))
        compared = measure.compare(
            title, task.implementations, options, common, task.errors
        )
        for row in compared:
            spent = row["milliseconds"]
            row["seconds"] = None if spent is None else spent / 1000
            row["error"] = max(row["errors"].values(), default=None)
            rows.append({"task": name, "case": title, **row})
    return measure.Report(rows, measure.table(_COLUMNS, rows))


# ---- Implementations ---------------------------------------------------------


def _bank(options: Evaluation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the bank [m, D], its labels [m], and queries [n, D]."""
    size = options.bank
    rows, labels = embeddings(
        size + options.queries, options.bank_dimension, _BANK_CLASSES
    )
    return rows[:size], labels[:size], rows[size:]


def our_neighbors(options: Evaluation) -> measure.Call:
    """This package's kNN."""
    bank, labels, queries = _bank(options)
    return lambda: classifiers.knn(bank, labels, queries, _NEIGHBORS)


def their_neighbors(options: Evaluation) -> measure.Call:
    """scikit-learn's kNN by cosine, with the cosines as weights of votes."""
    from sklearn import neighbors

    bank, labels, queries = _bank(options)

    def call() -> np.ndarray:
        model = neighbors.KNeighborsClassifier(
            _NEIGHBORS,
            weights=lambda x: 1 - x,
            algorithm="brute",
            metric="cosine",
        )
        return model.fit(bank, labels).predict(queries)

    return call


def _path_inputs(
    options: Evaluation,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns embeddings [n, D], labels [n], and the penalties."""
    rows, labels = embeddings(
        options.path_examples, options.path_dimension, _PATH_CLASSES
    )
    return rows, labels, logistic.path_of(options.path_penalties)


def our_path(options: Evaluation) -> measure.Call:
    """This package's warm-started path: the objective at every penalty."""
    rows, labels, path = _path_inputs(options)

    def call() -> np.ndarray:
        problem = logistic.Problem(rows, labels, _PATH_CLASSES)
        fits = logistic.fit_path(problem, path)
        return _objectives(rows, labels, path, fits)

    return call


def their_path(options: Evaluation) -> measure.Call:
    """scikit-learn's fits, each of which starts at zero."""
    from sklearn import exceptions, linear_model

    rows, labels, path = _path_inputs(options)

    def fit(penalty: float) -> logistic.Fit:
        model = linear_model.LogisticRegression(
            C=1 / penalty, solver="lbfgs", tol=1e-8, max_iter=_PATH_STEPS
        ).fit(rows, labels)
        return logistic.Fit(model.coef_.T, model.intercept_, 0.0, 0)

    def call() -> np.ndarray:
        with warnings.catch_warnings():
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


class Task(NamedTuple):
    """What is computed by several implementations, the first of them ours."""

    title: str  # Format of the options.
    implementations: dict[str, measure.Maker]
    # (outputs, our outputs) -> name -> error.
    errors: Callable[[np.ndarray, np.ndarray], dict[str, measure.Error]]


TASKS = {
    "knn": Task(
        f"{_NEIGHBORS}NN of" + " {queries:,} against {bank:,} embeddings of"
        " {bank_dimension:,}",
        {"ours": our_neighbors, "scikit-learn": their_neighbors},
        # Fraction that differs: votes that are equal up to rounding.
        lambda theirs, ours: {
            "predictions": measure.Error(float(np.mean(theirs != ours)), 1e-3)
        },
    ),
    "logistic": Task(
        "{path_penalties} penalties on {path_examples:,} embeddings of"
        " {path_dimension:,}",
        {"ours": our_path, "scikit-learn": their_path},
        # Largest relative excess of our objective over the penalties.
        lambda theirs, ours: {
            "objective": measure.Error(
                float(np.max((ours - theirs) / np.abs(theirs), initial=0.0)),
                1e-4,
            )
        },
    ),
}
