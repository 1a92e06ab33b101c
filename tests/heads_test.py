"""Projection heads and the linear probe."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import heads
from tf_contrastive.config.projection import HEADS
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.model import networks


def _features(n=64, d=12):
    return np.random.default_rng(0).standard_normal((n, d)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "options", "kernels"),
    [
        ("linear", {}, [(12, 5)]),
        ("mlp", {"layers": 2}, [(12, 12), (12, 5)]),
        ("mlp", {"layers": 3, "hidden": 7}, [(12, 7), (7, 7), (7, 5)]),
        # SINCERE's.
        ("mlp", {"bias": True}, [(12, 12), (12, 5)]),
    ],
)
def test_heads_without_normalization_are_the_papers_formula(
    name, options, kernels
):
    head = heads.build(name, output=5, batch_norm=False, **options)
    head(_features())
    layers = [head.get_layer(f"dense{i + 1}") for i in range(len(kernels))]
    assert [tuple(layer.kernel.shape) for layer in layers] == kernels
    *hidden, last = layers
    assert all(layer.use_bias for layer in hidden)
    assert last.use_bias == options.get("bias", False)
    assert len(head.weights) == 2 * len(hidden) + 1 + last.use_bias
    expected = _features()
    for layer in layers:
        expected = expected @ layer.kernel
        if layer.use_bias:
            layer.bias.assign(_features(1, layer.units)[0])
            expected = expected + layer.bias
        if layer is not last:
            expected = np.maximum(expected, 0)
    np.testing.assert_allclose(head(_features()), expected, 1e-5, 1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_normalized_features_have_no_length(name):
    options = {} if name == "identity" else {"output": 5, "batch_norm": False}
    head = heads.build(name, normalize_input=True, **options)
    features = _features()
    z = head(features)
    np.testing.assert_allclose(head(7 * features), z, rtol=1e-5, atol=1e-6)
    plain = heads.build(name, **options)
    if name == "identity":
        np.testing.assert_array_equal(plain(features), features)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    plain(features)
    plain.set_weights(head.get_weights())
    np.testing.assert_allclose(
        plain(features / lengths), z, rtol=1e-5, atol=1e-6
    )


def test_a_probe_can_normalize_its_input():
    probe = heads.LinearProbe(3, "glorot_uniform", True, use_bias=False)
    features = _features()
    logits = probe(features)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    expected = features / lengths @ probe.kernel.numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
    again = heads.LinearProbe.from_config(probe.get_config())
    assert again.normalize_input and not again.use_bias


def test_mlp_has_simclrs_variables():
    head = heads.build("mlp", hidden=0, output=5)
    head.build([None, 12])
    shapes = {
        w.name.split("/", 1)[1].removesuffix(":0"): tuple(w.shape)
        for w in head.trainable_variables
    }
    assert shapes == {
        "dense1/kernel": (12, 12),
        "norm1/gamma": (12,),
        "norm1/beta": (12,),
        "dense2/kernel": (12, 5),
        "norm2/gamma": (5,),
    }


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_the_last_normalization_centers_projections(name):
    head = heads.build(name, output=5)
    z = head(3.0 + _features(), training=True).numpy()
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(z.std(0), 1, atol=1e-3)
    # At inference the moving statistics, still near their start, decide.
    assert abs(head(3.0 + _features()).numpy().std(0) - 1).max() > 0.05


def test_synchronization_reaches_every_normalization():
    head = heads.build("mlp", layers=3, synchronized=False)
    head.build([None, 12])
    norms = [x for x in head.layers if isinstance(x, BatchNormalization)]
    assert [n.synchronized for n in norms] == [False] * 3


@pytest.mark.parametrize("name", HEADS)
def test_projections_are_float32_under_half_precision(name):
    with networks.precision("mixed_bfloat16"):
        head, probe = heads.build(name), heads.LinearProbe(3)
        z, logits = head(_features(), training=True), probe(_features())
    assert z.dtype == logits.dtype == tf.float32
    assert all(w.dtype == tf.float32 for w in head.weights)
