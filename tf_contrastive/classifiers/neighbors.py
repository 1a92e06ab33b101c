"""Exact nearest neighbours, block by block; kNN and prototype classifiers."""

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.classifiers.embedding_arrays import (
    Scores,
    check_train_and_test,
    normalize,
)
from tf_contrastive.config.protocols import KNN_K

# Sides of the blocks of similarities, 16 MiB of float32 each, small enough for
# the processor's caches.
QUERY_BLOCK = 1024
BANK_BLOCK = 4096
# Queries, and queries times neighbours (8 bytes each), per pass over the bank.
QUERIES = 16_384
_CANDIDATES = 2**23


def nearest_neighbors(
    bank: np.ndarray, queries: np.ndarray, k: int, *, cosine: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Finds the k rows of `bank` with the largest dot product to each query.

    The bank is float32 [m, D], queries are float32 [n, D], k is at most m. With
    `cosine` both are l2-normalized, a block at a time. In addition to the
    result only blocks of fixed size are allocated. Of equal products the
    earlier row of the bank comes first.

    Yields:
      For consecutive parts of the queries (products float32 [b, k], best first;
      rows of the bank int32 [b, k]).
    """
    size = min(max(_CANDIDATES // k, 1), QUERIES)
    for start in range(0, len(queries), size):
        part = queries[start : start + size]
        yield _search(bank, normalize(part) if cosine else part, k, cosine)


def _search(
    bank: np.ndarray, queries: np.ndarray, k: int, cosine: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (products, rows) of queries, in one pass over the bank."""
    # The bank is the outer loop, so that each block is normalized once.
    best = np.full([len(queries), k], -np.inf, np.float32)
    rows = np.zeros([len(queries), k], np.int32)
    products = np.empty([QUERY_BLOCK, k + BANK_BLOCK], np.float32)
    for start in range(0, len(bank), BANK_BLOCK):
        block = bank[start : start + BANK_BLOCK]
        block = (normalize(block) if cosine else block).T
        for first in range(0, len(queries), QUERY_BLOCK):
            part = slice(first, first + QUERY_BLOCK)
            query = queries[part]
            # Earlier candidates come first, so that they win ties.
            candidates = products[: len(query), : k + block.shape[1]]
            candidates[:, :k] = best[part]
            # On CPUs NumPy's BLAS is several times as fast as TensorFlow's.
            np.matmul(query, block, out=candidates[:, k:])
            top = tf.math.top_k(candidates, k)
            best[part] = top.values
            place = top.indices.numpy()
            old = np.take_along_axis(rows[part], np.minimum(place, k - 1), 1)
            rows[part] = np.where(place < k, old, place + (start - k))
    return best, rows


def knn(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    k: int | Sequence[int] = KNN_K,
) -> np.ndarray | list[np.ndarray]:
    """Predicts the class whose neighbours have the largest sum of cosines.

    The k nearest training rows by cosine vote. A class without a neighbour
    never wins, even against negative sums; of equal sums the smallest class id
    wins. Embeddings [m, D] and [n, D] are l2-normalized inside; labels [m] are
    int, from 0; k is at most m.

    Returns int64 [n], class ids; for several k, which share one search, a list
    in their order.

    Feeney and Hughes 2024 (SINCERE), appendix M: k = 1 and 5.
    """
    ks = np.atleast_1d(k).tolist()
    if not ks or any(type(one) is not int or one < 1 for one in ks):
        raise errors.UserError(f"k={k}: use whole numbers of at least 1")
    train, labels, test = check_train_and_test(
        train_embeddings, train_labels, test_embeddings
    )
    if max(ks) > len(train):
        raise errors.UserError(
            f"k={k}: {len(train)} training examples have at most {len(train)}"
            " neighbours: use a smaller k"
        )
    classes, index = np.unique(labels, return_inverse=True)
    votes = [
        _votes(
            cosines[start : start + QUERY_BLOCK],
            index[rows[start : start + QUERY_BLOCK]],
            len(classes),
            ks,
        )
        for cosines, rows in nearest_neighbors(
            train, test, max(ks), cosine=True
        )
        for start in range(0, len(rows), QUERY_BLOCK)
    ]
    winners = classes[np.concatenate(votes, axis=1)]
    return winners[0] if np.ndim(k) == 0 else list(winners)


def _votes(
    weights: np.ndarray,
    neighbors: np.ndarray,
    num_classes: int,
    counts: Sequence[int],
) -> np.ndarray:
    """Returns the winning class of each row for each count, int [counts, b].

    Weights are float [b, k], of the nearest first; neighbors int [b, k], their
    classes.
    """
    votes = np.zeros([len(weights), num_classes], weights.dtype)
    present = np.zeros(votes.shape, bool)
    rows = np.arange(len(weights))
    winners = np.empty([len(counts), len(weights)], np.int64)
    pairs = zip(weights.T, neighbors.T, strict=True)
    for voters, (weight, label) in enumerate(pairs, 1):
        votes[rows, label] += weight
        present[rows, label] = True
        for place in [i for i, count in enumerate(counts) if count == voters]:
            winners[place] = np.where(present, votes, -np.inf).argmax(axis=1)
    return winners


def prototype(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
) -> Scores:
    """Scores each class by the cosine, in [-1, 1], to its prototype.

    A prototype is the mean of the class's l2-normalised embeddings, normalised
    again. Embeddings are float [m, D] and [n, D], labels int [m], from 0.
    """
    train, labels, test = check_train_and_test(
        train_embeddings, train_labels, test_embeddings
    )
    classes, index = np.unique(labels, return_inverse=True)
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(len(classes)))
    sums = np.add.reduceat(normalize(train)[order], starts, axis=0)
    means = sums / np.bincount(index)[:, np.newaxis]
    return Scores(normalize(test) @ normalize(means).T, classes)
