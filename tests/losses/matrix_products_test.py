"""Gradients of the losses where devices round the factors of products."""

import numpy as np
import pytest
import replicas as on_replicas
import tensorflow as tf

from tf_contrastive import distribution, losses
from tf_contrastive.losses import generalized, matrix_products

# Added to a float32's bits and kept of them: the nearest number of the format
# to which TPUs and Ampere GPUs round the factors of a product.
_FORMATS = {
    "bfloat16": (0x8000, 0xFFFF0000),
    "tf32": (0x1000, 0xFFFFE000),
}
_ALLOWED = {"bfloat16": 0.03, "tf32": 0.005}


def _rounded(x, name):
    half, upper = (tf.constant(n, tf.uint32) for n in _FORMATS[name])
    bits = tf.bitwise.bitwise_and(tf.bitcast(x, tf.uint32) + half, upper)
    return tf.bitcast(bits, tf.float32)


def _round_factors(monkeypatch, name):
    """Rounds the factors of products, and those of their gradients."""
    exact_matmul, exact_einsum = tf.matmul, tf.einsum

    def product(function, factors):
        @tf.custom_gradient
        def rounded(*factors):
            factors = [_rounded(x, name) for x in factors]

            def gradient(g):
                with tf.GradientTape() as tape:
                    tape.watch(factors)
                    result = function(*factors)
                return tape.gradient(result, factors, _rounded(g, name))

            return function(*factors), gradient

        if factors[0].dtype != tf.float32:
            return function(*factors)
        return rounded(*factors)

    def matmul(a, b, **options):
        return product(lambda a, b: exact_matmul(a, b, **options), (a, b))

    def einsum(equation, *factors):
        return product(lambda *x: exact_einsum(equation, *x), factors)

    monkeypatch.setattr(tf, "matmul", matmul)
    monkeypatch.setattr(tf.linalg, "matmul", matmul)
    monkeypatch.setattr(tf, "einsum", einsum)


def _value_and_gradient(function, z):
    z = tf.convert_to_tensor(z)
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = function(z)
    return value, tape.gradient(value, z)


def _error(monkeypatch, form, name, z, labels, *, more=None, **options):
    """Relative error of gradient and value where factors are rounded."""
    products = options.pop("similarity_products", "split")

    def both(products):
        loss = losses.build(name, similarity_products=products, **options)
        return _value_and_gradient(lambda z: loss(z, labels, **(more or {})), z)

    expected, of_expected = both("plain")
    with monkeypatch.context() as patch:
        _round_factors(patch, form)
        value, gradient = both(products)
    return (
        np.linalg.norm(gradient - of_expected) / np.linalg.norm(of_expected),
        value / expected - 1,
    )


# ---- Embeddings --------------------------------------------------------------


