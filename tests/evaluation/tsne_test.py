"""Maps of embeddings by t-SNE."""

import contexts
import numpy as np
import photographs
import pytest

from tf_contrastive.base import errors
from tf_contrastive.evaluation import tsne

_RNG = np.random.RandomState(0)


def test_a_map_keeps_clusters_together():
    labels = _RNG.randint(4, size=120)
    centers = _RNG.normal(size=(4, 8))
    rows = (centers[labels] + 0.1 * _RNG.normal(size=(120, 8))).astype("f")
    places, divergence = tsne.tsne(rows, perplexity=10)
    assert 0 < divergence < 2
    distances = ((places[:, None] - places) ** 2).sum(-1)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(1)] == labels).mean() > 0.95
    again, _ = tsne.tsne(rows, perplexity=10)
    np.testing.assert_array_equal(places, again)


def test_maps_of_few_and_of_equal_points():
    assert np.isfinite(tsne.tsne(np.eye(5, 2), perplexity=30)[0]).all()
    assert np.isfinite(tsne.tsne(np.ones([9, 3]))[0]).all()
    with pytest.raises(errors.UserError, match="embeddings"):
        tsne.tsne(np.diag([np.nan] + [1.0] * 8))


def test_random_examples_of_random_classes():
    labels = np.repeat(np.arange(20), 30)
    rows = tsne.choose(labels, 5, 40, seed=1)
    assert len(rows) == 40
    assert len(np.unique(labels[rows])) == 5
    np.testing.assert_array_equal(rows, tsne.choose(labels, 5, 40, seed=1))
    assert len(tsne.choose(np.full(9, -1), 5, 40, seed=1)) == 9


@pytest.mark.slow
def test_maps_of_h_and_z_and_of_images_without_labels(monkeypatch):
    monkeypatch.setattr(tsne, "EXAMPLES", 40)
    monkeypatch.setattr(tsne, "CLASSES", 2)
    context = photographs.context(projection=photographs.head())
    measurement = contexts.measure("tsne", context)
    arrays = measurement["arrays"]
    assert arrays["tsne_z"].shape == arrays["tsne_h"].shape
    assert len(np.unique(arrays["tsne_labels"])) == 2
    contexts.check_plots(measurement)
    unlabelled = photographs.context(labelled=False)
    measurement = contexts.measure("tsne", unlabelled)
    assert "tsne_z" not in measurement["arrays"]
    contexts.check_plots(measurement)
