"""Logistic regression along a path of penalties: the papers' transfer probe.

SimCLR, appendix B.8, after Kornblith et al. 2019, appendix A.4: multinomial
logistic regression with an l2 penalty by L-BFGS, the penalty one of 45 that is
chosen on examples held out of train; test is touched once.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from tf_contrastive import classifiers
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.protocols import LogisticProtocol
from tf_contrastive.errors import UserError
from tf_contrastive.evaluation import arrays, scoring, statistics
from tf_contrastive.evaluation.splits import holdout
from tf_contrastive.evaluation.subject import Subject

# L-BFGS: pairs of steps and gradients that it keeps; the relative decrease of
# the objective at which it ends.
_MEMORY = 10
_TOLERANCE = 1e-7
_STEPS = 10_000
# Share of the value before, below which a solution was far away.
_FAR = 0.3
# Directions with less than this share of the largest variance are rounding.
_SMALLEST_VARIANCE = 1e-12


class Fit(NamedTuple):
    """Softmax regression of embeddings.

    Attributes:
      kernel: float64 [D, C].
      bias: float64 [C].
      objective: sum of cross entropies + penalty / 2 * |kernel|^2.
      steps: of L-BFGS.
    """

    kernel: np.ndarray
    bias: np.ndarray
    objective: float
    steps: int

    def logits(self, embeddings: np.ndarray) -> np.ndarray:
        """Scores float64 [n, C] of embeddings [n, D]."""
        return embeddings @ self.kernel + self.bias


class Problem:
    """Softmax regression of one set of examples, at any penalty.

    The objective is that of scikit-learn's `LogisticRegression(C=1 / penalty)`
    times the penalty: the bias is free. It is solved in other coordinates: the
    embeddings' principal axes, each stretched by the curvature that the
    objective has along it. L-BFGS then sees much the same curvature all around,
    where embeddings of a few strong directions would take it hundreds of steps.
    The rotation changes neither penalty nor solution, and the stretching is
    undone.

    Args:
      embeddings: float [n, D].
      labels: int [n], in [0, classes).
      classes: C.
    """

    def __init__(
        self, embeddings: np.ndarray, labels: np.ndarray, classes: int
    ) -> None:
        self._labels = labels
        self._classes = classes
        self._mean = embeddings.mean(axis=0, dtype=np.float64)
        centered = embeddings - self._mean
        self._axes, self._variances = _principal_axes(centered)
        # Of these, which every step reads, half the bytes are half the time;
        # sums are float64. Each product is several times as fast with the one
        # that lies in memory as it goes.
        self._rows = (centered @ self._axes).astype(np.float32)
        self._columns = np.ascontiguousarray(self._rows.T)
        self._hits = (labels, np.arange(len(labels)))

    def relabelled(self, labels: np.ndarray, classes: int) -> "Problem":
        """The same examples with other labels; what is large is shared."""
        other = copy.copy(self)
        other._labels, other._classes = labels, classes
        other._hits = (labels, np.arange(len(labels)))
        return other

    def solve(self, penalty: float, start: Fit | None = None) -> Fit:
        """Minimises the objective.

        Args:
          penalty: of the squared weights, against the sum of the examples'
            losses in nats.
          start: where to begin, such as the solution at another penalty; None:
            at zero.
        """
        kernel = np.zeros([self._classes, len(self._variances)])
        bias = np.zeros(self._classes)
        if start is not None:
            kernel = start.kernel.T @ self._axes
            bias = start.bias + self._mean @ start.kernel
        steps, value, reached = 0, np.inf, 0.0
        # L-BFGS ends by the decrease relative to the value that it started at,
        # and goes by the curvature there: far from those it starts again.
        while reached < _FAR * value:
            kernel, bias, value, reached, more = self._descend(
                kernel, bias, penalty
            )
            steps += more
        kernel = self._axes @ kernel.T
        return Fit(kernel, bias - self._mean @ kernel, reached, steps)

    def _descend(self, kernel, bias, penalty):
        """One run of L-BFGS: (kernel, bias, value before, after, steps)."""
        loss, _, spread = self._losses(kernel, bias)
        before = loss + penalty / 2 * np.sum(kernel**2)
        # Curvature along an axis: what the examples' own probabilities make of
        # its variance, and the penalty.
        stretch = np.sqrt(spread * self._variances + penalty)
        bias_stretch = np.sqrt(max(spread, 1e-12) * len(self._labels))
        scale = 1 / max(before, np.finfo(np.float64).tiny)

        def objective(point):
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

        found = optimize.minimize(
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
        kernel, bias = self._unpack(found.x)
        return (
            kernel / stretch,
            bias / bias_stretch,
            before,
            float(found.fun / scale),
            int(found.nit),
        )

    def _unpack(self, point):
        kernel, bias = np.split(point, [-self._classes])
        return kernel.reshape(self._classes, -1), bias

    def _losses(self, kernel, bias):
        """Sum of the losses, their gradient by the logits, mean curvature.

        Logits are taken relative to that of the example's own class, so that
        the loss of an example that is far on the right side keeps all its
        digits, and does not become 1 - 1.

        Args:
          kernel: float64 [C, R] on the principal axes.
          bias: float64 [C].

        Returns:
          (loss, errors float32 [C, n], mean of p (1 - p) over examples and
          classes).
        """
        logits = kernel.astype(np.float32) @ self._rows.T
        logits += bias.astype(np.float32)[:, np.newaxis]
        logits -= logits[self._hits]
        logits[self._hits] = -np.inf
        largest = np.maximum(logits.max(axis=0), 0)
        others = np.exp(logits - largest, out=logits)
        own = np.exp(-largest)
        missed = others.sum(axis=0)
        # Where another class is ahead, own + missed is at least 1.
        total = own + missed
        losses = np.where(
            largest > 0, largest + np.log(total), np.log1p(missed)
        )
        others /= total
        missed /= total
        others[self._hits] = -missed
        spread = np.mean(np.abs(others) * (1 - np.abs(others)))
        return losses.sum(dtype=np.float64), others, float(spread)


def _principal_axes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns axes float64 [D, R] and variances [R], sums over rows [n, D]."""
    n, features = rows.shape
    if n >= features:
        variances, axes = np.linalg.eigh(rows.T @ rows)
    else:
        variances, left = np.linalg.eigh(rows @ rows.T)
        axes = rows.T @ (left / np.sqrt(np.maximum(variances, 1e-300)))
    kept = variances > _SMALLEST_VARIANCE * max(variances[-1], 1e-300)
    return axes[:, kept], variances[kept]


