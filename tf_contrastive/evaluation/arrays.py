"""Accuracies of classifiers on embeddings that are at hand as arrays."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from tf_contrastive import classifiers, config


def _accuracies(
    scores: classifiers.Scores, test_labels: np.ndarray
) -> dict[str, Any]:
    """Returns top-1, top-5 (of min(5, C) classes) and the predictions."""
    top = scores.top(5)
    hits = top == test_labels[:, np.newaxis]
    return {
        "top1": float(hits[:, 0].mean()),
        "top5": float(hits.any(axis=1).mean()),
        "predictions": top[:, 0],
    }


def _check_test(test_embeddings, test_labels):
    test = classifiers.check_embeddings("test_embeddings", test_embeddings)
    return test, classifiers.check_labels("test_labels", test_labels, test)


def knn(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    test_labels: np.ndarray,
    k: int = config.Evaluation.knn_k,
) -> dict[str, Any]:
    """Accuracy of the cosine-weighted vote of the k nearest neighbours.

    SINCERE, Appendix M; see `classifiers.knn`.

    Args:
      train_embeddings: float [m, D], l2-normalised inside.
      train_labels: int [m], from 0.
      test_embeddings: float [n, D], l2-normalised inside.
      test_labels: int [n], from 0.
      k: neighbours that vote; 1 is plain 1NN.

    Returns:
      {"top1": fraction, "predictions": int64 [n]}.

    Raises:
      UserError: for NaN, negative labels, or shapes that do not fit.
    """
    test, labels = _check_test(test_embeddings, test_labels)
    predictions = classifiers.knn(train_embeddings, train_labels, test, k)
    return {
        "top1": float((predictions == labels).mean()),
        "predictions": predictions,
    }


def prototype(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    test_labels: np.ndarray,
) -> dict[str, Any]:
    """Accuracy of the nearest class prototype by cosine.

    See `classifiers.prototype`.

    Args:
      train_embeddings: float [m, D], l2-normalised inside.
      train_labels: int [m], from 0.
      test_embeddings: float [n, D], l2-normalised inside.
      test_labels: int [n], from 0.

    Returns:
      {"top1": fraction, "top5": fraction, "predictions": int64 [n]}; top5
      counts the best min(5, C) of C classes.

    Raises:
      UserError: for NaN, negative labels, or shapes that do not fit.
    """
    test, labels = _check_test(test_embeddings, test_labels)
    scores = classifiers.prototype(train_embeddings, train_labels, test)
    return _accuracies(scores, labels)


def linear_probe(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    test_labels: np.ndarray,
    *,
    epochs: int = config.Evaluation.probe_epochs,
    batch_size: int = config.Evaluation.probe_batch_size,
    learning_rate: float = config.Evaluation.probe_learning_rate,
    seed: int = config.Evaluation.seed,
    views: Iterable[tuple[np.ndarray, np.ndarray]] | None = None,
) -> dict[str, Any]:
    """Accuracy of softmax regression trained on frozen embeddings.

    SimCLR, Appendix 10.6; see `classifiers.linear`.

    Args:
      train_embeddings: float [m, D].
      train_labels: int [m], from 0.
      test_embeddings: float [n, D].
      test_labels: int [n], from 0.
      epochs: passes over the training rows.
      batch_size: rows per step.
      learning_rate: peak, per 256 rows.
      seed: seed of the order of rows.
      views: (embeddings [batch_size, D], labels [batch_size]) of augmented
        images, without end, on which it is trained instead; None: on the
        training rows as they are.

    Returns:
      {"top1": fraction, "top5": fraction, "predictions": int64 [n], "loss":
      mean training loss of the last epoch in nats}; top5 counts the best
      min(5, C) of C classes.

    Raises:
      UserError: for NaN, negative labels, shapes that do not fit, or a
        diverged loss.
    """
    test, labels = _check_test(test_embeddings, test_labels)
    scores, losses = classifiers.linear(
        train_embeddings,
        train_labels,
        test,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
        views=views,
    )
    return {**_accuracies(scores, labels), "loss": losses[-1]}
