"""Logistic regression along a path of penalties.

The protocol `logistic`: Chen et al. 2020 (SimCLR), appendix B.8, after
Kornblith et al. 2019, appendix A.4. Multinomial logistic regression with an l2
penalty by L-BFGS; the penalty is chosen out of 45 on examples held out of
train, and test is scored once.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from tf_contrastive import classifiers
from tf_contrastive.base.errors import unknown
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.protocols import Logistic
from tf_contrastive.evaluation import classification, statistics
from tf_contrastive.evaluation.context import EvaluationContext, holdout

# L-BFGS: number of pairs of steps and gradients in memory; relative decrease of
# the objective at which it stops; largest number of steps.
_MEMORY = 10
_TOLERANCE = 1e-7
_STEPS = 10_000
# L-BFGS restarts if it reduced the objective below this fraction.
_RESTART = 0.3
# Directions with less than this fraction of the largest variance are rounding.
_SMALLEST_VARIANCE = 1e-12
# Examples that are in float64 at a time.
_BLOCK = 8192


class Fit(NamedTuple):
    """Softmax regression: kernel float64 [D, C] and bias float64 [C]."""

    kernel: np.ndarray
    bias: np.ndarray
    objective: float  # Sum of cross entropies + penalty / 2 * |kernel|^2.
    steps: int  # Of L-BFGS.

    def logits(self, embeddings: np.ndarray) -> np.ndarray:
        """Returns logits float64 [n, C] of embeddings [n, D]."""
        return embeddings @ self.kernel + self.bias


class Problem:
    """Softmax regression of one set of examples, at any penalty.

    The objective is that of scikit-learn's `LogisticRegression(C=1 / penalty)`
    times the penalty; the bias is not penalized. It is solved in preconditioned
    coordinates, the embeddings' principal axes scaled by the objective's
    curvature along them: embeddings with a few strong directions would
    otherwise take L-BFGS hundreds of steps. The rotation changes neither
    penalty nor solution, and the scaling is undone.

    Embeddings are float [n, D], labels int [n], in [0, classes).
    """

    def __init__(
        self, embeddings: np.ndarray, labels: np.ndarray, classes: int
    ) -> None:
        self._mean = embeddings.mean(axis=0, dtype=np.float64)
        self._axes, self._variances = _principal_axes(embeddings, self._mean)
        # In float32, since every step is limited by reading them; sums are
        # float64. Each product is faster with the layout that suits it.
        size = len(embeddings), len(self._variances)
        self._rows = np.empty(size, np.float32)
        for place, centered in _centered(embeddings, self._mean):
            self._rows[place] = centered @ self._axes
        self._columns = np.ascontiguousarray(self._rows.T)
        self.label(labels, classes)

    def label(self, labels: np.ndarray, classes: int) -> None:
        """Sets the labels, int [n] in [0, classes), of the same examples."""
        self._classes = classes
        self._hits = (labels, np.arange(len(labels)))

    def solve(self, penalty: float, start: Fit | None = None) -> Fit:
        """Minimises the objective, starting from `start`, or from zero.

        The penalty weighs the squared weights against the sum of the examples'
        losses in nats.
        """
        kernel = np.zeros([self._classes, len(self._variances)])
        bias = np.zeros(self._classes)
        if start is not None:
            kernel = start.kernel.T @ self._axes
            bias = start.bias + self._mean @ start.kernel
        steps, value, reached = 0, np.inf, 0.0
        # L-BFGS stops by the decrease relative to its initial value, and is
        # preconditioned by the curvature there: far from these, restart it.
        while reached < _RESTART * value:
            kernel, bias, value, reached, more = self._descend(
                kernel, bias, penalty
            )
            steps += more
        kernel = self._axes @ kernel.T
        return Fit(kernel, bias - self._mean @ kernel, reached, steps)

    def _descend(
        self, kernel: np.ndarray, bias: np.ndarray, penalty: float
    ) -> tuple[np.ndarray, np.ndarray, float, float, int]:
        """Runs L-BFGS: (kernel, bias, value before, value after, steps)."""
        loss, _, spread = self._losses(kernel, bias)
        before = loss + penalty / 2 * np.sum(kernel**2)
        # Curvature along an axis: its variance times the mean p (1 - p), and
        # the penalty.
        stretch = np.sqrt(spread * self._variances + penalty)
        bias_stretch = np.sqrt(max(spread, 1e-12) * self._rows.shape[0])
        scale = 1 / max(before, np.finfo(np.float64).tiny)

        def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
            kernel, bias = self._unpack(point)
            kernel = kernel / stretch
            loss, errors, _ = self._losses(kernel, bias / bias_stretch)
            gradient = (self._columns @ errors.T).T.astype(np.float64)
            gradient += penalty * kernel
            gradient /= stretch
            bias_gradient = errors.sum(axis=1, dtype=np.float64) / bias_stretch
            value = loss + penalty / 2 * np.sum(kernel**2)
            return scale * value, scale * np.concatenate(
                [gradient.ravel(), bias_gradient]
            )

        solution = optimize.minimize(
            objective,
            np.concatenate([(kernel * stretch).ravel(), bias * bias_stretch]),
            jac=True,
            method="L-BFGS-B",
            options={
                "maxcor": _MEMORY,
                "ftol": _TOLERANCE,
                "gtol": 0.0,
                "maxiter": _STEPS,
                "maxfun": 2 * _STEPS,
            },
        )
        kernel, bias = self._unpack(solution.x)
        return (
            kernel / stretch,
            bias / bias_stretch,
            before,
            float(solution.fun / scale),
            int(solution.nit),
        )

    def _unpack(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        kernel, bias = np.split(point, [-self._classes])
        return kernel.reshape(self._classes, -1), bias

    def _losses(
        self, kernel: np.ndarray, bias: np.ndarray
    ) -> tuple[float, np.ndarray, float]:
        """Returns losses, errors float32 [C, n] and curvature, in float32.

        These are the sum of the losses, their gradient by the logits, and the
        mean of p (1 - p) over examples and classes. Logits are relative to that
        of the example's own class, so that the loss of a confidently right
        example keeps its digits (rather than 1 - 1).
        """
        logits = kernel.astype(np.float32) @ self._rows.T
        logits += bias.astype(np.float32)[:, np.newaxis]
        logits -= logits[self._hits]
        logits[self._hits] = -np.inf
        largest = np.maximum(logits.max(axis=0), 0)
        others = np.exp(logits - largest, out=logits)
        own = np.exp(-largest)
        missed = others.sum(axis=0)
        # If another class is ahead, own + missed is at least 1.
        total = own + missed
        losses = np.where(
            largest > 0, largest + np.log(total), np.log1p(missed)
        )
        others /= total
        missed /= total
        others[self._hits] = -missed
        spread = np.mean(np.abs(others) * (1 - np.abs(others)))
        return losses.sum(dtype=np.float64), others, float(spread)


def _centered(
    rows: np.ndarray, mean: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields the rows minus their mean in float64, some at a time."""
    for start in range(0, len(rows), _BLOCK):
        place = slice(start, start + _BLOCK)
        yield place, rows[place] - mean


