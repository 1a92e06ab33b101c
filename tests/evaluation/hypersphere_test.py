"""Alignment, uniformity, projections of the hypersphere, and spectra."""

import itertools

import blobs
import colored_noise
import contexts
import numpy as np
import photographs
import pytest
import scipy.stats
import tensorflow as tf

from tf_contrastive import evaluation, heads
from tf_contrastive.evaluation import (
    hypersphere,
    protocols,
    spectra,
    view_embeddings,
)
from tf_contrastive.losses import contrastive_metrics

_RNG = np.random.RandomState(0)


def test_alignment_and_uniformity_equal_transcriptions(monkeypatch):
    monkeypatch.setattr(hypersphere, "BLOCK", 7)
    z = _RNG.normal(size=(30, 3, 4))
    unit = z / np.linalg.norm(z, axis=-1, keepdims=True)
    pairs = [
        ((x[a] - x[b]) ** 2).sum()
        for x in unit
        for a, b in itertools.permutations(range(3), 2)
    ]
    assert evaluation.alignment(z) == pytest.approx(np.mean(pairs))
    rows = unit[:, 0]
    pairs = [
        np.exp(-2 * ((rows[a] - rows[b]) ** 2).sum())
        for a, b in itertools.permutations(range(30), 2)
    ]
    uniformity = evaluation.uniformity(z[:, 0])
    assert uniformity == pytest.approx(np.log(np.mean(pairs)), rel=1e-5)
    assert evaluation.uniformity(np.ones([9, 3])) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("shape", [(50, 6), (6, 50)])
def test_effective_rank_is_that_of_singular_values(shape):
    x = (_RNG.normal(size=shape) * np.arange(1, shape[1] + 1)).astype("f")
    x += 5.0
    expected = float(contrastive_metrics.effective_rank(tf.constant(x)))
    assert evaluation.effective_rank(x) == pytest.approx(expected, rel=1e-3)
    assert evaluation.effective_rank(np.ones([5, 3])) == 1.0


def test_projections_of_a_sphere_are_nearly_normal():
    sphere = _RNG.normal(size=(4000, 16))
    found = evaluation.random_projections(sphere, 16)
    # Orthogonal directions preserve lengths.
    lengths = np.linalg.norm(found["projections"], axis=1)
    np.testing.assert_allclose(lengths, 1.0, rtol=1e-4)
    x = found["projections"][:, 3]
    expected = scipy.stats.kstest((x - x.mean()) / x.std(), "norm")
    assert found["ks_normal"][3] == pytest.approx(expected.statistic, abs=1e-4)
    # The 99.9 % quantile of the distance, for one direction, is 1.95 / sqrt(n).
    assert found["ks_normal"].max() < 2.5 / np.sqrt(4000)
    rows, _ = blobs.blobs(2000, spread=0.05)
    assert evaluation.random_projections(rows, 8)["ks_normal"].mean() > 0.1
    point = evaluation.random_projections(np.ones([9, 4]), 99)
    assert point["projections"].shape == (9, 4)
    assert np.isfinite(point["ks_normal"]).all()


@pytest.mark.slow
def test_uniformity_protocol():
    context = colored_noise.context()
    measurement = contexts.measure("uniformity", context)
    h, z = context.embeddings("test")[0], context.projections("test")[0]
    measured = measurement["metrics"]
    assert measured["uniformity_h"] == pytest.approx(evaluation.uniformity(h))
    rank = evaluation.effective_rank(z)
    assert measured["effective_rank_z"] == pytest.approx(rank)
    views = view_embeddings.embed_views(context, 10_000, 0)
    assert measured["alignment_z"] == evaluation.alignment(views.z)
    contexts.check_plots(measurement)


# ---- Spectra ----------------------------------------------------------------


def test_values_and_shares_of_a_spectrum():
    values = np.array([8.0, 4.0, 2.0, 1.0, 1.0] + [0.0] * 7)
    rotation = np.linalg.qr(_RNG.normal(size=(12, 12)))[0]
    metrics, arrays = spectra.spectrum(rotation * values @ rotation.T)
    np.testing.assert_allclose(arrays["singular_values"], values, atol=1e-8)
    np.testing.assert_allclose(arrays["eigenvalues"], values, atol=1e-8)
    shares = {k: x for k, x in metrics.items() if k != "effective_rank"}
    assert shares == pytest.approx(
        {"share_of_top_1": 0.5, "share_of_top_10": 1.0}
    )
    # The complex eigenvalues of a rotation have magnitude 1.
    metrics, arrays = spectra.spectrum(np.array([[0.0, -1.0], [1.0, 0.0]]))
    np.testing.assert_allclose(arrays["eigenvalues"], [1, 1])
    assert metrics["effective_rank"] == pytest.approx(2.0)
    metrics, arrays = spectra.spectrum(np.ones([3, 7]))
    assert list(arrays) == ["singular_values"]
    assert metrics["effective_rank"] == pytest.approx(1.0, abs=1e-6)


def test_the_matrix_of_a_linear_projection():
    tf.keras.utils.set_random_seed(1)
    head = heads.build("linear", output=5)
    head(_RNG.normal(size=(64, 7)).astype("f") * 3 + 1, training=True)
    dense, norm = head.layers
    scale = (norm.moving_variance + norm.epsilon) ** -0.5
    expected = dense.kernel * (norm.gamma * scale)
    np.testing.assert_allclose(
        spectra.linear_map(head, 7), expected, rtol=1e-4, atol=1e-6
    )


def test_spectrum():
    head = photographs.head()
    context = photographs.context(projection=head)
    assert "not linear" in protocols.missing("spectrum", context)
    measurement = contexts.measure("spectrum", context)
    expected = np.linalg.svd(head.layers[0].kernel, compute_uv=False)
    np.testing.assert_allclose(
        measurement["arrays"]["singular_values"], expected, rtol=1e-3
    )
    assert measurement["metrics"]["rows"] == 64
    contexts.check_plots(measurement)
