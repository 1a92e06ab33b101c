"""Optimizers against NumPy transcriptions of their update rules."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import config, distribution, optimizers, schedules

SHAPES = ((4, 3), (3,), (2, 2, 3), ())


def _weights(seed=0):
    generator = np.random.default_rng(seed)
    return [
        generator.standard_normal(shape).astype(np.float32) for shape in SHAPES
    ]


def _gradients(step):
    return _weights(100 + step)


def _transcribed(name, steps, *, nesterov=False, lr=0.5, momentum=0.9, wd=0.01):
    """The update rules of the docstrings, in float64."""
    weights = [w.astype(np.float64) for w in _weights()]
    velocities = [np.zeros_like(w) for w in weights]
    squares = [np.zeros_like(w) for w in weights]
    for step in range(steps):
        for i, g in enumerate(_gradients(step)):
            w, g, trust = weights[i], g.astype(np.float64), 1.0
            if w.ndim > 1:
                g = g + wd * w
                if name == "lars":
                    trust = 0.02 * np.linalg.norm(w) / np.linalg.norm(g)
            if name == "rmsprop":
                squares[i] = 0.9 * squares[i] + 0.1 * g**2
                trust = 1 / np.sqrt(squares[i] + 1.0)
            velocities[i] = momentum * velocities[i] + lr * trust * g
            move = velocities[i]
            if nesterov:
                move = momentum * velocities[i] + lr * trust * g
            weights[i] = w - move
    return weights


def _build(name, nesterov=False, learning_rate=0.5):
    return optimizers.build(
        name,
        learning_rate=learning_rate,
        momentum=0.9,
        nesterov=nesterov,
        weight_decay=0.01,
        trust_coefficient=0.02,
    )


def _apply(optimizer, variables, steps, first=0):
    for step in range(first, first + steps):
        gradients = [tf.constant(g) for g in _gradients(step)]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))


def _variables():
    return [tf.Variable(w, name=f"w{i}") for i, w in enumerate(_weights())]


@pytest.mark.parametrize(
    "name,nesterov",
    [
        ("lars", False),
        ("lars", True),
        ("sgd", False),
        ("sgd", True),
        ("rmsprop", False),
    ],
)
def test_twenty_steps_follow_the_update_rule(name, nesterov):
    optimizer, variables = _build(name, nesterov), _variables()
    _apply(optimizer, variables, 20)
    expected = _transcribed(name, 20, nesterov=nesterov)
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable, value, rtol=1e-5, atol=1e-5)
    assert optimizer.iterations.numpy() == 20


def test_golden_step_of_lars():
    optimizer = optimizers.LARS(1.0, weight_decay=0.01)
    w = tf.Variable([[3.0, 4.0]])
    optimizer.apply_gradients([(tf.constant([[0.1, -0.2]]), w)])
    np.testing.assert_allclose(w, [[2.99684704, 4.00388057]], rtol=1e-7)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_vectors_and_scalars_are_not_decayed(name):
    optimizer = _build(name)
    matrix, vector = tf.Variable([[2.0]]), tf.Variable([2.0])
    zeros = [tf.zeros([1, 1]), tf.zeros([1])]
    optimizer.apply_gradients(zip(zeros, [matrix, vector], strict=True))
    assert float(matrix) < 2.0
    assert float(vector) == 2.0


def test_lars_moves_vectors_by_the_plain_learning_rate():
    vector = tf.Variable([2.0])
    optimizers.LARS(0.5).apply_gradients([(tf.constant([1.0]), vector)])
    np.testing.assert_allclose(vector, [1.5])


@pytest.mark.parametrize(
    "weights,gradients,expected",
    [
        ([[0.0, 0.0]], [[3.0, 4.0]], [[-1.5, -2.0]]),
        ([[3.0, 4.0]], [[0.0, 0.0]], [[3.0, 4.0]]),
    ],
)
def test_lars_takes_a_trust_of_one_where_a_norm_is_zero(
    weights, gradients, expected
):
    variable = tf.Variable(weights)
    optimizers.LARS(0.5).apply_gradients([(tf.constant(gradients), variable)])
    np.testing.assert_array_equal(variable, expected)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_two_replicas_that_share_the_gradient_do_the_same(name):
    strategy = distribution.strategy("mirrored", virtual_devices=2)
    with strategy.scope():
        optimizer, variables = _build(name), _variables()
        optimizer.build(variables)

    @tf.function
    def step(gradients):
        # Half of the gradient is each replica's; the optimizer sums them.
        strategy.run(
            lambda: optimizer.apply_gradients(
                [(g / 2, v) for g, v in zip(gradients, variables, strict=True)]
            )
        )

    for i in range(5):
        step([tf.constant(g) for g in _gradients(i)])
    for variable, value in zip(variables, _transcribed(name, 5), strict=True):
        np.testing.assert_allclose(
            variable.values[1].numpy(), value, rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
@pytest.mark.parametrize("deferred", [False, True])
def test_a_restored_optimizer_goes_on_where_it_was(name, deferred, tmp_path):
    optimizer, variables = _build(name), _variables()
    _apply(optimizer, variables, 3)
    path = tf.train.Checkpoint(o=optimizer, v=variables).save(tmp_path / "c")
    _apply(optimizer, variables, 4, first=3)

    again, restored = _build(name), _variables()
    if not deferred:
        again.build(restored)
    checkpoint = tf.train.Checkpoint(o=again, v=restored)
    status = checkpoint.restore(path)
    _apply(again, restored, 4, first=3)
    status.assert_consumed()
    assert again.iterations.numpy() == 7
    for a, b in zip(restored, variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_serialization_keeps_every_option_and_the_schedule(name):
    rate = schedules.build(
        "cosine",
        base_learning_rate=0.5,
        batch_size=256,
        steps_per_epoch=2,
        epochs=3,
        warmup_epochs=1,
    )
    optimizer = _build(name, learning_rate=rate)
    data = tf.keras.optimizers.serialize(optimizer)
    again = tf.keras.optimizers.deserialize(data)
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()
    results = []
    for o in (optimizer, again):
        variables = _variables()
        _apply(o, variables, 6)
        results.append(np.concatenate([v.numpy().ravel() for v in variables]))
    np.testing.assert_array_equal(*results)


def test_a_schedule_is_read_at_the_step_that_is_taken():
    rate = tf.keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.0])
    optimizer = optimizers.SGD(rate, momentum=0.0)
    w = tf.Variable([1.0])
    for _ in range(3):
        optimizer.apply_gradients([(tf.constant([0.25]), w)])
    np.testing.assert_allclose(w, [0.75])


def test_the_learning_rate_can_be_set():
    optimizer = optimizers.LARS(0.5, momentum=0.0)
    optimizer.learning_rate = 0.125
    w = tf.Variable([1.0])
    optimizer.apply_gradients([(tf.constant([1.0]), w)])
    np.testing.assert_allclose(w, [0.875])


def test_bad_names_and_options_are_told():
    assert set(optimizers.OPTIMIZERS) == set(config.OPTIMIZERS)
    with pytest.raises(config.UserError, match="did you mean 'lars'"):
        optimizers.build("larz", learning_rate=1.0)
    with pytest.raises(config.UserError, match="Nesterov"):
        optimizers.build("rmsprop", learning_rate=1.0, nesterov=True)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
