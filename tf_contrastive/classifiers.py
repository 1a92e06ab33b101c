"""Classifiers on embeddings: neighbours, prototypes, softmax regression.

Layer 3. They take NumPy arrays, return NumPy arrays, and depend on nothing but
their arguments. Scores are [n, C]; column c stands for class `classes[c]`, the
sorted ids that the training labels hold.
"""

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import config

# Side of the similarity blocks: 1024 x 32768 float32 are 128 MiB, whatever the
# sizes of the bank and of the test set.
_QUERY_BLOCK = 1024
_BANK_BLOCK = 32_768
# A row shorter than this has no direction; it gets cosine 0 to everything.
_SMALLEST_NORM = 1e-12


class Scores(NamedTuple):
    """What a classifier says of each test row: scores [n, C], classes [C]."""

    scores: np.ndarray
    classes: np.ndarray

    def top(self, k: int) -> np.ndarray:
        """Returns the k best classes of each row, best first: int [n, k].

        Equal scores go to the smaller class id.
        """
        k = min(k, len(self.classes))
        # Ties: `top_k` prefers the lower index, and `classes` is sorted.
        return self.classes[tf.math.top_k(self.scores, k).indices.numpy()]


def check_embeddings(name: str, embeddings: np.ndarray) -> np.ndarray:
    """Returns `embeddings` as float32 [n, D], or says what is wrong."""
    array = np.asarray(embeddings)
    if array.ndim != 2 or not array.size:
        raise config.UserError(
            f"{name} has shape {list(array.shape)}: give [examples, features],"
            " at least one of each"
        )
    array = np.ascontiguousarray(array, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if bad.size:
        raise config.UserError(
            f"{name}: {bad.size} of {len(array)} rows hold NaN or infinity"
            f" (first: row {bad[0]}): look for a diverged encoder"
        )
    return array


def check_labels(
    name: str, labels: np.ndarray, embeddings: np.ndarray
) -> np.ndarray:
    """Returns `labels` as int64 [n], or says what is wrong."""
    array = np.asarray(labels)
    if array.shape != (len(embeddings),):
        raise config.UserError(
            f"{name} has shape {list(array.shape)}: give one label for each of"
            f" the {len(embeddings)} embeddings"
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise config.UserError(
            f"{name} are {array.dtype}: give integer class ids from 0"
        )
    if array.min() < 0:
        raise config.UserError(
            f"{name} hold {array.min()}: class ids start at 0 (-1 stands for"
            " no label); give a labelled dataset"
        )
    return array.astype(np.int64)


def _check(train_embeddings, train_labels, test_embeddings):
    """Returns the three arrays, checked; labels as (classes, index into it)."""
    train = check_embeddings("train_embeddings", train_embeddings)
    test = check_embeddings("test_embeddings", test_embeddings)
    if train.shape[1] != test.shape[1]:
        raise config.UserError(
            f"train_embeddings have {train.shape[1]} features and"
            f" test_embeddings {test.shape[1]}: embed both with one encoder"
        )
    labels = check_labels("train_labels", train_labels, train)
    classes, index = np.unique(labels, return_inverse=True)
    return train, classes, index, test


def normalize(embeddings: np.ndarray) -> np.ndarray:
    """Returns the rows of float [n, D] at length 1 (zero rows stay zero)."""
    # Dividing by the largest entry first keeps squares inside float32.
    largest = np.abs(embeddings).max(axis=1, keepdims=True)
    rows = embeddings / np.maximum(largest, np.finfo(np.float32).tiny)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.maximum(norms, _SMALLEST_NORM)
    return np.where(largest > _SMALLEST_NORM, rows, 0.0).astype(np.float32)


# ---- Nearest neighbours -----------------------------------------------------


def nearest_neighbors(
    bank: np.ndarray, queries: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the k rows of `bank` with the largest dot product to each query.

    Memory is bounded by blocks of queries and bank; equal products go to the
    earlier row of the bank.

    Args:
      bank: float32 [m, D].
      queries: float32 [n, D].
      k: neighbours, at most m.

    Returns:
      (products float32 [n, k], best first; rows of the bank int64 [n, k]).
    """
    found = [
        _nearest_in_blocks(bank, queries[start : start + _QUERY_BLOCK], k)
        for start in range(0, len(queries), _QUERY_BLOCK)
    ]
    products, rows = zip(*found, strict=True)
    return np.concatenate(products), np.concatenate(rows)


def _nearest_in_blocks(bank, queries, k):
    """`nearest_neighbors` of one block of queries."""
    best = np.empty([len(queries), 0], np.float32)
    rows = np.empty([len(queries), 0], np.int64)
    for start in range(0, len(bank), _BANK_BLOCK):
        block = bank[start : start + _BANK_BLOCK]
        # NumPy's product: on CPUs its BLAS is several times as fast as the
        # one of TensorFlow.
        top = tf.math.top_k(queries @ block.T, min(k, len(block)))
        # What was found before stands first, so that it wins ties.
        best = np.concatenate([best, top.values.numpy()], axis=1)
        rows = np.concatenate([rows, top.indices.numpy() + start], axis=1)
        top = tf.math.top_k(best, min(k, best.shape[1]))
        best = top.values.numpy()
        rows = np.take_along_axis(rows, top.indices.numpy(), axis=1)
    return best, rows


def knn(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    k: int = config.Evaluation.knn_k,
) -> np.ndarray:
    """Predicts the class whose neighbours have the largest sum of cosines.

    The k nearest training rows by cosine vote, each with the weight of its
    cosine (SINCERE, Appendix M, with k = 1 and 5). A class without neighbour
    never wins, however negative the cosines; equal sums go to the smallest
    class id.

    Args:
      train_embeddings: float [m, D], l2-normalised here.
      train_labels: int [m], from 0.
      test_embeddings: float [n, D], l2-normalised here.
      k: neighbours that vote; more than m count as m.

    Returns:
      int64 [n], class ids.

    Raises:
      UserError: for k < 1, NaN, negative labels, or shapes that do not fit.
    """
    if k < 1:
        raise config.UserError(f"k={k}: give at least 1 neighbour")
    train, classes, index, test = _check(
        train_embeddings, train_labels, test_embeddings
    )
    cosines, rows = nearest_neighbors(
        normalize(train), normalize(test), min(k, len(train))
    )
    predictions = [
        _vote(
            cosines[start : start + _QUERY_BLOCK],
            index[rows[start : start + _QUERY_BLOCK]],
            len(classes),
        )
        for start in range(0, len(test), _QUERY_BLOCK)
    ]
    return classes[np.concatenate(predictions)]


def _vote(cosines, neighbors, num_classes):
    """Returns the winning class of each row; cosines, neighbors are [b, k]."""
    votes = np.zeros([len(cosines), num_classes], np.float32)
    present = np.zeros(votes.shape, bool)
    rows = np.arange(len(cosines))
    for weight, label in zip(cosines.T, neighbors.T, strict=True):
        votes[rows, label] += weight
        present[rows, label] = True
    return np.where(present, votes, -np.inf).argmax(axis=1)


# ---- Prototypes -------------------------------------------------------------


def prototype(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
) -> Scores:
    """Scores each class by the cosine to its prototype.

    A prototype is the mean of the class's l2-normalised embeddings, normalised
    again.

    Args:
      train_embeddings: float [m, D].
      train_labels: int [m], from 0.
      test_embeddings: float [n, D].

    Returns:
      Scores, cosines in [-1, 1].

    Raises:
      UserError: for NaN, negative labels, or shapes that do not fit.
    """
    train, classes, index, test = _check(
        train_embeddings, train_labels, test_embeddings
    )
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(len(classes)))
    sums = np.add.reduceat(normalize(train)[order], starts, axis=0)
    means = sums / np.bincount(index)[:, np.newaxis]
    return Scores(normalize(test) @ normalize(means).T, classes)


# ---- Softmax regression -----------------------------------------------------


def linear(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    *,
    epochs: int = config.Evaluation.probe_epochs,
    batch_size: int = config.Evaluation.probe_batch_size,
    learning_rate: float = config.Evaluation.probe_learning_rate,
    momentum: float = 0.9,
    seed: int = config.Evaluation.seed,
    views: Iterable[tuple[np.ndarray, np.ndarray]] | None = None,
) -> tuple[Scores, list[float]]:
    """Trains softmax regression on frozen embeddings, and scores with it.

    SimCLR, Appendix 10.6: SGD with Nesterov momentum 0.9, learning rate
    0.1 * batch / 256, 90 epochs, no weight decay, no warm-up; a cosine schedule
    to zero, since the paper states none. Weights start at zero, and embeddings
    enter as they are.

    Args:
      train_embeddings: float [m, D].
      train_labels: int [m], from 0.
      test_embeddings: float [n, D].
      epochs: passes over the training rows; each drops its last m % batch.
      batch_size: rows per step, at most m.
      learning_rate: peak, per 256 rows.
      momentum: Nesterov momentum.
      seed: seed of the order of rows; equal seeds give equal scores.
      views: batches (embeddings [batch_size, D], labels [batch_size]) without
        end, on which it is trained instead of the training rows, in as many
        steps: embeddings of augmented images, as in the linear stage of Khosla
        et al. 2020, table 5. None: the training rows, in a new order an epoch.

    Returns:
      (Scores, logits; mean training loss of each epoch, in nats).

    Raises:
      UserError: for NaN, negative labels, shapes that do not fit, or a
        diverged loss.
    """
    train, classes, index, test = _check(
        train_embeddings, train_labels, test_embeddings
    )
    batch_size = min(batch_size, len(train))
    steps = len(train) // batch_size
    peak = learning_rate * batch_size / config.REFERENCE_BATCH_SIZE
    if views is None:
        parts = _reshuffled(train, index, steps * batch_size, seed)
    else:
        parts = _gathered(views, classes, steps, train.shape[1])
    kernel = tf.zeros([train.shape[1], len(classes)])
    bias = tf.zeros([len(classes)])
    state = (kernel, bias, tf.zeros_like(kernel), tf.zeros_like(bias))
    losses = []
    for epoch, (rows, labels, order) in zip(range(epochs), parts, strict=False):
        progress = (epoch * steps + np.arange(steps)) / (epochs * steps)
        rates = peak * 0.5 * (1 + np.cos(math.pi * progress))
        state, loss = _linear_epoch(
            rows,
            labels,
            tf.constant(order.reshape(steps, batch_size)),
            tf.constant(rates, tf.float32),
            tf.constant(momentum, tf.float32),
            state,
        )
        losses.append(float(loss))
        if not math.isfinite(losses[-1]):
            raise config.UserError(
                f"the linear probe diverged in epoch {epoch + 1}: give a"
                f" learning rate below {learning_rate:g}"
            )
    kernel, bias = state[:2]
    return Scores((test @ kernel + bias).numpy(), classes), losses


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
            raise config.UserError(
                f"views have {rows.shape[1]} features and train_embeddings"
                f" {features}: embed both with one encoder"
            )
        index = np.searchsorted(classes, labels)
        yield tf.constant(rows), tf.constant(index), np.arange(len(rows))


@tf.function(reduce_retracing=True)
def _linear_epoch(rows, labels, order, rates, momentum, state):
    """One epoch of SGD; returns the new state and the epoch's mean loss.

    The gradient of softmax cross entropy is written out: a tape inside a loop
    of thousands of tiny steps would take longer than the steps.

    Args:
      rows: float32 [m, D]; labels: int64 [m], below C.
      order: int64 [steps, b], rows of each step.
      rates: float32 [steps], learning rates; momentum: float32 [].
      state: kernel [D, C], bias [C], and the velocity of each.
    """
    kernel, bias, kernel_velocity, bias_velocity = state
    batch = tf.shape(order)[1]
    total = tf.constant(0.0)
    for step in tf.range(tf.shape(order)[0]):
        x = tf.gather(rows, order[step])
        y = tf.gather(labels, order[step])
        logits = x @ kernel + bias
        total += tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        )
        error = tf.nn.softmax(logits) - tf.one_hot(y, tf.shape(bias)[0])
        error /= tf.cast(batch, tf.float32)
        kernel_gradient = tf.matmul(x, error, transpose_a=True)
        bias_gradient = tf.reduce_sum(error, 0)
        rate = rates[step]
        # Nesterov: the step looks ahead along the new velocity.
        kernel_velocity = momentum * kernel_velocity - rate * kernel_gradient
        bias_velocity = momentum * bias_velocity - rate * bias_gradient
        kernel += momentum * kernel_velocity - rate * kernel_gradient
        bias += momentum * bias_velocity - rate * bias_gradient
    loss = total / tf.cast(tf.shape(order)[0], tf.float32)
    return (kernel, bias, kernel_velocity, bias_velocity), loss
