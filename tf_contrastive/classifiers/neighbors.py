"""Nearest neighbours by blocks, and the classifier they make."""

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.classifiers.arrays import check, normalize
from tf_contrastive.config.evaluate import KNN_K

# Sides of the blocks of similarities, 16 MiB of float32 each: what is chosen
# from has hardly left the processor's caches.
_QUERY_BLOCK = 1024
_BANK_BLOCK = 4096
# Queries, and queries times neighbours (8 bytes each), that are kept at a time:
# more of them take further passes over the bank.
_QUERIES = 16_384
_KEPT = 2**23


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
    k: int | Sequence[int] = KNN_K,
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
        raise errors.UserError(f"k={k}: give at least 1 neighbour")
    train, classes, index, test = check(
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