def path_of(
    count: int = LogisticProtocol.penalties,
    lowest: float = LogisticProtocol.lowest_penalty,
    highest: float = LogisticProtocol.highest_penalty,
) -> np.ndarray:
    """The path: `count` log-spaced penalties, the highest first.

    The defaults are the papers' 45 from 1e-6 to 1e5, a factor of 10^(1/4) from
    each to the next.
    """
    return np.geomspace(highest, lowest, count)


def fit_path(
    problem: Problem,
    path: np.ndarray,
    seen: Callable[[float, Fit], None] = lambda penalty, fit: None,
) -> list[Fit]:
    """Solves a problem at each penalty, from the last one's solution on.

    Args:
      problem: what is solved.
      path: penalties; falling ones start where the solution is near zero.
      seen: is told of each.
    """
    fits: list[Fit] = []
    for penalty in path:
        fits.append(problem.solve(penalty, fits[-1] if fits else None))
        seen(penalty, fits[-1])
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
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Accuracy of logistic regression whose penalty is chosen on validation.

    Fitted on train without validation at every penalty, each from the solution
    at the one before; then, at the penalty that scores best on validation (of
    equal ones the highest), on all of train; test is scored once.

    Args:
      train_embeddings: float [m, D].
      train_labels: int [m], from 0.
      test_embeddings: float [n, D].
      test_labels: int [n], from 0.
      path: penalties of |kernel|^2 / 2 against the sum of the losses, as
        Kornblith et al. 2019 state it; None: `path_of()`.
      validation: share of each class that is held out of train, or the rows of
        train that are (int, for datasets with an official validation part).
      metric: by which the penalty is chosen, a name of `scoring.METRICS`.
      seed: of what is held out.
      say: is told of progress.

    Returns:
      {"top1": fraction, "top5": fraction (of the best min(5, C) classes),
      "mean_per_class": fraction, "predictions": int64 [n], "correct5": bool
      [n], "scores": logits float64 [n, C] of `classes`, "classes": int64 [C],
      "penalty": the chosen one, "path": [{"penalty", "objective",
      "validation", "steps"}, ...]}.

    Raises:
      UserError: for NaN, negative labels, shapes that do not fit, an unknown
        metric, or nothing to validate on.
    """
    score = scoring.metric(metric)
    train, labels, test, wanted = scoring.check(
        train_embeddings, train_labels, test_embeddings, test_labels
    )
    classes, index = np.unique(labels, return_inverse=True)
    fitted, held = _cut(labels, validation, seed)
    problem = Problem(train[fitted], index[fitted], len(classes))
    fits, records = _validated(
        problem,
        path_of() if path is None else path,
        lambda fit: score(fit.logits(train[held]).argmax(axis=1), index[held]),
    )
    # The first of equal ones, which is the highest penalty.
    best = max(range(len(records)), key=lambda i: records[i]["validation"])
    penalty = records[best]["penalty"]
    say(
        f"logistic regression: penalty {penalty:.4g} of {len(records)}, with"
        f" {records[best]['validation']:.4f} of {len(held):,} held-out examples"
    )
    refit = Problem(train, index, len(classes)).solve(penalty, fits[best])
    scores = classifiers.Scores(refit.logits(test), classes)
    found = arrays.accuracies(scores, wanted)
    return {
        **found,
        "mean_per_class": scoring.mean_per_class(found["predictions"], wanted),
        "scores": scores.scores,
        "classes": classes,
        "penalty": penalty,
        "path": records,
    }


def _validated(
    problem: Problem, path: np.ndarray, score: Callable[[Fit], float]
) -> tuple[list[Fit], list[dict[str, float]]]:
    """The fit at each penalty, and what is told of it."""
    records: list[dict[str, float]] = []

    def record(penalty: float, fit: Fit) -> None:
        records.append(
            {
                "penalty": float(penalty),
                "objective": fit.objective,
                "validation": score(fit),
                "steps": fit.steps,
            }
        )

    return fit_path(problem, path, record), records


def _cut(labels, validation, seed):
    """Returns (rows to fit on, rows to select on) of train."""
    if np.ndim(validation) == 0:
        return holdout(labels, float(validation), seed)
    held = np.unique(validation)
    fitted = np.setdiff1d(np.arange(len(labels)), held)
    if not (held.size and fitted.size):
        raise UserError(
            f"validation names {held.size} of the {len(labels)} training rows:"
            " name some of them, and leave some to fit on"
        )
    return fitted, held


# ---- The protocol ------------------------------------------------------------


def measure(
    subject: Subject,
    *,
    penalties: int = LogisticProtocol.penalties,
    lowest_penalty: float = LogisticProtocol.lowest_penalty,
    highest_penalty: float = LogisticProtocol.highest_penalty,
    validation_fraction: float = Evaluation.validation_fraction,
    seed: int = Evaluation.seed,
) -> dict[str, Any]:
    """The protocol `logistic`: see `logistic_regression`.

    Args:
      subject: its embeddings are classified.
      penalties: how many, log-spaced between the next two.
      lowest_penalty, highest_penalty: ends of the path.
      validation_fraction: of each class of train that they are chosen on.
      seed: of what is held out.

    Returns:
      See `protocols`.
    """
    wanted = subject.embeddings("test")[1]
    found = logistic_regression(
        *subject.arrays(),
        path=path_of(penalties, lowest_penalty, highest_penalty),
        validation=validation_fraction,
        seed=seed,
        say=subject.say,
    )
    return {
        "top1": found["top1"],
        "top5": found["top5"],
        "metrics": {
            "mean_per_class": found["mean_per_class"],
            "mean_per_class_interval": statistics.interval(
                found["correct"], wanted
            ),
            "penalty": found["penalty"],
            **{
                f"path_{key}": [point[key] for point in found["path"]]
                for key in ("penalty", "objective", "validation", "steps")
            },
        },
        "predictions": found["predictions"],
        "correct": found["correct"],
        "correct5": found["correct5"],
    }
