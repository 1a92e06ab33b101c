"""What the neighbours of embeddings show, as functions on NumPy arrays."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from tf_contrastive import classifiers

Progress = Callable[[int, int], None]
# Rows whose neighbours' labels are compared at a time.
_ROWS = 1024
# Clusters of an approximate search: the least mean size of one, rows of each
# that place it, and those that a row is compared with.
_LEAST_IN_CLUSTER, _PER_CLUSTER, _PROBES = 39, 64, 32
# Neighbours that vote on a label: half an average class, within these limits.
_LEAST_VOTES, _MOST_VOTES = 5, 50


class Neighbors(NamedTuple):
    """The k other rows of the largest cosine to each row, best first."""

    rows: np.ndarray  # int32 [n, k]
    cosines: np.ndarray  # float32 [n, k]


def neighbors(
    embeddings: np.ndarray,
    k: int,
    progress: Progress = lambda done, total: None,
) -> Neighbors:
    """Finds the k nearest other rows of each row by cosine, exactly.

    Of equal cosines the earlier row comes first.

    Args:
      embeddings: float [n, D].
      k: at most n - 1.
      progress: takes the rows whose neighbours are found, and n.

    Raises:
      UserError: for NaN.
    """
    h = classifiers.check_embeddings("embeddings", embeddings)
    parts = classifiers.nearest_neighbors(h, h, k + 1, cosine=True)
    return _others(len(h), k, parts, progress)


def approximate_neighbors(
    embeddings: np.ndarray,
    k: int,
    progress: Progress = lambda done, total: None,
) -> Neighbors:
    """Finds almost all of `neighbors`, by an inverted file of faiss.

    Each row is compared with those of the nearest of about 4 sqrt(n) clusters.
    Sivic and Zisserman 2003; Johnson et al. 2017.
    """
    import faiss

    h = classifiers.check_embeddings("embeddings", embeddings)
    count, size = h.shape
    most = max(count // _LEAST_IN_CLUSTER, 1)
    clusters = min(int(4 * math.sqrt(count)), most)
    probes = min(_PROBES, clusters)
    index = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(size), size, clusters, faiss.METRIC_INNER_PRODUCT
    )
    every = max(count // (clusters * _PER_CLUSTER), 1)
    index.train(classifiers.normalize(h[::every]))

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, count, _ROWS):
            yield classifiers.normalize(h[start : start + _ROWS])

    for block in blocks():
        index.add(block)

    def found() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for block in blocks():
            index.nprobe = probes
            cosines, rows = index.search(block, k + 1)
            lacking = (rows < 0).any(axis=1)
            if lacking.any():
                index.nprobe = clusters
                values = index.search(block[lacking], k + 1)
                cosines[lacking], rows[lacking] = values
            yield cosines, rows

    return _others(count, k, found(), progress)


def _others(
    count: int,
    k: int,
    parts: Iterable[tuple[np.ndarray, np.ndarray]],
    progress: Progress,
) -> Neighbors:
    """Joins (cosines, rows) of k + 1 neighbours, without each row itself."""
    rows = np.empty([count, k], np.int32)
    cosines = np.empty([count, k], np.float32)
    start = 0
    for values, found in parts:
        stop = start + len(found)
        others = found != np.arange(start, stop)[:, np.newaxis]
        # A row may come after k + 1 equal ones.
        others[others.all(axis=1), -1] = False
        rows[start:stop] = found[others].reshape(-1, k)
        cosines[start:stop] = values[others].reshape(-1, k)
        start = stop
        progress(start, count)
    return Neighbors(rows, cosines)


class Distinct(NamedTuple):
    """The first of each set of equal images."""

    rows: np.ndarray  # int64 [m], increasing.
    place: np.ndarray  # Index into them of each image, int64 [n].

    def labels(self, labels: np.ndarray) -> np.ndarray:
        """Returns the label of each, -1 if its copies have several."""
        first = labels[self.rows]
        conflicts = self.place[labels != first[self.place]]
        first[conflicts] = -1
        return first


def distinct(keys: np.ndarray) -> Distinct:
    """Returns the first of each set of images with equal keys, [n]."""
    _, rows, place = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(rows)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return Distinct(rows[order], rank[place.reshape(-1)])


def components(count: int, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the number of each row's component, int [count], by pairs."""
    ones = np.ones(len(first), bool)
    graph = sparse.coo_matrix((ones, (first, second)), shape=(count, count))
    return csgraph.connected_components(graph, directed=False)[1]


def groups(numbers: np.ndarray) -> list[np.ndarray]:
    """Returns the rows, increasing, of each number that several rows have."""
    order = np.argsort(numbers, kind="stable")
    _, starts = np.unique(numbers[order], return_index=True)
    parts = np.split(order, starts[1:])
    several = [part for part in parts if len(part) > 1]
    return sorted(several, key=lambda part: int(part[0]))


