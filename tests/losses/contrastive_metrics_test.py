"""Metrics of the contrastive task against loops over anchors."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive.losses import contrastive_metrics, similarity

_RNG = np.random.default_rng(0)
_BATCH, _VIEWS, _TEMPERATURE = 7, 2, 0.3
_LABELS = np.array([0, 1, 0, 2, 1, 0, 3])


def _by_hand(z, labels, normalize):
    """Every metric as a loop over anchors, in float64."""
    z = z.astype(np.float64)
    unit = z / np.linalg.norm(z, axis=-1, keepdims=True)
    if normalize:
        z = unit
    every = list(np.ndindex(z.shape[:2]))
    found = {name: [] for name in contrastive_metrics.NAMES}
    for a in every:
        others = [b for b in every if b != a]
        positives = [b for b in others if labels[b[0]] == labels[a[0]]]
        negatives = [b for b in others if b not in positives]
        s = {b: z[a] @ z[b] for b in others}
        cos = {b: unit[a] @ unit[b] for b in others}
        e = {b: np.exp(s[b] / _TEMPERATURE) for b in others}
        p = np.array(list(e.values())) / sum(e.values())
        next_view = [b for b in others if b[1] == (a[1] + 1) % z.shape[1]]
        nearest = max(next_view, key=lambda b: s[b])
        found["entropy"].append(-(p * np.log(p)).sum())
        found["one_view_accuracy"].append(nearest[0] == a[0])
        found["positives_per_anchor"].append(len(positives))
        found["uniformity"].append(
            np.log(np.mean([np.exp(-2 * (2 - 2 * c)) for c in cos.values()]))
        )
        found["negative_similarity"].append(np.mean([s[b] for b in negatives]))
        if not positives:
            continue
        found["accuracy"].append(max(others, key=lambda b: s[b]) in positives)
        found["positive_similarity"].append(np.mean([s[b] for b in positives]))
        found["alignment"].append(np.mean([2 - 2 * cos[b] for b in positives]))
        noise = sum(e[b] for b in negatives)
        sincere = np.mean([-np.log(e[b] / (e[b] + noise)) for b in positives])
        found["kl_lower_bound"].append(np.log(len(negatives)) - sincere)
    means = {name: np.mean(values) for name, values in found.items() if values}
    deviations = (unit - unit.mean((0, 1))) ** 2
    return means | {"embedding_std": np.sqrt(deviations.mean((0, 1)).sum())}


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("labels", [None, _LABELS])
def test_equal_the_loops(labels, normalize, monkeypatch):
    z = _RNG.normal(size=[_BATCH, _VIEWS, 4]).astype(np.float32)
    z[1, 1] = z[1, 0] + 0.1
    kinds = np.arange(_BATCH) if labels is None else labels
    expected = _by_hand(z, kinds, normalize)
    for anchors_at_a_time in (128, 5):
        monkeypatch.setattr(
            similarity, "rows_per_block", lambda *_, n=anchors_at_a_time: n
        )
        found = contrastive_metrics.contrastive_task(
            z, labels, temperature=_TEMPERATURE, normalize=normalize
        )
        assert tuple(found) == contrastive_metrics.NAMES
        for name, value in expected.items():
            np.testing.assert_allclose(
                found[name], value, rtol=1e-4, err_msg=name
            )


def test_collapse_looks_like_collapse():
    task = contrastive_metrics.contrastive_task(np.ones([8, 2, 4], np.float32))
    assert task["accuracy"] == 0.0
    np.testing.assert_allclose(task["entropy"], np.log(15), rtol=1e-5)
    np.testing.assert_allclose(task["uniformity"], 0.0, atol=1e-5)
    np.testing.assert_allclose(task["alignment"], 0.0, atol=1e-5)
    assert contrastive_metrics.effective_rank(tf.ones([8, 4])) == 1.0


def test_an_anchor_without_others_is_not_counted():
    z = np.array([[[1, 0], [0.6, 0.8], [0, 1]]], np.float32)
    task = contrastive_metrics.contrastive_task(z, small_views=2)
    # Of the small views: log exp(-2 |x - y|^2), |x - y|^2 = 2 * 0.4 and 2.
    np.testing.assert_allclose(task["uniformity"], (-1.6 - 4) / 2, rtol=1e-6)


def test_effective_rank_counts_dimensions():
    # Orthogonal columns of equal length: as many dimensions as columns.
    square = np.array([[1, 1, 1], [1, -1, 1], [-1, 1, 1], [-1, -1, 1]])
    wide = np.pad(square.astype(np.float32), [[0, 0], [0, 5]])
    rank = contrastive_metrics.effective_rank(wide)
    np.testing.assert_allclose(rank, 2.0, rtol=1e-5)
