"""Softmax regression by gradient steps."""

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.classifiers.arrays import (
    Scores,
    check,
    check_embeddings,
    check_labels,
)
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.linear import LinearProtocol, LinearStage

Batches = Iterable[tuple[np.ndarray, np.ndarray]]


class Follower:
    """Is told how a training goes; this one lets it go from start to end."""

    def begin(self, state: tf.train.Checkpoint) -> int:
        """Called before the first epoch, with all that training changes.

        Returns:
          Epochs that `state`, restored here, has behind it; 0: none.
        """
        del state
        return 0

    def epoch(self, done: int, metrics: dict[str, float]) -> None:
        """Called after each epoch.

        Args:
          done: epochs so far.
          metrics: "loss" and "accuracy", means over the epoch; "step", steps
            so far; "learning_rate", of the last one.
        """


class Linear(NamedTuple):
    """A linear classifier: kernel [D, C] and bias [C], float32, classes [C]."""

    kernel: np.ndarray
    bias: np.ndarray
    classes: np.ndarray

    def scores(self, embeddings: np.ndarray) -> Scores:
        """Logits of embeddings [n, D]."""
        return Scores(embeddings @ self.kernel + self.bias, self.classes)


def linear(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    **options: Any,
) -> tuple[Scores, list[float]]:
    """Trains softmax regression on frozen embeddings, and scores with it.

    Args:
      train_embeddings: float [m, D].
      train_labels: int [m], from 0.
      test_embeddings: float [n, D].
      **options: of `train_linear`.

    Returns:
      (Scores, logits; mean training loss of each epoch, in nats).

    Raises:
      UserError: for NaN, negative labels, shapes that do not fit, or a
        diverged loss.
    """
    *_, test = check(train_embeddings, train_labels, test_embeddings)
    model, losses = train_linear(train_embeddings, train_labels, **options)
    return model.scores(test), losses


def train_linear(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    *,
    optimizer: Callable[[int, int], tf.keras.optimizers.Optimizer],
    epochs: int = LinearProtocol.schedule.epochs,
    batch_size: int = LinearStage.schedule.batch_size,
    label_smoothing: float = LinearProtocol.label_smoothing,
    seed: int = Evaluation.seed,
    views: Callable[[int], Batches] | None = None,
    follower: Follower | None = None,
) -> tuple[Linear, list[float]]:
    """Trains softmax regression on frozen embeddings.

    Weights start at zero, and embeddings enter as they are. It runs on one
    device, outside of any strategy's scope.

    Args:
      train_embeddings: float [m, D].
      train_labels: int [m], from 0.
      optimizer: (rows of a step, steps of an epoch) -> what moves the weights.
      epochs: passes over the training rows; each drops its last m % batch.
      batch_size: rows per step, at most m.
      label_smoothing: share of the target that is spread over all classes.
      seed: seed of the order of rows; equal seeds give equal scores.
      views: first step -> batches (embeddings [batch_size, D], labels
        [batch_size]) from that step on, without end, on which it is trained
        instead of the training rows, in as many steps: embeddings of augmented
        images, as in the linear stage of Khosla et al. 2020, table 5. None:
        the training rows, in a new order an epoch.
      follower: is told of every epoch, and may begin at a later one.

    Returns:
      (the classifier; mean training loss of each epoch, in nats).

    Raises:
      UserError: for NaN, negative labels, shapes that do not fit, or a
        diverged loss.
    """
    train, classes, index, _ = check(
        train_embeddings, train_labels, train_embeddings[:1]
    )
    batch_size = min(batch_size, len(train))
    steps = len(train) // batch_size
    follower = follower or Follower()
    kernel = tf.Variable(tf.zeros([train.shape[1], len(classes)]))
    bias = tf.Variable(tf.zeros([len(classes)]))
    losses = tf.Variable(tf.zeros([epochs]))
    mover = optimizer(batch_size, steps)
    mover.build([kernel, bias])
    done = follower.begin(
        tf.train.Checkpoint(
            kernel=kernel, bias=bias, losses=losses, optimizer=mover
        )
    )
    train_epoch = _linear_epoch(kernel, bias, mover, label_smoothing)
    if views is None:
        parts = _reshuffled(train, index, steps * batch_size, seed)
        parts = itertools.islice(parts, done, None)
    else:
        found = views(done * steps)
        parts = _gathered(found, classes, steps, train.shape[1])
    for epoch, part in zip(range(done, epochs), parts, strict=False):
        rows, labels, order = part
        loss, accuracy = train_epoch(
            rows, labels, tf.constant(order.reshape(steps, batch_size))
        )
        if not math.isfinite(loss):
            raise errors.UserError(
                f"the linear classifier diverged in epoch {epoch + 1}: give a"
                " lower learning rate (`linear_learning_rate`)"
            )
        losses[epoch].assign(loss)
        metrics = {
            "loss": float(loss),
            "accuracy": float(accuracy),
            "step": (epoch + 1) * steps,
            "learning_rate": float(mover.learning_rate),
        }
        follower.epoch(epoch + 1, metrics)
    model = Linear(kernel.numpy(), bias.numpy(), classes)
    return model, losses.numpy().tolist()


