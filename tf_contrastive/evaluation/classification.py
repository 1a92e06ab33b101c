"""Classifiers on frozen embeddings.

`knn`, `prototype` and `linear_probe` take arrays; the protocols `knn`,
`prototype`, `head` and `linear` take an `EvaluationContext`.
"""

from collections.abc import Callable, Mapping, Sequence
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
from tf_contrastive.evaluation.context import (
    EvaluationContext,
    holdout,
    missing_labels,
)
from tf_contrastive.evaluation.results import Measurement

# ---- Metrics -----------------------------------------------------------------


def top1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Fraction of correct predictions; both int [n]."""
    return float(np.mean(np.asarray(predictions) == labels))


def mean_per_class(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Mean over the classes present of their accuracies; both int [n]."""
    classes, index = np.unique(labels, return_inverse=True)
    right = (np.asarray(predictions) == labels).astype(np.float64)
    hits = np.bincount(index, right, minlength=len(classes))
    return float(np.mean(hits / np.bincount(index)))


# (predictions int [n], labels int [n]) -> fraction.
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "top1": top1,
    "mean_per_class": mean_per_class,
}


def metric(name: str) -> Callable[[np.ndarray, np.ndarray], float]:
    """Returns a member of `METRICS`.

    Raises:
      UserError: for an unknown name.
    """
    if name not in METRICS:
        raise errors.unknown("metric", name, METRICS)
    return METRICS[name]


def accuracies(
    scores: classifiers.Scores, test_labels: np.ndarray
) -> Measurement:
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


# ---- Functions on arrays -----------------------------------------------------


def knn(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    test_labels: np.ndarray,
    k: int = KNN_K,
) -> Measurement:
    """Accuracy of the cosine-weighted vote of the k nearest neighbours.

    Args:
      train_embeddings: float [m, D], l2-normalized inside.
      train_labels: int [m], from 0.
      test_embeddings: float [n, D], l2-normalized inside.
      test_labels: int [n], from 0.
      k: neighbours that vote; 1 is plain 1NN.

    Returns:
      {"top1": fraction, "predictions": int64 [n]}.

    Raises:
      UserError: for NaN, negative labels, or shapes that do not match.

    Feeney and Hughes 2024 (SINCERE), appendix M; see `classifiers.knn`.
    """
    labels = classifiers.check_labels(
        "test_labels", test_labels, test_embeddings
    )
    [predictions] = classifiers.knn(
        train_embeddings, train_labels, test_embeddings, [k]
    )
    return {"top1": top1(predictions, labels), "predictions": predictions}


def prototype(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    test_labels: np.ndarray,
) -> Measurement:
    """Accuracy of the nearest class prototype by cosine.

    Args:
      train_embeddings, train_labels, test_embeddings, test_labels: see `knn`.

    Returns:
      {"top1": fraction, "top5": fraction, "predictions": int64 [n],
      "correct": bool [n], "correct5": bool [n]}; top5 counts the best min(5, C)
      of C classes.

    Raises:
      UserError: for NaN, negative labels, or shapes that do not match.
    """
    labels = classifiers.check_labels(
        "test_labels", test_labels, test_embeddings
    )
    scores = classifiers.prototype(
        train_embeddings, train_labels, test_embeddings
    )
    return accuracies(scores, labels)


class LinearMeasurement(Measurement):
    """Result of `linear_probe`.

    Attributes:
      loss: mean training loss of the last epoch, in nats.
    """

    loss: float


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
    observer: classifiers.TrainingObserver | None = None,
) -> LinearMeasurement:
    """Accuracy of softmax regression trained on frozen embeddings.

    The defaults are those of Chen et al. 2020 (SimCLR), appendix B.6: SGD with
    Nesterov momentum 0.9, learning rate 0.1 * batch / 256, 90 epochs, no weight
    decay and no warm-up; with a cosine schedule, since the paper states none.

    Args:
      train_embeddings, train_labels, test_embeddings, test_labels: see `knn`;
        not normalized.
      epochs, batch_size, label_smoothing, seed, views, observer: see
        `classifiers.train_linear`.
      optimizer: name for `optimizers.build`.
      optimizer_options: its options; the others have their defaults of
        `LINEAR_OPTIMIZER_OPTIONS`, or else the optimizer's.
      learning_rate: peak, per 256 rows; None: the optimizer's default.
      schedule: name for `schedules.build`.
      schedule_options: its options.
      warmup_epochs: epochs of linear warm-up.

    Returns:
      {"top1": fraction, "top5": fraction, "predictions": int64 [n],
      "correct": bool [n], "correct5": bool [n], "loss": mean training loss of
      the last epoch in nats}; top5 counts the best min(5, C) of C classes.

    Raises:
      UserError: for NaN, negative labels, shapes that do not match, or an
        unknown name or option.
      DivergedError: if the loss is not finite.
    """
    make_optimizer = linear_optimizer(
        epochs=epochs,
        optimizer=optimizer,
        optimizer_options=optimizer_options,
        learning_rate=learning_rate,
        schedule=schedule,
        schedule_options=schedule_options,
        warmup_epochs=warmup_epochs,
    )
    test = classifiers.check_embeddings(
        "test_embeddings",
        test_embeddings,
        np.atleast_2d(train_embeddings).shape[-1],
    )
    labels = classifiers.check_labels("test_labels", test_labels, test)
    model, losses = classifiers.train_linear(
        train_embeddings,
        train_labels,
        optimizer=make_optimizer,
        epochs=epochs,
        batch_size=batch_size,
        label_smoothing=label_smoothing,
        seed=seed,
        views=views,
        observer=observer,
    )
    return {**accuracies(model.scores(test), labels), "loss": losses[-1]}


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
    """Returns (rows per step, steps per epoch) -> optimizer.

    Args:
      See `linear_probe`.

    Raises:
      UserError: for an unknown name or option.
    """
    if optimizer not in LINEAR_OPTIMIZER_OPTIONS:
        known = LINEAR_OPTIMIZER_OPTIONS
        raise errors.unknown("optimizer", optimizer, known)
    base = resolve_learning_rate(learning_rate, optimizer, "linear")
    options = LINEAR_OPTIMIZER_OPTIONS[optimizer]
    options = options | dict(optimizer_options or {})

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
        return optimizers.build(optimizer, learning_rate=rate, **options)

    return make


