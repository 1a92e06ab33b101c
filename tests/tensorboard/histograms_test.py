"""Histograms of similarities and norms."""

import numpy as np
import pytest
import small
import tensorflow as tf

from tf_contrastive import heads, losses, model, tensorboard
from tf_contrastive.tensorboard import histograms, scalars


def _network():
    """A small encoder and head, or a copy of them."""
    head = heads.build("linear", output=4)
    head(tf.keras.Input([16]))
    return small.convolutions(), head


class _Copy(tensorboard.HostCopy):
    def __init__(self):
        self.encoder, self.head = _network()


def _measured(loss, labels, images):
    tf.keras.utils.set_random_seed(0)
    trained = model.ContrastiveModel(*_network(), losses.build(loss))
    examples = tensorboard.Histograms(
        _Copy(), trained, lambda: (images, labels)
    )
    return trained, examples.measure()


def test_similarities_and_norms_equal_numpy():
    labels = np.array([0, 1, 0, 2, 1])
    images = tf.random.stateless_uniform([5, 2, 8, 8, 3], [1, 2])
    trained, found = _measured("supcon", labels, images)
    flat = tf.reshape(images, [10, 8, 8, 3])
    h = trained.encoder(flat).numpy()
    z = trained.projection_head(h).numpy()
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    of_view = np.repeat(labels, 2)
    pairs = [(i, j) for i in range(10) for j in range(i + 1, 10)]
    for name, same in (("positives", True), ("negatives", False)):
        expected = [
            z[i] @ z[j] for i, j in pairs if (of_view[i] == of_view[j]) == same
        ]
        np.testing.assert_allclose(
            found[0][f"similarity/{name}"], expected, atol=1e-5
        )
    norms = np.linalg.norm(h, axis=1)
    np.testing.assert_allclose(
        found[0]["similarity/feature_norms"], norms, rtol=1e-5
    )
    unit = h / np.maximum(norms[:, np.newaxis], 1e-12)
    spread = np.sqrt(1 - np.sum(unit.mean(axis=0) ** 2))
    assert found[1][scalars.FEATURE_STD] == pytest.approx(spread, 1e-4)
    values = np.linalg.svd(h - h.mean(axis=0), compute_uv=False)
    shares = values[values > 1e-6] / values.sum()
    rank = np.exp(-np.sum(shares * np.log(shares)))
    assert found[1][scalars.FEATURE_RANK] == pytest.approx(rank, 1e-3)


def test_without_labels_pairs_are_of_one_image():
    images = tf.random.stateless_uniform([4, 2, 8, 8, 3], [1, 2])
    _, found = _measured("ntxent", None, images)
    # Of 8 views 4 pairs are of one image.
    assert len(found[0]["similarity/positives"]) == 4
    assert len(found[0]["similarity/negatives"]) == 24


def test_the_pairs_are_limited():
    assert histograms.images_per_batch(1024, 2) == 2
    positives, negatives = histograms.pairs_of_views((64, 2), None).values()
    assert len(positives) == 64 and len(negatives) <= 5000
    several = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 1]])
    positives = histograms.pairs_of_views((3, 1), several)["positives"]
    assert positives.tolist() == [[0, 1], [1, 2]]
    # Images without a label are no class.
    some = np.array([-1, 2, -1, 2])
    positives = histograms.pairs_of_views((4, 1), some)["positives"]
    assert positives.tolist() == [[1, 3]]