def _clusters(spread, images=128, classes=10, size=128):
    """Classes of a spread that is relative to their distance, and labels."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=[classes, 1, size])
    centers /= np.linalg.norm(centers, axis=-1, keepdims=True)
    labels = rng.permutation(images) % classes
    noise = rng.normal(size=[images, 2, size]) / size**0.5
    z = centers[labels] + spread * 2**0.5 * noise
    return z.astype(np.float32), labels


@pytest.mark.parametrize("name", _FORMATS)
@pytest.mark.parametrize("block_size", [None, 100])
def test_tight_classes(block_size, name, monkeypatch):
    z, labels = _clusters(0.1)
    error, of_value = _error(
        monkeypatch, name, "supcon", z, labels, block_size=block_size
    )
    assert error < _ALLOWED[name]
    assert abs(of_value) < _ALLOWED[name]
    error, _ = _error(
        monkeypatch, name, "supcon", z, labels, similarity_products="plain"
    )
    assert error > 2 * _ALLOWED[name]  # Plain products are too coarse.


@pytest.mark.parametrize("name", _FORMATS)
@pytest.mark.parametrize(
    "loss",
    [n for n in losses.LOSSES if n != "cross_entropy" and "swd" not in n],
)
def test_every_loss(loss, name, monkeypatch):
    z, labels = _clusters(1.0)
    more = None
    if loss == "moco":
        rng = np.random.default_rng(1)
        more = {"keys": z[:, ::-1], "queue": rng.normal(size=[300, 128])}
        more = {k: x.astype(np.float32) for k, x in more.items()}
    error, _ = _error(monkeypatch, name, loss, z, labels, more=more)
    assert error < _ALLOWED[name]


@pytest.mark.parametrize("name", _FORMATS)
def test_sliced_wasserstein(name, monkeypatch):
    rng = np.random.default_rng(0)
    # Embeddings near the prior, as after training.
    h = np.sort(rng.normal(size=[128, 16]), axis=0).astype(np.float32)
    prior = (h + 0.05 * rng.normal(size=h.shape)).astype(np.float32)
    directions = np.linalg.qr(rng.normal(size=[16, 16]))[0].astype(np.float32)

    def gradient(dtype, **options):
        others = (tf.constant(x, dtype) for x in (prior, directions))
        return _value_and_gradient(
            lambda h: generalized.sliced_wasserstein(h, *others, **options),
            tf.constant(h, dtype),
        )[1].numpy()

    expected = gradient(tf.float64)
    _round_factors(monkeypatch, name)
    error = gradient(tf.float32, split=True) - expected
    assert np.linalg.norm(error) < _ALLOWED[name] * np.linalg.norm(expected)


@pytest.mark.parametrize("mode", ["plain", "split"])
@pytest.mark.parametrize("loss", ["ntxent", "supcon", "supcon_in"])
def test_cross_entropies_are_never_negative(loss, mode, monkeypatch):
    z, labels = _clusters(0.0, images=64, classes=32)
    _round_factors(monkeypatch, "bfloat16")
    for options in ({}, {"temperature": 0.02}, {"block_size": 50}):
        built = losses.build(loss, similarity_products=mode, **options)
        assert np.min(built.per_anchor(z, labels)) >= 0
        assert built(z, labels) >= 0


def test_the_compiler_keeps_the_split(monkeypatch):
    z, labels = _clusters(0.1)
    expected = _value_and_gradient(
        lambda z: losses.build("supcon")(z, labels), z
    )
    split = losses.build("supcon", similarity_products="split")
    _round_factors(monkeypatch, "bfloat16")
    compiled = tf.function(
        lambda z: _value_and_gradient(lambda z: split(z, labels), z),
        jit_compile=True,
    )
    value, gradient = compiled(z)
    error = np.linalg.norm(gradient - expected[1])
    assert error < _ALLOWED["bfloat16"] * np.linalg.norm(expected[1])
    assert abs(value / expected[0] - 1) < _ALLOWED["bfloat16"]


def test_split_products():
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=[40, 40]).astype(np.float32) for _ in range(2))
    for transpose in (False, True):
        whole = (a.T if transpose else a).astype(np.float64) @ b
        product = matrix_products.matmul(
            tf.constant(a), tf.constant(b), split=True, transpose_a=transpose
        )
        np.testing.assert_allclose(product, whole, atol=40 * 2.0**-16)
    a[3, 5] = np.nan
    product = matrix_products.matmul(tf.constant(a), tf.constant(b), split=True)
    assert np.isnan(product[3]).all()


@pytest.mark.parametrize(
    ("capability", "tf32", "expected"),
    [((7, 5), 1, False), ((8, 0), 1, True), ((9, 0), 1, True), ((8, 0), 0, 0)],
)
def test_auto_splits_where_the_device_rounds(
    capability, tf32, expected, monkeypatch
):
    virtual = on_replicas.strategy(2)
    assert not matrix_products.use_split("auto")
    assert matrix_products.use_split("split")
    tpu = object.__new__(tf.distribute.TPUStrategy)
    assert matrix_products.rounded_by_device(tpu)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["GPU:0"])
    experimental = {
        "get_device_details": lambda _: {"compute_capability": capability},
        "tensor_float_32_execution_enabled": lambda: bool(tf32),
    }
    for name, value in experimental.items():
        monkeypatch.setattr(tf.config.experimental, name, value)
    assert not matrix_products.rounded_by_device(virtual)
    assert distribution.gpu_capability(virtual) is None
    assert matrix_products.use_split("auto") == expected
    assert not matrix_products.use_split("plain")
