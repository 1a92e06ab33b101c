"""Functions on arrays: neighbours, groups, votes on labels, outliers."""

from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from tf_contrastive import classifiers

# Rows whose neighbours' labels are compared at a time.
ROWS = 1024
# Neighbours that vote on a label: half an average class, within these limits.
_LEAST_VOTES, _MOST_VOTES = 5, 50


class Neighbors(NamedTuple):
    """The k other rows of the largest cosine to each row, best first."""

    rows: np.ndarray  # int32 [n, k]
    cosines: np.ndarray  # float32 [n, k]


def neighbors(embeddings: np.ndarray, k: int) -> Neighbors:
    """Finds the k nearest other rows of each row by cosine, exactly.

    Of equal cosines the earlier row comes first. Embeddings are float32 [n, D],
    k is at most n - 1.
    """
    count = len(embeddings)
    rows = np.empty([count, k], np.int32)
    cosines = np.empty([count, k], np.float32)
    start = 0
    for values, places in classifiers.nearest_neighbors(
        embeddings, embeddings, k + 1, cosine=True
    ):
        stop = start + len(places)
        others = places != np.arange(start, stop)[:, np.newaxis]
        # A row may come after k + 1 equal ones.
        others[others.all(axis=1), -1] = False
        rows[start:stop] = places[others].reshape(-1, k)
        cosines[start:stop] = values[others].reshape(-1, k)
        start = stop
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
      missing: fraction of the possible votes for the image's own class that it
        did not get, float64 [n]. NaN if the image has no label, or no other
        image has it.
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

    def agreement(self, labels: np.ndarray) -> float | None:
        """Returns the fraction of the judged labels that win the vote."""
        judged = np.isfinite(self.missing)
        wins = (self.winner == labels)[judged]
        return float(wins.mean()) if len(wins) else None


def vote(
    labels: np.ndarray, images: Distinct, nearest: np.ndarray, near: np.ndarray
) -> Votes:
    """Lets the neighbours of each image vote on its label, one vote each.

    Copies and near copies of an image do not vote on it: they would repeat its
    mistake.

    Labels are int [n], -1 where there are none. Of the m distinct images,
    `nearest` int [m, k] are the neighbours, and `near` int [p, 2] the pairs of
    near copies.
    """
    count = len(images.rows)
    copies = _codes(near[:, 0], near[:, 1], count)
    voters = images.labels(labels)
    classes, n = labels.max() + 1, len(labels)
    sizes = np.bincount(voters[voters >= 0], minlength=classes)
    # An image and the class of one of its near copies, as one number.
    one, other = np.concatenate([near, near[:, ::-1]]).T
    near_classes = np.sort((one * classes + voters[other])[voters[other] >= 0])
    winner = np.full([n], -1, np.int64)
    support, missing = np.zeros([n]), np.full([n], np.nan)
    for start in range(0, n, ROWS):
        part = slice(start, start + ROWS)
        place, own = images.place[part], labels[part]
        rows = nearest[place]
        theirs = voters[rows]
        is_copy = np.isin(_codes(place[:, np.newaxis], rows, count), copies)
        valid = (theirs >= 0) & ~is_copy
        theirs = np.where(valid, theirs, -1)
        valid_votes = valid.sum(axis=1)
        same = theirs[:, :, np.newaxis] == theirs[:, np.newaxis]
        votes = np.where(valid, same.sum(axis=2), 0)
        best = votes.argmax(axis=1)[:, np.newaxis]
        voted = valid_votes > 0
        first = np.take_along_axis(theirs, best, 1)[:, 0]
        winner[part] = np.where(voted, first, -1)
        most = np.take_along_axis(votes, best, 1)[:, 0]
        support[part] = most / np.maximum(valid_votes, 1)
        ours = (theirs == own[:, np.newaxis]).sum(axis=1)
        # Without the image itself, if it is among the voters, and near copies.
        others = sizes[own] - (voters[place] == own)
        sought = place * classes + own
        others -= np.searchsorted(near_classes, sought, "right")
        others += np.searchsorted(near_classes, sought, "left")
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