# ---- Protocols ---------------------------------------------------------------


def measure_knn(context: EvaluationContext, k: Sequence[int]) -> Measurement:
    """The protocol `knn`: a measurement "k=K" for each k."""
    train, train_labels, test, labels = context.labelled_embeddings()
    predictions = classifiers.knn(train, train_labels, test, k)
    parts: dict[str, Measurement] = {}
    for count, row in zip(k, predictions, strict=True):
        correct = row == labels
        parts[f"k={count}"] = {
            "top1": float(correct.mean()),
            "predictions": row,
            "correct": correct,
        }
    return {"parts": parts}


def measure_prototype(context: EvaluationContext) -> Measurement:
    """The protocol `prototype`: see `prototype`."""
    return prototype(*context.labelled_embeddings())


def needs_head(context: EvaluationContext) -> str | None:
    """Returns why `head` cannot be measured, or None."""
    if context.classifier is None:
        return (
            "only a run of loss=cross_entropy has a classifier of its own: set"
            " its `workdir`, or use protocols=linear, which trains one"
        )
    if reason := missing_labels(context):
        return reason
    info = context.test.info
    if context.classifier.units != info.num_classes:
        return (
            f"the run's classifier has {context.classifier.units} classes and"
            f" {info.name} has {info.num_classes}: use the dataset that it was"
            " trained on"
        )
    return None


def measure_head(context: EvaluationContext) -> Measurement:
    """The protocol `head`: the classifier that cross-entropy training made."""
    logits, labels = context.logits("test")
    scores = classifiers.Scores(logits, np.arange(logits.shape[1]))
    return accuracies(scores, labels)


def measure_linear(
    context: EvaluationContext,
    *,
    augmentation: str,
    learning_rates: Sequence[float],
    validation_fraction: float,
    **options: Any,
) -> Measurement:
    """The protocol `linear`: softmax regression on frozen embeddings.

    Args:
      context: the encoder and its data.
      augmentation: policy of the training images; "none": each image is
        embedded once, without augmentation.
      learning_rates: candidates, chosen from on a held-out part of train;
        empty: `options` holds the learning rate.
      validation_fraction: fraction of train held out for that choice.
      **options: options of `linear_probe`.

    Raises:
      DivergedError: if the loss is not finite, at any of the learning rates.
    """

    def views_of(rows: np.ndarray | None) -> Callable | None:
        if augmentation == "none":
            return None
        return lambda step: context.embed_batches(
            context.training_batches(
                augmentation,
                batch_size=options["batch_size"],
                rows=rows,
                seed=options["seed"],
                start_step=step,
            )
        )

    train, train_labels, test, labels = context.labelled_embeddings()
    selection: dict[str, Any] = {}
    if learning_rates:
        fit, held_out = holdout(
            train_labels, validation_fraction, context.options.evaluation.seed
        )
        scores = []
        for rate in learning_rates:
            options["learning_rate"] = rate
            try:
                probe = linear_probe(
                    train[fit],
                    train_labels[fit],
                    train[held_out],
                    train_labels[held_out],
                    **options,
                    views=views_of(fit),
                )
                scores.append(probe["top1"])
            except errors.DivergedError:
                scores.append(-1.0)
        if max(scores) < 0:
            raise errors.DivergedError(
                "the linear classifier diverged at every learning rate: lower"
                " `linear_learning_rates`"
            )
        best = learning_rates[int(np.argmax(scores))]
        options["learning_rate"] = best
        selection = {"learning_rate": best, "validation_top1": scores}
    probe = linear_probe(
        train,
        train_labels,
        test,
        labels,
        **options,
        views=views_of(None),
        observer=context.observer,
    )
    probe["metrics"] = {"loss": probe["loss"], **selection}
    return probe
