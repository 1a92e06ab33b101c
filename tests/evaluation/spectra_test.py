"""Spectra of matrices, of projections, and of a run's."""

import contexts
import numpy as np
import photographs
import pytest
import tensorflow as tf

from tf_contrastive import heads
from tf_contrastive.evaluation import protocols, spectra

_RNG = np.random.RandomState(0)


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
