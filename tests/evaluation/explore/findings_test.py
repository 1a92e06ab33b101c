"""Neighbours, groups and votes against double loops in float64."""

from collections import Counter

import blobs
import numpy as np
import pytest

from tf_contrastive import classifiers
from tf_contrastive.evaluation.explore import findings


def _cosines(h):
    h = h.astype(np.float64)
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    return h @ h.T


def test_neighbors_are_those_of_all_pairs_across_blocks(monkeypatch):
    monkeypatch.setattr(classifiers.neighbors, "QUERY_BLOCK", 7)
    monkeypatch.setattr(classifiers.neighbors, "BANK_BLOCK", 13)
    monkeypatch.setattr(classifiers.neighbors, "QUERIES", 20)
    h, _ = blobs.blobs(75)
    found = findings.neighbors(h, 5)
    cosines = _cosines(h)
    np.fill_diagonal(cosines, -2)
    expected = np.argsort(-cosines, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(found.rows, expected)
    np.testing.assert_allclose(
        found.cosines, np.take_along_axis(cosines, expected, 1), atol=1e-6
    )


def test_no_row_is_its_own_neighbor_among_equal_ones():
    h = np.ones([9, 3], np.float32)
    found = findings.neighbors(h, 2)
    assert found.rows.tolist() == [[1, 2], [0, 2]] + [[0, 1]] * 7
    assert findings.neighbors(h, 8).rows[4].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]


def test_distinct_images_and_groups():
    keys = np.array([7, 3, 7, 9, 3, 7])
    images = findings.distinct(keys)
    assert images.rows.tolist() == [0, 1, 3]
    assert images.place.tolist() == [0, 1, 0, 2, 1, 0]
    parts = [part.tolist() for part in findings.groups(keys)]
    assert parts == [[0, 2, 5], [1, 4]]
    # Copies with several classes have none.
    labels = np.array([0, 1, 0, 2, 2, 0])
    assert images.labels(labels).tolist() == [0, -1, 2]
    first, second = np.array([0, 4, 2]), np.array([4, 3, 5])
    numbers = findings.components(6, first, second)
    parts = [part.tolist() for part in findings.groups(numbers)]
    assert parts == [[0, 3, 4], [2, 5]]


def _slow_vote(labels, keys, rows, near):
    """The votes on each image, by the definition."""
    order = list(dict.fromkeys(keys))
    places = [order.index(key) for key in keys]
    classes = [
        {labels[i] for i, key in enumerate(keys) if key == one} for one in order
    ]
    voters = [min(each) if len(each) == 1 else -1 for each in classes]
    for i, own in enumerate(labels):
        place = places[i]
        votes = [
            voters[j]
            for j in rows[place]
            if voters[j] >= 0 and not {(place, j), (j, place)} & near
        ]
        counts = Counter(votes)
        # Of equal numbers, the first to be counted is the nearest.
        winner, most = counts.most_common(1)[0] if votes else (-1, 0)
        others = sum(
            voter == own and j != place and not {(place, j), (j, place)} & near
            for j, voter in enumerate(voters)
        )
        possible = min(others, len(votes))
        missing = np.nan
        if own >= 0 and possible:
            missing = 1 - min(counts[own] / possible, 1)
        yield winner, most / max(len(votes), 1), missing


@pytest.mark.parametrize("seed", range(4))
def test_votes_equal_a_slow_count(seed, monkeypatch):
    monkeypatch.setattr(findings, "ROWS", 11)
    random = np.random.RandomState(seed)
    keys = random.randint(60, size=80)
    labels = random.randint(-1, 4, size=80)
    labels[0] = 4  # The only one of its class.
    images = findings.distinct(keys)
    count = len(images.rows)
    h = random.normal(size=(count, 5))
    found = findings.neighbors(h, 6)
    near = random.randint(count - 1, size=(200, 2))
    near[:, 1] = near.max(axis=1) + 1
    near = np.unique(near, axis=0)
    votes = findings.vote(labels, images, found.rows, near)
    pairs = {*map(tuple, near.tolist())}
    expected = _slow_vote(labels.tolist(), keys.tolist(), found.rows, pairs)
    winner, support, missing = map(np.array, zip(*expected, strict=True))
    np.testing.assert_array_equal(votes.winner, winner)
    np.testing.assert_allclose(votes.support, support)
    np.testing.assert_allclose(votes.missing, missing)
    suspects = votes.suspects(labels)
    judged = {*np.flatnonzero((winner != labels) & ~np.isnan(missing))}
    assert {*suspects} == judged
    ranks = [(-missing[i], -support[i], i) for i in suspects]
    assert ranks == sorted(ranks)
    wins = (winner == labels)[~np.isnan(missing)]
    assert votes.agreement(labels) == wins.mean()