def _reshuffled(train, index, count, seed):
    """Yields (rows, labels, order int64 [count]) of epochs without end."""
    rows, labels = tf.constant(train), tf.constant(index)
    generator = np.random.default_rng(seed)
    while True:
        yield rows, labels, generator.permutation(len(train))[:count]


def _gathered(views, classes, steps, features):
    """Likewise, of what comes next in `views`, in its own order."""
    views = iter(views)
    while True:
        rows, labels = zip(*itertools.islice(views, steps), strict=True)
        rows = check_embeddings("views", np.concatenate(rows))
        labels = check_labels("labels of views", np.concatenate(labels), rows)
        if rows.shape[1] != features:
            raise errors.UserError(
                f"views have {rows.shape[1]} features and train_embeddings"
                f" {features}: embed both with one encoder"
            )
        index = np.searchsorted(classes, labels)
        yield tf.constant(rows), tf.constant(index), np.arange(len(rows))


def _linear_epoch(kernel, bias, optimizer, label_smoothing):
    """Makes the function that trains kernel [D, C] and bias [C] an epoch long.

    It takes rows float32 [m, D], labels int64 [m] below C, and order int64
    [steps, b], the rows of each step; it gives the epoch's mean loss and
    accuracy. The gradient of softmax cross entropy is written out: a tape
    inside a loop of thousands of tiny steps would take longer than the steps.
    """
    classes = bias.shape[0]

    @tf.function(reduce_retracing=True)
    def train(rows, labels, order):
        steps, batch = tf.shape(order)[0], tf.shape(order)[1]
        total, hits = tf.constant(0.0), tf.constant(0)
        for step in tf.range(steps):
            x = tf.gather(rows, order[step])
            y = tf.gather(labels, order[step])
            target = tf.one_hot(y, classes)
            target += label_smoothing * (1 / classes - target)
            logits = x @ kernel + bias
            total += tf.reduce_mean(
                tf.nn.softmax_cross_entropy_with_logits(target, logits)
            )
            right = tf.argmax(logits, axis=1) == y
            hits += tf.reduce_sum(tf.cast(right, tf.int32))
            error = tf.nn.softmax(logits) - target
            error /= tf.cast(batch, tf.float32)
            kernel_gradient = tf.matmul(x, error, transpose_a=True)
            bias_gradient = tf.reduce_sum(error, 0)
            optimizer.apply_gradients(
                [(kernel_gradient, kernel), (bias_gradient, bias)]
            )
        loss = total / tf.cast(steps, tf.float32)
        return loss, hits / (steps * batch)

    return train
