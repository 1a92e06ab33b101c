"""Classifiers on frozen embeddings.

`knn`, `prototype` and `linear_probe` take arrays; the protocols `knn`,
`prototype`, `head` and `linear` take an `EvaluationContext`.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers, optimizers, schedules
from tf_contrastive.base import errors, terminal
from tf_contrastive.config import protocols as declared
from tf_contrastive.config.linear import LINEAR_OPTIMIZER_OPTIONS
from tf_contrastive.config.optimizer import OPTIMIZERS, resolve_learning_rate
from tf_contrastive.config.views import declare as declare_policy
from tf_contrastive.evaluation.context import EvaluationContext, holdout
from tf_contrastive.evaluation.report import Measurement, Part

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
    k: int = declared.KNN_K,
) -> Measurement:
    """Accuracy of the vote of the k nearest neighbours by cosine.

    Embeddings are float [m, D] and [n, D], l2-normalized inside; labels are
    int, from 0. The votes are the cosines; k = 1 is plain 1NN.

    Feeney and Hughes 2024 (SINCERE), appendix M.
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
    """Accuracy of the nearest class prototype by cosine; arrays as in `knn`."""
    labels = classifiers.check_labels(
        "test_labels", test_labels, test_embeddings
    )
    scores = classifiers.prototype(
        train_embeddings, train_labels, test_embeddings
    )
    return accuracies(scores, labels)


def linear_probe(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    test_labels: np.ndarray,
    **options: Any,
) -> Measurement:
    """Accuracy of softmax regression trained on frozen embeddings.

    Arrays are as in `knn`, but not normalized; options: see `fit_linear`.
    """
    features = np.atleast_2d(train_embeddings).shape[-1]
    test = classifiers.check_embeddings(
        "test_embeddings", test_embeddings, features
    )
    labels = classifiers.check_labels("test_labels", test_labels, test)
    model, losses = fit_linear(train_embeddings, train_labels, **options)
    return {**accuracies(model.scores(test), labels), "loss": losses[-1]}


def fit_linear(
    embeddings: np.ndarray,
    labels: np.ndarray,
    *,
    epochs: int = declared.Linear.schedule.epochs,
    optimizer: str = declared.Linear.optimizer.label,
    optimizer_options: Mapping[str, Any] | None = None,
    learning_rate: float | None = declared.Linear.schedule.learning_rate,
    schedule: str = declared.Linear.schedule.decay.label,
    schedule_options: Mapping[str, Any] | None = None,
    warmup_epochs: float | None = declared.Linear.schedule.warmup_epochs,
    **training: Any,
) -> tuple[classifiers.Linear, list[float]]:
    """Trains softmax regression: (classifier, mean loss of each epoch).

    The defaults are those of Chen et al. 2020 (SimCLR), appendix B.6: SGD with
    Nesterov momentum 0.9, learning rate 0.1 * batch / 256, 90 epochs, no weight
    decay and no warm-up; with a cosine schedule, since the paper states none.

    Args:
      embeddings, labels, epochs: see `classifiers.train_linear`.
      optimizer: name for `optimizers.build`.
      optimizer_options: its options; the others have their defaults of
        `LINEAR_OPTIMIZER_OPTIONS`, or else the optimizer's.
      learning_rate: peak, per 256 rows; None: the optimizer's default.
      schedule, schedule_options: name and options for `schedules.build`.
      warmup_epochs: epochs of linear warm-up; None: 10, at most a tenth.
      **training: batch_size, label_smoothing, normalize_features, seed,
        starts_at_zero (by default, except with LARS), views and observer of
        `classifiers.train_linear`.
    """
    if optimizer not in LINEAR_OPTIMIZER_OPTIONS:
        known = LINEAR_OPTIMIZER_OPTIONS
        raise errors.unknown("optimizer", optimizer, known)
    base = resolve_learning_rate(
        learning_rate, OPTIMIZERS[optimizer](), "linear"
    )
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

    training.setdefault(
        "starts_at_zero", not OPTIMIZERS[optimizer].scales_by_weights
    )
    return classifiers.train_linear(
        embeddings, labels, optimizer=make, epochs=epochs, **training
    )


# ---- Protocols ---------------------------------------------------------------


def lacks_features(context: EvaluationContext) -> str | None:
    """Returns which features `knn` and `linear` lack, or None."""
    names = context.options.evaluation.features
    if "z" in names and context.subject.projection is None:
        return (
            f"{errors.arg('features', names)}: the {context.subject.name}"
            " encoder has no projection head; use"
            f" {errors.arg('features', 'h')}"
        )
    return None


def lacks_neighbors(context: EvaluationContext) -> str | None:
    """Returns which features or neighbours `knn` lacks, or None."""
    too_many = too_many_neighbors(context, "knn_k", context.options.knn.k)
    return too_many or lacks_features(context)


def too_many_neighbors(
    context: EvaluationContext, option: str, k: Sequence[int]
) -> str | None:
    """Returns why as many neighbours as an option says cannot vote, or None."""
    info = context.data.train.info
    if max(k) <= info.num_examples:
        return None
    return (
        f"{errors.arg(option, k)}: {info.name} {info.split} has"
        f" {info.num_examples} images: set at most as many"
    )


