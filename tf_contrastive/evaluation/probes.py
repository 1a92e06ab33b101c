"""Classifiers on the embeddings that an encoder makes of both splits.

The protocols `knn`, `prototype`, `head` and `linear`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tf_contrastive import classifiers, errors
from tf_contrastive.evaluation import arrays, prepared
from tf_contrastive.evaluation.entries import Measurement
from tf_contrastive.evaluation.subject import Subject


def knn(subject: Subject, k: Sequence[int]) -> Measurement:
    """The vote of the k nearest training images, for each k a result."""
    train, train_labels, test, labels = subject.arrays()
    found = classifiers.knn(train, train_labels, test, k)
    return {
        "parts": {
            f"k={count}": {
                "top1": float((predictions == labels).mean()),
                "predictions": predictions,
                "correct": predictions == labels,
            }
            for count, predictions in zip(k, found, strict=True)
        }
    }


def prototype(subject: Subject) -> Measurement:
    """The nearest mean of a class."""
    four = subject.arrays()
    return arrays.prototype(*four)


def needs_head(subject: Subject) -> str | None:
    """What keeps `head` from being measured, in one line, or None."""
    if subject.classifier is None:
        return (
            "only a run of loss=cross_entropy has a classifier of its own:"
            " give its `workdir`, or protocols=linear, which trains one"
        )
    if absent := prepared.needs_labels(subject):
        return absent
    info = subject.test.info
    if subject.classifier.units != info.num_classes:
        return (
            f"the run's classifier knows {subject.classifier.units} classes and"
            f" {info.name} has {info.num_classes}: give the dataset that it was"
            " trained on"
        )
    return None


def head(subject: Subject) -> Measurement:
    """The classifier that the run itself has trained: cross entropy's."""
    logits, labels = subject.logits("test")
    scores = classifiers.Scores(logits, np.arange(logits.shape[1]))
    return arrays.accuracies(scores, labels)


def linear(
    subject: Subject,
    *,
    augmentation: str,
    learning_rates: Sequence[float],
    validation_fraction: float,
    **hyperparameters: Any,
) -> Measurement:
    """Softmax regression, on embeddings made once or on fresh views.

    Args:
      subject: whose encoder.
      augmentation: policy of the images learned from; "none": as they are.
      learning_rates: to choose from on a part of train; empty: none.
      validation_fraction: what part.
      **hyperparameters: of `arrays.linear_probe`.
    """

    def views_of(rows: np.ndarray | None) -> Callable | None:
        if augmentation == "none":
            return None
        return lambda step: subject.embed_batches(
            subject.stream(
                augmentation,
                batch_size=hyperparameters["batch_size"],
                rows=rows,
                seed=hyperparameters["seed"],
                start_step=step,
            )
        )

    train, train_labels, test, labels = subject.arrays()
    chosen = {}
    if learning_rates:
        fit, held = subject.holdout(train_labels, validation_fraction)
        split = (train[fit], train_labels[fit], train[held], train_labels[held])
        scored = [
            _top1_at(rate, split, hyperparameters, views_of(fit))
            for rate in learning_rates
        ]
        if max(scored) < 0:
            raise errors.UserError(
                "the linear classifier diverged at every learning rate: give"
                " lower ones (`linear_learning_rates`)"
            )
        best = learning_rates[int(np.argmax(scored))]
        hyperparameters["learning_rate"] = best
        chosen = {"learning_rate": best, "validation_top1": scored}
    scores = arrays.linear_probe(
        train,
        train_labels,
        test,
        labels,
        **hyperparameters,
        views=views_of(None),
        follower=subject.follower,
    )
    return {**scores, "metrics": {"loss": scores["loss"], **chosen}}


def _top1_at(
    rate: float,
    split: tuple,
    hyperparameters: dict[str, Any],
    views: Callable | None,
) -> float:
    """Accuracy with a learning rate; -1 where it diverges."""
    options = {**hyperparameters, "learning_rate": rate}
    try:
        return arrays.linear_probe(*split, **options, views=views)["top1"]
    except errors.UserError as error:
        if "diverged" not in str(error):
            raise
        return -1.0
