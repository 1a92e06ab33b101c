"""Batch normalization against a float64 reference, on 1, 2 and 4 replicas."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.distribution import batch_normalization
from tf_contrastive.distribution.batch_normalization import BatchNormalization

EPSILON = 1e-5


def _reference(x, upstream, gamma, beta):
    """Algorithm 1 of Ioffe and Szegedy and its gradients, in float64."""
    x, upstream = x.astype(np.float64), upstream.astype(np.float64)
    axes = tuple(range(x.ndim - 1))
    mean, variance = x.mean(axes), x.var(axes)
    inverse = 1 / np.sqrt(variance + EPSILON)
    normalized = (x - mean) * inverse
    d_gamma = (upstream * normalized).sum(axes)
    centered = upstream - upstream.mean(axes)
    projected = normalized * (upstream * normalized).mean(axes)
    return {
        "outputs": gamma * normalized + beta,
        "inputs": gamma * inverse * (centered - projected),
        "gamma": d_gamma,
        "beta": upstream.sum(axes),
        "moving_mean": 0.1 * mean,
        "moving_variance": 0.9 + 0.1 * variance,
    }


def _case(shape, mean=0.0, std=1.0, seed=0):
    generator = np.random.default_rng(seed)
    x = mean + std * generator.standard_normal(shape)
    upstream = generator.standard_normal(shape)
    gamma = generator.uniform(0.5, 1.5, shape[-1])
    beta = generator.standard_normal(shape[-1])
    return [v.astype(np.float32) for v in (x, upstream, gamma, beta)]


def _run(case, replicas, at=None, jit_compile=None, **options):
    """One training step of the layer, its global batch split over replicas.

    `at`: where it is split, if not into equal parts.
    """
    x, upstream, gamma, beta = case
    strategy = distribution.strategy("mirrored", virtual_devices=replicas)
    with strategy.scope():
        layer = BatchNormalization(**options)
        layer.build(x.shape)
    layer.gamma.assign(gamma)
    layer.beta.assign(beta)

    def split(values):
        parts = np.split(values, at or replicas)
        return strategy.experimental_distribute_values_from_function(
            lambda c: tf.constant(parts[c.replica_id_in_sync_group])
        )

    @tf.function(jit_compile=jit_compile)
    def step(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x, training=True)
        sources = [x, layer.gamma, layer.beta]
        return outputs, *tape.gradient(outputs, sources, upstream)

    results = strategy.run(step, args=(split(x), split(upstream)))
    outputs, d_inputs, d_gamma, d_beta = (
        strategy.experimental_local_results(r) for r in results
    )
    return {
        "outputs": np.concatenate([r.numpy() for r in outputs]),
        "inputs": np.concatenate([r.numpy() for r in d_inputs]),
        "gamma": sum(r.numpy() for r in d_gamma),
        "beta": sum(r.numpy() for r in d_beta),
        "moving_mean": layer.moving_mean.numpy(),
        "moving_variance": layer.moving_variance.numpy(),
    }


def _distance(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def _check(case, replicas, limit=2e-6, **options):
    expected = _reference(*case)
    for name, value in _run(case, replicas, **options).items():
        assert _distance(value, expected[name]) < limit, name


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize(
    ("shape", "mean", "std"),
    [
        *(((16, 6, 6, 8), 0.5, 1), ((32, 12), 0.5, 1)),
        ((8, 3, 4, 4, 8), 0.5, 1),
        # A large mean costs no digits.
        *(((16, 8, 8, 8), mean, std) for mean, std in ((5, 0.1), (1000, 1))),
        ((16, 8, 8, 8), 100, 0.1),
    ],
)
def test_values_and_gradients_are_those_of_the_global_batch(
    shape, mean, std, replicas
):
    _check(_case(shape, mean=mean, std=std), replicas)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("fact", ["has_gpus", "sums_are_fused"])
def test_gpus_and_tpus_compute_the_same(fact, replicas, monkeypatch):
    monkeypatch.setattr(batch_normalization, fact, lambda: True)
    for shape, mean, std in [((16, 8, 8, 8), 100, 0.1), ((32, 12), 0.5, 1)]:
        _check(_case(shape, mean=mean, std=std), replicas)


def test_under_xla_the_first_step_costs_no_digits():
    case = _case((16, 8, 8, 8), mean=100, std=0.1)
    _check(case, replicas=1, jit_compile=True)


def test_replicas_far_apart_give_the_variance_between_them():
    case = _case((8, 4, 4, 3))
    case[0][:4] += 50.0
    _check(case, replicas=2, limit=1e-5)


def test_local_statistics_differ():
    case = _case((8, 4, 4, 3))
    expected = _reference(*case)
    local = _run(case, 4, synchronized=False)
    assert _distance(local["outputs"], expected["outputs"]) > 0.01
    assert _distance(local["inputs"], expected["inputs"]) > 0.01


def test_unequal_shares_are_weighted_by_their_size():
    _check(_case((9, 4)), replicas=2, at=[3])


@pytest.mark.parametrize("replicas", [1, 2])
def test_infinity_leaves_the_moving_statistics_of_its_channel(replicas):
    case = _case((8, 4, 4, 3))
    expected = _run(case, replicas)
    case[0][1, 2, 3, 0] = np.inf
    result = _run(case, replicas)
    for name, unchanged in (("moving_mean", 0), ("moving_variance", 1)):
        assert result[name][0] == unchanged
        np.testing.assert_array_equal(result[name][1:], expected[name][1:])
    assert not np.isfinite(result["outputs"]).all()  # It hides nothing.


@pytest.mark.parametrize("shape", [(8, 4, 4, 3), (16, 3)])
def test_half_precision_inputs_have_float32_statistics(shape):
    case = _case(shape, mean=20.0, std=0.5)
    policy = tf.keras.mixed_precision.Policy("mixed_bfloat16")
    layer = BatchNormalization(dtype=policy)
    x = tf.cast(case[0], tf.bfloat16)
    outputs = layer(x, training=True)
    assert outputs.dtype == tf.bfloat16
    assert {w.dtype for w in layer.weights} == {tf.float32}
    rounded = tf.cast(x, tf.float64).numpy()
    axes = tuple(range(len(shape) - 1))
    mean, variance = 0.1 * rounded.mean(axes), 0.9 + 0.1 * rounded.var(axes)
    np.testing.assert_allclose(layer.moving_mean, mean, rtol=1e-6)
    np.testing.assert_allclose(layer.moving_variance, variance, rtol=1e-5)


@pytest.mark.parametrize("freeze", [False, True])
def test_inference_and_frozen_layers_use_moving_statistics(freeze):
    x, _, _, _ = _case((8, 4, 4, 3))
    layer = BatchNormalization()
    layer(x, training=True)
    layer.trainable = not freeze
    before = [w.numpy() for w in layer.weights]
    outputs = layer(x, training=freeze)
    _, _, mean, variance = before
    expected = (x - mean) / np.sqrt(variance + EPSILON)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    for weight, value in zip(layer.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)


def test_a_local_layer_takes_over_the_weights_and_infers_the_same():
    x, _, _, _ = _case((8, 4, 4, 3))
    layer = BatchNormalization(name="norm")
    layer(x, training=True)
    config = {**layer.get_config(), "synchronized": False}
    local = BatchNormalization.from_config(config)
    assert local.get_config() == config
    local(x)
    local.set_weights(layer.get_weights())
    assert [w.name for w in local.weights] == [w.name for w in layer.weights]
    np.testing.assert_array_equal(layer(x), local(x))


def test_a_model_follows_the_training_argument():
    x, _, _, _ = _case((8, 4, 4, 3), mean=3.0)
    inputs = tf.keras.Input([4, 4, 3])
    model = tf.keras.Model(inputs, BatchNormalization()(inputs))
    assert abs(float(tf.reduce_mean(model(x, training=True)))) < 1e-5
    assert float(tf.reduce_mean(model(x, training=False))) > 1
    step = tf.function(lambda training: model(x, training=training))
    assert abs(float(tf.reduce_mean(step(tf.constant(True))))) < 1e-5
    assert float(tf.reduce_mean(step(tf.constant(False)))) > 1


def test_channels_may_stand_first():
    x, _, _, _ = _case((8, 4, 4, 3))
    first = BatchNormalization(axis=1)
    outputs = first(np.moveaxis(x, -1, 1), training=True)
    expected = BatchNormalization()(x, training=True)
    np.testing.assert_allclose(
        np.moveaxis(outputs.numpy(), 1, -1), expected, atol=2e-6
    )


@pytest.mark.parametrize("option", ["renorm", "virtual_batch_size"])
def test_what_cannot_be_synchronized_is_refused(option):
    with pytest.raises(ValueError, match=option):
        BatchNormalization(**{option: 4})


def test_saved_statistics_are_those_of_a_replica(tmp_path):
    """The mean of three equal numbers is rounded."""
    strategy = distribution.strategy("mirrored", virtual_devices=3)
    x = np.random.default_rng(0).normal(size=(12, 64)).astype(np.float32)
    with strategy.scope():
        layer = BatchNormalization()
        layer.build([None, 64])
    tf.function(strategy.run)(lambda: layer(x, training=True))
    path = tf.train.Checkpoint(layer=layer).write(str(tmp_path / "ckpt"))
    saved = tf.train.load_checkpoint(path)
    for name in ("moving_mean", "moving_variance"):
        values = getattr(layer, name)
        for value in strategy.experimental_local_results(values):
            found = saved.get_tensor(f"layer/{name}/.ATTRIBUTES/VARIABLE_VALUE")
            np.testing.assert_array_equal(found, value)