def _variant(space: str, variant: str = "") -> str:
    """Returns the name of a result of features h (unnamed) or z."""
    return " ".join(filter(None, (space.removeprefix("h"), variant)))


def measure_knn(
    context: EvaluationContext, k: Sequence[int], features: Sequence[str]
) -> Iterator[tuple[str, Part]]:
    """The protocol `knn`: "k=K" for each k of h, "z k=K" of projections z."""
    train, train_labels, test, labels = context.labelled_embeddings
    for space in features:
        predictions = classifiers.knn(
            context.features(space, train),
            train_labels,
            context.features(space, test),
            k,
        )
        for count, row in zip(k, predictions, strict=True):
            part = functools.partial(_hits, row, labels)
            yield _variant(space, f"k={count}"), part


def _hits(predictions: np.ndarray, labels: np.ndarray) -> Measurement:
    correct = predictions == labels
    return {
        "top1": float(correct.mean()),
        "predictions": predictions,
        "correct": correct,
    }


def measure_prototype(context: EvaluationContext) -> Measurement:
    """The protocol `prototype`: see `prototype`."""
    return prototype(*context.labelled_embeddings)


def lacks_head(context: EvaluationContext) -> str | None:
    """Returns which classifier `head` lacks, or None."""
    classifier = context.subject.classifier
    if classifier is None:
        return (
            f"only a run of {errors.arg('loss', 'cross_entropy')} has a"
            f" classifier of its own: set its {errors.arg('workdir')}, or use"
            f" {errors.arg('protocols', 'linear')}, which trains one"
        )
    info = context.data.test.info
    names = context.subject.label_names
    are_others = names and info.label_names and [*names] != [*info.label_names]
    if are_others or classifier.units != info.num_classes:
        return (
            f"the run's classifier has {classifier.units} classes, and"
            f" {info.name} has {info.num_classes} or others: use the dataset"
            " that it was trained on"
        )
    return None


def measure_head(context: EvaluationContext) -> Measurement:
    """The protocol `head`: the classifier that cross-entropy training made."""
    h, labels = context.embeddings("test")
    return accuracies(head_scores(context, h), labels)


def head_scores(
    context: EvaluationContext, h: np.ndarray
) -> classifiers.Scores:
    """Returns the logits of the run's own classifier of embeddings [n, D]."""
    logits = context.apply(context.subject.classifier, h)
    return classifiers.Scores(logits, np.arange(logits.shape[1]))


def measure_linear(
    context: EvaluationContext,
    *,
    features: Sequence[str],
    **hyperparameters: Any,
) -> Iterator[tuple[str, Part]]:
    """The protocol `linear`: "" of the features h, "z" of the projections."""
    part = functools.partial(_measure_linear, context, **hyperparameters)
    for space in features:
        yield _variant(space), functools.partial(part, space)


def _measure_linear(
    context: EvaluationContext,
    space: str,
    *,
    augmentation: str,
    learning_rates: Sequence[float],
    validation_fraction: float,
    **options: Any,
) -> Measurement:
    """Scores softmax regression of features "h" or "z".

    Without augmentation each image is embedded once. The best of
    `learning_rates` on a held-out part of train is used, or the learning rate
    of `options`, options of `linear_probe`. Raises `DivergedError` if the loss
    is not finite at any of them.
    """

    def views_of(rows: np.ndarray | None) -> Callable | None:
        if not declare_policy(augmentation).augments:
            return None

        def embedded(step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            batches = context.training_images(
                context.data.train,
                augmentation,
                batch_size=options["batch_size"],
                rows=rows,
                seed=options["seed"],
                start_step=step,
            )
            for h, batch_labels in context.subject.embed_batches(batches):
                yield context.features(space, h), batch_labels

        return embedded

    train, train_labels, test, labels = context.labelled_embeddings
    train, test = (context.features(space, x) for x in (train, test))
    selection: dict[str, Any] = {}
    if learning_rates:
        fit, held_out = holdout(
            train_labels, validation_fraction, options["seed"]
        )
        scores = []
        for rate in learning_rates:
            try:
                probe = linear_probe(
                    train[fit],
                    train_labels[fit],
                    train[held_out],
                    train_labels[held_out],
                    **options | {"learning_rate": rate},
                    views=views_of(fit),
                )
                scores.append(probe["top1"])
            except errors.DivergedError:
                scores.append(-1.0)
        if max(scores) < 0:
            raise errors.DivergedError(
                "the linear classifier diverged at every learning rate: lower"
                f" {errors.arg('linear_learning_rates')}"
            )
        options["learning_rate"] = learning_rates[int(np.argmax(scores))]
        selection = {
            "learning_rate": options["learning_rate"],
            "validation_top1": scores,
        }
    probe = linear_probe(
        train,
        train_labels,
        test,
        labels,
        **options,
        views=views_of(None),
        observer=context.observer if space == "h" else None,
    )
    chance_level = np.log(train_labels.max() + 1)
    if probe["loss"] > chance_level:
        terminal.warning(
            "the linear classifier has not trained: its loss"
            f" {probe['loss']:.3g} is above chance level, {chance_level:.3g};"
            f" change {errors.arg('linear_learning_rate')} or"
            f" {errors.arg('linear_optimizer')}"
        )
    return {**probe, "metrics": {"loss": probe["loss"], **selection}}