def _principal_axes(
    rows: np.ndarray, mean: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns axes float64 [D, R] and variances [R], sums over rows [n, D]."""
    n, features = rows.shape
    if n >= features:
        squares = np.zeros([features, features])
        for _, part in _centered(rows, mean):
            squares += part.T @ part
        variances, axes = np.linalg.eigh(squares)
    else:
        centered = rows - mean
        variances, left = np.linalg.eigh(centered @ centered.T)
        axes = centered.T @ (left / np.sqrt(np.maximum(variances, 1e-300)))
    large = variances > _SMALLEST_VARIANCE * max(variances[-1], 1e-300)
    return axes[:, large], variances[large]


def path_of(
    count: int = Logistic.penalties,
    lowest: float = Logistic.lowest_penalty,
    highest: float = Logistic.highest_penalty,
) -> np.ndarray:
    """Returns `count` log-spaced penalties, the highest first."""
    return np.geomspace(highest, lowest, count)


def fit_path(problem: Problem, path: np.ndarray) -> list[Fit]:
    """Solves at each penalty, decreasing, from the previous solution."""
    fits: list[Fit] = []
    for penalty in path:
        fits.append(problem.solve(penalty, fits[-1] if fits else None))
    return fits


def logistic_regression(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    test_labels: np.ndarray,
    *,
    path: np.ndarray | None = None,
    validation: float | np.ndarray = Evaluation.validation_fraction,
    metric: str = "top1",
    seed: int = Evaluation.seed,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Accuracy of logistic regression with a penalty chosen on validation.

    The model is fitted on train without validation at every penalty, starting
    from the previous solution; then, at the penalty that scores best on
    validation (of equal ones the highest), on all of train; test is scored
    once.

    Args:
      train_embeddings, train_labels, test_embeddings, test_labels: float
        [m, D], int [m] from 0, float [n, D] and int [n] from 0.
      path: penalties of |kernel|^2 / 2 against the sum of the losses, as in
        Kornblith et al. 2019; None: `path_of()`.
      validation: fraction of each class to hold out of train; or the held-out
        rows of train, int, for datasets with an official validation split.
      metric: metric that chooses the penalty, a name of
        `classification.METRICS`.
      seed: seed of the held-out rows.
      log: receives a line of progress.

    Returns:
      Accuracies and predictions; "mean_per_class"; "scores", logits [n, C] of
      "classes", their ids; "penalty", the selected one; "path": "penalty",
      "objective", "validation" and "steps" of each penalty.
    """
    if metric not in classification.METRICS:
        raise unknown("metric", metric, classification.METRICS)
    score = classification.METRICS[metric]
    train, labels, test = classifiers.check_train_and_test(
        train_embeddings, train_labels, test_embeddings
    )
    test_labels = classifiers.check_labels("test_labels", test_labels, test)
    classes, index = np.unique(labels, return_inverse=True)
    if np.ndim(validation) == 0:
        fit_rows, held_out = holdout(labels, float(validation), seed)
    else:
        held_out = np.unique(validation)
        fit_rows = np.setdiff1d(np.arange(len(labels)), held_out)
    path = path_of() if path is None else path
    fits = fit_path(
        Problem(train[fit_rows], index[fit_rows], len(classes)), path
    )
    points = [
        {
            "penalty": float(penalty),
            "objective": fit.objective,
            "validation": score(
                fit.logits(train[held_out]).argmax(axis=1), index[held_out]
            ),
            "steps": fit.steps,
        }
        for penalty, fit in zip(path, fits, strict=True)
    ]
    # The first of equal ones has the highest penalty.
    best = int(np.argmax([point["validation"] for point in points]))
    penalty = points[best]["penalty"]
    log(
        f"logistic regression: penalty {penalty:.4g} of {len(points)}, with"
        f" {points[best]['validation']:.4f} of {len(held_out):,} held-out"
        " examples"
    )
    refit = Problem(train, index, len(classes)).solve(penalty, fits[best])
    scores = classifiers.Scores(refit.logits(test), classes)
    measurement = classification.accuracies(scores, test_labels)
    return {
        **measurement,
        "mean_per_class": classification.mean_per_class(
            measurement["predictions"], test_labels
        ),
        "scores": scores.scores,
        "classes": classes,
        "penalty": penalty,
        "path": points,
    }


# ---- The protocol ------------------------------------------------------------


def measure(
    context: EvaluationContext,
    *,
    penalties: int,
    lowest_penalty: float,
    highest_penalty: float,
    validation_fraction: float,
    seed: int,
) -> dict[str, Any]:
    """The protocol `logistic`: see `logistic_regression` and `path_of`."""
    result = logistic_regression(
        *context.labelled_embeddings,
        path=path_of(penalties, lowest_penalty, highest_penalty),
        validation=validation_fraction,
        seed=seed,
        log=context.log,
    )
    labels = context.data.labels("test")
    path = result["path"]
    metrics = {
        "mean_per_class": result["mean_per_class"],
        "mean_per_class_interval": statistics.interval(
            result["correct"], labels
        ),
        "penalty": result["penalty"],
        **{f"path_{key}": [point[key] for point in path] for key in path[0]},
    }
    return {**result, "metrics": metrics}
