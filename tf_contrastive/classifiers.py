"""Classifiers on embeddings: neighbours, prototypes, softmax regression.

Layer 3. They take NumPy arrays, return NumPy arrays, and depend on nothing but
their arguments. Scores are [n, C]; column c stands for class `classes[c]`, the
sorted ids that the training labels hold.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import config

# Sides of the blocks of similarities, 16 MiB of float32 each: what is chosen
# from has hardly left the processor's caches.
_QUERY_BLOCK = 1024
_BANK_BLOCK = 4096
# Queries, and queries times neighbours (8 bytes each), that are kept at a time:
# more of them take further passes over the bank.
_QUERIES = 16_384
_KEPT = 2**23
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
    # A row's extremes tell of NaN and infinity without a mask of all entries.
    finite = np.isfinite(array.max(axis=1)) & np.isfinite(array.min(axis=1))
    bad = np.flatnonzero(~finite)
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
    # Dividing by the largest entry first keeps squares inside float32. One
    # copy is made, and no other array of that size.
    largest = np.maximum(embeddings.max(axis=1), -embeddings.min(axis=1))
    scale = np.maximum(largest, np.finfo(np.float32).tiny)
    rows = (embeddings / scale[:, np.newaxis]).astype(np.float32, copy=False)
    norms = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    rows /= np.maximum(norms, _SMALLEST_NORM)[:, np.newaxis]
    rows[largest <= _SMALLEST_NORM] = 0.0
    return rows


# ---- Nearest neighbours -----------------------------------------------------


def nearest_neighbors(
    bank: np.ndarray, queries: np.ndarray, k: int, *, cosine: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the k rows of `bank` with the largest dot product to each query.

    Beside its result it needs memory for blocks of queries and bank alone,
    whatever their numbers; equal products go to the earlier row of the bank.

    Args:
      bank: float32 [m, D].
      queries: float32 [n, D].
      k: neighbours, at most m.
      cosine: whether both are l2-normalised here, a block at a time.

    Returns:
      (products float32 [n, k], best first; rows of the bank int64 [n, k]).
    """
    found = list(_neighbors(bank, queries, k, cosine))
    products, rows = zip(*found, strict=True)
    return np.concatenate(products), np.concatenate(rows).astype(np.int64)


def _neighbors(
    bank: np.ndarray, queries: np.ndarray, k: int, cosine: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields `nearest_neighbors` of some queries after others."""
    together = min(max(_KEPT // k, 1), _QUERIES)
    for start in range(0, len(queries), together):
        some = queries[start : start + together]
        yield _neighbors_of(
            bank, normalize(some) if cosine else some, k, cosine
        )


def _neighbors_of(bank, queries, k, cosine):
    """`nearest_neighbors` of queries that are kept track of all at once."""
    # Of the bank, the walk's outer side, each block is normalised once.
    best = np.full([len(queries), k], -np.inf, np.float32)
    rows = np.zeros([len(queries), k], np.int32)
    products = np.empty([_QUERY_BLOCK, k + _BANK_BLOCK], np.float32)
    for start in range(0, len(bank), _BANK_BLOCK):
        block = bank[start : start + _BANK_BLOCK]
        block = (normalize(block) if cosine else block).T
        for first in range(0, len(queries), _QUERY_BLOCK):
            part = slice(first, first + _QUERY_BLOCK)
            query = queries[part]
            # What was found before stands first, so that it wins ties.
            candidates = products[: len(query), : k + block.shape[1]]
            candidates[:, :k] = best[part]
            # NumPy's product: on CPUs its BLAS is several times as fast as
            # the one of TensorFlow.
            np.matmul(query, block, out=candidates[:, k:])
            top = tf.math.top_k(candidates, k)
            best[part] = top.values
            place = top.indices.numpy()
            kept = np.take_along_axis(rows[part], np.minimum(place, k - 1), 1)
            rows[part] = np.where(place < k, kept, place + (start - k))
    return best, rows


def knn(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    k: int | Sequence[int] = config.KNN_K,
) -> np.ndarray | list[np.ndarray]:
    """Predicts the class whose neighbours have the largest sum of cosines.

    The k nearest training rows by cosine vote, each with the weight of its
    cosine (SINCERE, Appendix M, with k = 1 and 5). A class without neighbour
    never wins, however negative the cosines; equal sums go to the smallest
    class id.

    Args:
      train_embeddings: float [m, D], l2-normalised here.
      train_labels: int [m], from 0.
      test_embeddings: float [n, D], l2-normalised here.
      k: neighbours that vote; more than m count as m. Of several such numbers
        the neighbours are looked for once.

    Returns:
      int64 [n], class ids; of several k a list of such, in their order.

    Raises:
      UserError: for k < 1, NaN, negative labels, or shapes that do not fit.
    """
    several = [k] if np.ndim(k) == 0 else list(k)
    if not several or min(several) < 1:
        raise config.UserError(f"k={k}: give at least 1 neighbour")
    train, classes, index, test = _check(
        train_embeddings, train_labels, test_embeddings
    )
    counts = [min(count, len(train)) for count in several]
    votes = [
        _votes(
            cosines[start : start + _QUERY_BLOCK],
            index[rows[start : start + _QUERY_BLOCK]],
            len(classes),
            counts,
        )
        for cosines, rows in _neighbors(train, test, max(counts), cosine=True)
        for start in range(0, len(rows), _QUERY_BLOCK)
    ]
    winners = classes[np.concatenate(votes, axis=1)]
    return winners[0] if np.ndim(k) == 0 else list(winners)


def _votes(cosines, neighbors, num_classes, counts):
    """Returns the class that wins each row, for each count: int [counts, b].

    Cosines and the neighbours' classes are [b, k], best first.
    """
    votes = np.zeros([len(cosines), num_classes], np.float32)
    present = np.zeros(votes.shape, bool)
    rows = np.arange(len(cosines))
    winners = np.empty([len(counts), len(cosines)], np.int64)
    pairs = zip(cosines.T, neighbors.T, strict=True)
    for voters, (weight, label) in enumerate(pairs, 1):
        votes[rows, label] += weight
        present[rows, label] = True
        for place in [i for i, count in enumerate(counts) if count == voters]:
            winners[place] = np.where(present, votes, -np.inf).argmax(axis=1)
    return winners


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
    *_, test = _check(train_embeddings, train_labels, test_embeddings)
    model, losses = train_linear(train_embeddings, train_labels, **options)
    return model.scores(test), losses


def train_linear(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    *,
    optimizer: Callable[[int, int], tf.keras.optimizers.Optimizer],
    epochs: int = config.LinearProtocol.linear_epochs,
    batch_size: int = config.LinearStage.linear_batch_size,
    label_smoothing: float = config.LinearProtocol.linear_label_smoothing,
    seed: int = config.Evaluation.seed,
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
    train, classes, index, _ = _check(
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
            raise config.UserError(
                f"the linear classifier diverged in epoch {epoch + 1}: give a"
                " lower learning rate (--linear_learning_rate)"
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
            raise config.UserError(
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
