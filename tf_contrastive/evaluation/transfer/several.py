"""Transfer to images that show objects of several classes: VOC2007.

One classifier per class, scored by the 11-point mean average precision.
"""

from typing import Any

import numpy as np

from tf_contrastive.evaluation import calibration, logistic, prepared
from tf_contrastive.evaluation.subject import Subject
from tf_contrastive.evaluation.transfer.suites import Target


def linear(other: Subject, target: Target, held: np.ndarray) -> dict[str, Any]:
    """One classifier per class, all of the penalty of the best mean AP."""
    train, test = (other.embeddings(split)[0] for split in ("train", "test"))
    wanted, counted = objects(other, target, other.train.info.split)
    fitted = np.setdiff1d(np.arange(len(train)), held)
    options = other.options.logistic.hyperparameters()
    path = logistic.path_of(*options.values())
    scores = _scores_of_classes(
        train[fitted], wanted[fitted], path, train[held]
    )
    means = [
        mean_precision(at, wanted[held], counted[held])[0] for at in scores
    ]
    best = int(np.argmax(means))  # Of equal ones the highest.
    # Warm-started down to the penalty that was chosen.
    *_, found = _scores_of_classes(train, wanted, path[: best + 1], test)
    return scored(
        other, target, found, penalty=float(path[best]), validation=means
    )


def scored(
    other: Subject, target: Target, scores: np.ndarray, **metrics: Any
) -> dict[str, Any]:
    """A measurement of each class's scores [n, C] of test.

    An object that is difficult to see is neither right nor wrong to find, as in
    VOC's own evaluation.
    """
    wanted, counted = objects(other, target, other.test.info.split)
    mean, precisions = mean_precision(scores, wanted, counted)
    first = scores.argmax(axis=1)
    correct = wanted[np.arange(len(first)), first]
    return {
        "top1": float(correct.mean()),
        "predictions": first,
        "correct": correct,
        "labels": wanted.argmax(axis=1),
        "metrics": {
            "metric": target.metric,
            "score": mean,
            "precisions": precisions,
            **metrics,
        },
    }


def objects(
    other: Subject, target: Target, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """(classes that each image shows, those that count): bool [n, C]."""
    shown, plain = (
        prepared.label_sets(other, target.dataset, split, feature)
        for feature in ("labels", "labels_no_difficult")
    )
    return shown, plain | ~shown


def _scores_of_classes(
    train: np.ndarray, wanted: np.ndarray, path: np.ndarray, test: np.ndarray
) -> list[np.ndarray]:
    """Log odds of each class at each penalty: [n, C] of test."""
    zeros = np.zeros(len(train), np.int64)
    shared = logistic.Problem(train, zeros, 2)
    scores = np.zeros([len(path), len(test), wanted.shape[1]])
    for column, present in enumerate(wanted.T):
        problem = shared.relabelled(present.astype(np.int64), 2)
        # A softmax of two classes has half the weights of a sigmoid in each:
        # twice the penalty on them is the same.
        for row, fit in enumerate(logistic.fit_path(problem, 2 * path)):
            logits = fit.logits(test)
            scores[row, :, column] = logits[:, 1] - logits[:, 0]
    return list(scores)


def mean_precision(
    scores: np.ndarray, wanted: np.ndarray, counted: np.ndarray
) -> tuple[float, list[float | None]]:
    """Mean over the classes that are shown, and each; None: it is not."""
    precisions = [
        calibration.eleven_point_average_precision(
            scores[counts, column], wanted[counts, column].astype(np.int64)
        )
        if (wanted[:, column] & counts).any()
        else None
        for column, counts in enumerate(counted.T)
    ]
    found = [p for p in precisions if p is not None]
    return float(np.mean(found)) if found else 0.0, precisions
