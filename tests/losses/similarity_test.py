"""Walks over blocks of similarities equal the whole matrix at once."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive.losses import similarity

_RNG = np.random.default_rng(0)


def _whole(z, temperature, weights, include_self):
    """Value and gradient of sum(weights * log-sum-exp), all in float64."""
    z = tf.constant(z, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(z)
        flat = tf.reshape(z, [-1, z.shape[-1]])
        flat /= tf.norm(flat, axis=-1, keepdims=True)
        logits = tf.matmul(flat, flat, transpose_b=True) / temperature
        if not include_self:
            floor = tf.fill([len(flat)], tf.constant(-1e300, tf.float64))
            logits = tf.linalg.set_diag(logits, floor)
        value = tf.reduce_sum(weights * tf.reduce_logsumexp(logits, -1))
    return value, tape.gradient(value, z)


@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize(
    ("images", "block_size", "temperature"),
    [(5, 3, 0.1), (8, 4, 0.005), (7, 14, 0.1), (800, None, 0.005)],
)
def test_log_sum_exp(images, block_size, temperature, include_self):
    z = _RNG.normal(size=[images, 2, 6]).astype(np.float32)
    weights = _RNG.uniform(size=2 * images)
    expected, gradient = _whole(z, temperature, weights, include_self)

    @tf.function(autograph=False)
    def both(z, as_total):
        with tf.GradientTape() as tape:
            tape.watch(z)
            batch = similarity.gather(z, block_size=block_size)
            rows = similarity.Rows(
                lambda block: similarity.log_sum_exp(
                    block.similarities / temperature,
                    None if include_self else block.others,
                    bounded=batch.bounded(temperature),
                ),
                batch,
            )
            w = tf.constant(weights, tf.float32)
            if as_total:
                value = rows.total(w)
            else:
                value = tf.reduce_sum(w * rows.values())
        return value, tape.gradient(value, z)

    for as_total in (True, False):
        value, g = both(tf.constant(z), as_total)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        error = np.linalg.norm(g.numpy() - gradient.numpy())
        # With itself among its candidates an anchor may have no gradient.
        assert error < 1e-4 * max(np.linalg.norm(gradient), 1.0)


def test_memory_is_a_few_blocks():
    # Half of what one 16,384 x 16,384 float32 matrix takes would not fit.
    z = tf.zeros([16384, 4])
    sides = similarity.EmbeddingSet(*([z] + [tf.range(16384)] * 4))
    block = []

    def function(x):
        block.append(x.similarities.shape)
        return tf.reduce_sum(x.similarities, -1)

    batch = similarity.Batch(sides, sides, 1, labelled=True, normalized=False)
    similarity.Rows(function, batch).total(tf.ones([16384]))
    assert all(np.prod(shape) <= 2**21 for shape in block)


def test_a_block_is_not_larger_than_the_batch():
    assert similarity.rows_per_block(16, 8192) == 16
    assert similarity.rows_per_block(16, 8) == 8


@pytest.mark.parametrize("bounded", [False, True])
def test_an_empty_row_has_no_gradient(bounded):
    logits, mask = tf.constant([[1.0, 2.0]]), tf.constant([[False, False]])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = similarity.log_sum_exp(logits, mask, bounded=bounded)
    assert value[0] == similarity.MASKED
    np.testing.assert_array_equal(tape.gradient(value, logits), [[0, 0]])


def test_rounding_below_zero_goes_with_its_gradient_left():
    values = tf.constant([-1e-7, 0.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(values)
        rounded = similarity.not_negative(values)
    np.testing.assert_array_equal(rounded, [0, 0, 2])
    np.testing.assert_array_equal(tape.gradient(rounded, values), [1, 1, 1])
