"""Softmax regression by stochastic gradient descent."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.classifiers.embedding_arrays import (
    Scores,
    check_embeddings,
    check_labels,
    normalize,
)
from tf_contrastive.config import protocols
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.linear import LinearStage
from tf_contrastive.distribution import all_finite

Batches = Iterable[tuple[np.ndarray, np.ndarray]]


class TrainingObserver:
    """Observer of a training; this base class does nothing."""

    def begin(self, state: tf.train.Checkpoint) -> int:
        """Called before the first epoch; may restore `state`, all that changes.

        Returns the number of epochs that `state` has completed.
        """
        del state
        return 0

    def epoch(self, done: int, metrics: dict[str, float]) -> None:
        """Called after each epoch, with the number of epochs completed.

        Metrics: "loss" and "accuracy", means over the epoch; "step", steps
        completed; "learning_rate", of the last step.
        """


class Linear(NamedTuple):
    """A linear classifier: kernel [D, C] and bias [C], float32, classes [C].

    `normalizes`: whether it l2-normalizes embeddings first.
    """

    kernel: np.ndarray
    bias: np.ndarray
    classes: np.ndarray
    normalizes: bool = False

    def scores(self, embeddings: np.ndarray) -> Scores:
        """Returns the logits of embeddings [n, D]."""
        if self.normalizes:
            embeddings = normalize(embeddings)
        return Scores(embeddings @ self.kernel + self.bias, self.classes)


def train_linear(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    *,
    optimizer: Callable[[int, int], tf.keras.optimizers.Optimizer],
    epochs: int = protocols.Linear.schedule.epochs,
    batch_size: int = LinearStage.schedule.batch_size,
    label_smoothing: float = protocols.Linear.label_smoothing,
    normalize_features: bool = protocols.Linear.l2_normalize_features,
    seed: int = Evaluation.seed,
    starts_at_zero: bool = True,
    views: Callable[[int], Batches] | None = None,
    observer: TrainingObserver | None = None,
) -> tuple[Linear, list[float]]:
    """Trains softmax regression on frozen embeddings.

    The training runs on one device, outside of the scope of any strategy.
    Embeddings are float [m, D], labels int [m], from 0.

    Args:
      train_embeddings, train_labels: the training rows.
      optimizer: (rows per step, steps per epoch) -> optimizer.
      epochs: passes over the training rows; each drops the last m % batch.
      batch_size: rows per step, at most m.
      label_smoothing: fraction of the target spread over all classes.
      normalize_features: whether to l2-normalize all embeddings first.
      seed: seed of the order of rows; equal seeds give equal scores.
      starts_at_zero: whether the kernel starts at zero, not by Glorot's uniform
        rule. The bias does.
      views: first step -> endless batches (embeddings [batch_size, D], labels
        [batch_size]) of augmented images, to train on instead of the training
        rows, as in Khosla et al. 2020 (SupCon), table 5. None: the training
        rows, shuffled each epoch.
      observer: is called after each epoch; may resume a training.

    Returns:
      (the classifier; mean training loss of each epoch, in nats).

    Raises:
      DivergedError: if the loss or a weight is not finite.
    """
    train = check_embeddings("train_embeddings", train_embeddings)
    train_labels = check_labels("train_labels", train_labels, train)
    if normalize_features:
        train = normalize(train)
    classes, index = np.unique(train_labels, return_inverse=True)
    batch_size = min(batch_size, len(train))
    steps = len(train) // batch_size
    observer = observer or TrainingObserver()
    shape = train.shape[1], len(classes)
    limit = 0.0 if starts_at_zero else math.sqrt(6 / sum(shape))
    start = np.random.default_rng(seed).uniform(-limit, limit, shape)
    kernel = tf.Variable(start, dtype=tf.float32)
    bias = tf.Variable(tf.zeros([len(classes)]))
    losses = tf.Variable(tf.zeros([epochs]))
    keras_optimizer = optimizer(batch_size, steps)
    keras_optimizer.build([kernel, bias])
    done = observer.begin(
        tf.train.Checkpoint(
            kernel=kernel, bias=bias, losses=losses, optimizer=keras_optimizer
        )
    )
    train_epoch = _epoch_function(
        kernel, bias, keras_optimizer, label_smoothing
    )
    if views is None:
        parts = _shuffled(train, index, steps * batch_size, seed)
        parts = itertools.islice(parts, done, None)
    else:
        batches = views(done * steps)
        parts = _epochs_of_views(
            batches, classes, steps, train.shape[1], normalize_features
        )
    for epoch, part in zip(range(done, epochs), parts, strict=False):
        rows, labels, order = part
        loss, accuracy = train_epoch(
            rows, labels, tf.constant(order.reshape(steps, batch_size))
        )
        # The last step may overflow the weights after a finite loss.
        trained = [kernel, bias, *keras_optimizer.variables]
        if not (math.isfinite(loss) and all_finite(trained)):
            raise errors.DivergedError(
                f"the linear classifier diverged in epoch {epoch + 1}: lower"
                f" {errors.arg('linear_learning_rate')}"
            )
        losses[epoch].assign(loss)
        metrics = {
            "loss": float(loss),
            "accuracy": float(accuracy),
            "step": (epoch + 1) * steps,
            "learning_rate": float(keras_optimizer.learning_rate),
        }
        observer.epoch(epoch + 1, metrics)
    model = Linear(kernel.numpy(), bias.numpy(), classes, normalize_features)
    return model, losses.numpy().tolist()


# (rows float32 [m, D], class indices int64 [m], order int64 [count]).
_Epochs = Iterator[tuple[tf.Tensor, tf.Tensor, np.ndarray]]


def _shuffled(
    train: np.ndarray, index: np.ndarray, count: int, seed: int
) -> _Epochs:
    """Yields the rows and a new order of `count` of them, endlessly."""
    rows, labels = tf.constant(train), tf.constant(index)
    generator = np.random.default_rng(seed)
    while True:
        yield rows, labels, generator.permutation(len(train))[:count]


def _epochs_of_views(
    views: Batches,
    classes: np.ndarray,
    steps: int,
    features: int,
    normalize_features: bool,
) -> _Epochs:
    """Yields the next `steps` batches of `views` in their order, endlessly."""
    views = iter(views)
    while True:
        batches = zip(*itertools.islice(views, steps), strict=True)
        rows, labels = (np.concatenate(arrays) for arrays in batches)
        rows = check_embeddings("views", rows, features)
        if normalize_features:
            rows = normalize(rows)
        labels = check_labels("labels of views", labels, rows)
        index = np.searchsorted(classes, labels)
        yield tf.constant(rows), tf.constant(index), np.arange(len(rows))


def _epoch_function(
    kernel: tf.Variable,
    bias: tf.Variable,
    optimizer: tf.keras.optimizers.Optimizer,
    label_smoothing: float,
) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Makes the function that trains kernel [D, C] and bias [C] for an epoch.

    It maps rows float32 [m, D], labels int64 [m] below C, and order int64
    [steps, b], the rows of each step, to the mean loss and accuracy. The
    gradient of the softmax cross entropy is written out: a tape would take
    longer than these small steps.
    """
    classes = bias.shape[0]

    @tf.function(reduce_retracing=True)
    def train(
        rows: tf.Tensor, labels: tf.Tensor, order: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
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
