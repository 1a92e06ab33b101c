"""The online nearest neighbour: its bank, and a run it does not touch."""

import numpy as np
import pytest

from tf_contrastive.model.online_knn import OnlineNeighbors


def _expected(batches, size):
    """A slow transcription: a list of the latest, asked before it grows."""
    bank, shares = [], []
    for features, labels in batches:
        rows = features / np.linalg.norm(features, axis=1, keepdims=True)
        if bank:
            hits = [
                max(bank, key=lambda one: one[0] @ row)[1] == label
                for row, label in zip(rows, labels, strict=True)
            ]
            shares.append(np.mean(hits))
        else:
            shares.append(None)
        bank = (bank + list(zip(rows, labels, strict=True)))[-size:]
    return shares


def _batches(count=6, size=8, features=5, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        labels = rng.integers(0, 3, size).astype(np.int32)
        rows = rng.normal(size=[size, features]) + 2 * np.eye(3, 5)[labels]
        yield rows.astype(np.float32), labels


def test_it_is_the_nearest_of_the_latest():
    neighbors = OnlineNeighbors(20, 5)
    found = []
    for features, labels in _batches():
        share, there = neighbors(features, labels)
        found.append(float(share) if there else None)
        neighbors.enqueue(features, labels)
    assert found == pytest.approx(_expected(_batches(), 20))
    assert int(neighbors.entered) == 48
    assert set(found[1:]) != {found[1]}


def test_features_that_are_no_numbers_leave_a_gap():
    neighbors = OnlineNeighbors(4, 2)
    features = np.array([[1, 0], [np.nan, 0], [0, 1]], np.float32)
    neighbors.enqueue(features, np.array([5, 6, 7]))
    assert neighbors.labels.numpy().tolist() == [5, -1, 7, -1]
    assert np.isfinite(neighbors.bank).all()
    share, there = neighbors(features[[0, 2]], np.array([5, 7]))
    assert float(share) == float(there) == 1.0
    # An empty slot is nobody's neighbor, though nearer than the others.
    share, _ = neighbors(np.array([[-2, -1]], np.float32), np.array([7]))
    assert float(share) == 1.0


def test_more_than_it_holds_is_refused():
    with pytest.raises(
        ValueError, match="online_knn_size=7 is less than the 8 images"
    ):
        OnlineNeighbors(7, 5).enqueue(*next(_batches()))
    with pytest.raises(ValueError, match="size=0"):
        OnlineNeighbors(0, 5)