def usual_votes(count: int, classes: int) -> int:
    """Returns how many neighbours vote on labels of images of classes."""
    half = count // (2 * max(classes, 1))
    votes = min(max(half, _LEAST_VOTES), _MOST_VOTES)
    return max(min(votes, count - 1), 0)


class Votes(NamedTuple):
    """The vote of each image's neighbours on its label.

    Attributes:
      winner: class of most votes, int64 [n]; of equal numbers that of the
        nearest neighbour; -1 without any vote.
      support: the winner's fraction of the votes, float64 [n].
      missing: fraction of the votes for the image's own class that are not
        there, float64 [n]: 0, all that are possible; 1, none. NaN if the image
        has no label, or no other image has it.
    """

    winner: np.ndarray
    support: np.ndarray
    missing: np.ndarray

    def suspects(self, labels: np.ndarray) -> np.ndarray:
        """Returns the rows with another winner, the most suspicious first."""
        other = (self.winner != labels) & np.isfinite(self.missing)
        rows = np.flatnonzero(other)
        keys = -self.support[rows], -self.missing[rows]
        return rows[np.lexsort(keys)]


def vote(
    labels: np.ndarray,
    images: Distinct,
    found: Neighbors,
    near: np.ndarray,
) -> Votes:
    """Lets the neighbours of each image vote on its label, one vote each.

    Copies and near copies of an image do not vote on it: they would repeat its
    mistake.

    Args:
      labels: int [n], -1 where there are none.
      images: the distinct ones of the n images.
      found: neighbours among the distinct images [m].
      near: pairs of near copies among them, int [p, 2].
    """
    count = len(images.rows)
    copies = _codes(near[:, 0], near[:, 1], count)
    voters = images.labels(labels)
    sizes = np.bincount(voters[voters >= 0], minlength=labels.max() + 1)
    n = len(labels)
    winner = np.full([n], -1, np.int64)
    support, missing = np.zeros([n]), np.full([n], np.nan)
    for start in range(0, n, _ROWS):
        part = slice(start, start + _ROWS)
        place, own = images.place[part], labels[part]
        rows = found.rows[place]
        theirs = voters[rows]
        is_copy = np.isin(_codes(place[:, np.newaxis], rows, count), copies)
        valid = (theirs >= 0) & ~is_copy
        theirs = np.where(valid, theirs, -1)
        valid_votes = valid.sum(axis=1)
        same = theirs[:, :, np.newaxis] == theirs[:, np.newaxis]
        votes = np.where(valid, same.sum(axis=2), 0)
        best = votes.argmax(axis=1)[:, np.newaxis]
        voted = valid_votes > 0
        chosen = np.take_along_axis(theirs, best, 1)[:, 0]
        winner[part] = np.where(voted, chosen, -1)
        most = np.take_along_axis(votes, best, 1)[:, 0]
        support[part] = most / np.maximum(valid_votes, 1)
        ours = (theirs == own[:, np.newaxis]).sum(axis=1)
        # Without the image itself, if it is among the voters.
        others = sizes[own] - (voters[place] == own)
        possible = np.minimum(valid_votes, others)
        judged = voted & (own >= 0) & (possible > 0)
        missing[part] = np.where(
            judged, 1 - np.minimum(ours / np.maximum(possible, 1), 1), np.nan
        )
    return Votes(winner, support, missing)


def _codes(a: np.ndarray, b: np.ndarray, count: int) -> np.ndarray:
    """Returns a number for each pair of rows, in any order."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    return low.astype(np.int64) * count + high


def outliers(found: Neighbors, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows, those farthest from their k nearest first, and scores.

    A score is the mean cosine to the k nearest ones, float64.
    """
    scores = found.cosines[:, :k].astype(np.float64).mean(axis=1)
    order = np.argsort(scores, kind="stable")
    return order, scores[order]


class Mixing(NamedTuple):
    """Pairs of classes, the most mixed first.

    `shares` are the fractions of all neighbours of class `of` that have class
    `to`, `counts` their numbers.
    """

    of: np.ndarray
    to: np.ndarray
    shares: np.ndarray
    counts: np.ndarray


def mixing(voters: np.ndarray, found: Neighbors, k: int) -> Mixing:
    """Counts the classes of the k nearest neighbours of each class.

    `voters` are the labels of the images [m], -1 where there is none.
    """
    classes = int(voters.max()) + 1
    own = np.repeat(voters, k).astype(np.int64)
    other = voters[found.rows[:, :k].ravel()]
    both = (own >= 0) & (other >= 0)
    codes, counts = np.unique(
        own[both] * classes + other[both], return_counts=True
    )
    of, to = codes // classes, codes % classes
    totals = np.bincount(of, counts, classes)
    shares = counts / totals[of]
    order = np.lexsort((to, of, -shares))
    return Mixing(of[order], to[order], shares[order], counts[order])
