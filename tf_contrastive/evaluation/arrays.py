"""Accuracies of classifiers on embeddings that are at hand as arrays."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers, errors, optimizers, schedules
from tf_contrastive.config.evaluate import KNN_K, Evaluation
from tf_contrastive.config.linear import (
    LINEAR_OPTIMIZER_OPTIONS,
    LinearProtocol,
    LinearStage,
)
from tf_contrastive.config.optimizer import resolve_learning_rate


def accuracies(
    scores: classifiers.Scores, test_labels: np.ndarray
) -> dict[str, Any]:
    """Returns top-1, top-5 (of min(5, C) classes), predictions, and hits."""
    top = scores.top(5)
    hits = top == test_labels[:, np.newaxis]
    return {
        "top1": float(hits[:, 0].mean()),
        "top5": float(hits.any(axis=1).mean()),
        "predictions": top[:, 0],
        "correct": hits[:, 0],
        "correct5": hits.any(axis=1),
    }


def _check_test(test_embeddings, test_labels):
    test = classifiers.check_embeddings("test_embeddings", test_embeddings)
    return test, classifiers.check_labels("test_labels", test_labels, test)


def knn(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    test_labels: np.ndarray,
    k: int = KNN_K,
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
      {"top1": fraction, "top5": fraction, "predictions": int64 [n],
      "correct": bool [n], "correct5": bool [n]}; top5 counts the best min(5, C)
      of C classes.

    Raises:
      UserError: for NaN, negative labels, or shapes that do not fit.
    """
    test, labels = _check_test(test_embeddings, test_labels)
    scores = classifiers.prototype(train_embeddings, train_labels, test)
    return accuracies(scores, labels)


def linear_probe(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    test_labels: np.ndarray,
    *,
    epochs: int = LinearProtocol.schedule.epochs,
    batch_size: int = LinearStage.schedule.batch_size,
    label_smoothing: float = LinearProtocol.label_smoothing,
    optimizer: str = LinearProtocol.optimizer.optimizer,
    optimizer_options: Mapping[str, Any] | None = None,
    learning_rate: float | None = LinearProtocol.schedule.learning_rate,
    schedule: str = LinearProtocol.schedule.schedule,
    schedule_options: Mapping[str, Any] | None = None,
    warmup_epochs: float = LinearProtocol.schedule.warmup_epochs,
    seed: int = Evaluation.seed,
    views: Callable[[int], classifiers.Batches] | None = None,
    follower: classifiers.Follower | None = None,
) -> dict[str, Any]:
    """Accuracy of softmax regression trained on frozen embeddings.

    The defaults are SimCLR's, appendix B.6: SGD with Nesterov momentum 0.9,
    learning rate 0.1 * batch / 256, 90 epochs, no weight decay, no warm-up; and
    a cosine schedule to zero, since the paper states none. See
    `classifiers.linear`.

    Args:
      train_embeddings: float [m, D].
      train_labels: int [m], from 0.
      test_embeddings: float [n, D].
      test_labels: int [n], from 0.
      epochs: passes over the training rows.
      batch_size: rows per step, at most m.
      label_smoothing: share of the target that is spread over all classes.
      optimizer: a name that `optimizers.build` knows.
      optimizer_options: its options; what is not given has the default of
        `config.LINEAR_OPTIMIZER_OPTIONS`, or else its own.
      learning_rate: peak, per 256 rows; None: that of the optimizer in
        `config.LEARNING_RATES`.
      schedule: a name that `schedules.build` knows.
      schedule_options: its options; what is not given is its default.
      warmup_epochs: epochs of linear warm-up.
      seed: seed of the order of rows.
      views: first step -> batches (embeddings [batch_size, D], labels
        [batch_size]) of augmented images from that step on, without end, on
        which it is trained instead; None: on the training rows as they are.
      follower: is told of every epoch, and may begin at a later one.

    Returns:
      {"top1": fraction, "top5": fraction, "predictions": int64 [n],
      "correct": bool [n], "correct5": bool [n], "loss": mean training loss of
      the last epoch in nats}; top5 counts the best min(5, C) of C classes.

    Raises:
      UserError: for NaN, negative labels, shapes that do not fit, a diverged
        loss, or an unknown name or option.
    """
    make = linear_optimizer(
        epochs=epochs,
        optimizer=optimizer,
        optimizer_options=optimizer_options,
        learning_rate=learning_rate,
        schedule=schedule,
        schedule_options=schedule_options,
        warmup_epochs=warmup_epochs,
    )
    test, labels = _check_test(test_embeddings, test_labels)
    scores, losses = classifiers.linear(
        train_embeddings,
        train_labels,
        test,
        optimizer=make,
        epochs=epochs,
        batch_size=batch_size,
        label_smoothing=label_smoothing,
        seed=seed,
        views=views,
        follower=follower,
    )
    return {**accuracies(scores, labels), "loss": losses[-1]}


def linear_optimizer(
    *,
    epochs: int,
    optimizer: str,
    optimizer_options: Mapping[str, Any] | None,
    learning_rate: float | None,
    schedule: str,
    schedule_options: Mapping[str, Any] | None,
    warmup_epochs: float,
) -> Callable[[int, int], tf.keras.optimizers.Optimizer]:
    """Makes what makes the optimizer of a linear classifier.

    Args:
      See `linear_probe`.

    Returns:
      (rows of a step, steps of an epoch) -> optimizer.

    Raises:
      UserError: for an unknown name or option.
    """
    if optimizer not in LINEAR_OPTIMIZER_OPTIONS:
        known = LINEAR_OPTIMIZER_OPTIONS
        raise errors.unknown("optimizer", optimizer, known)
    base = resolve_learning_rate(learning_rate, optimizer, "linear")
    chosen = LINEAR_OPTIMIZER_OPTIONS[optimizer]
    chosen = chosen | dict(optimizer_options or {})

    def make(rows: int, steps_per_epoch: int) -> tf.keras.optimizers.Optimizer:
        rate = schedules.build(
            schedule,
            base_learning_rate=base,
            batch_size=rows,
            steps_per_epoch=steps_per_epoch,
            epochs=epochs,
            warmup_epochs=warmup_epochs,
            scaling="linear",
            **(schedule_options or {}),
        )
        return optimizers.build(optimizer, learning_rate=rate, **chosen)

    return make
