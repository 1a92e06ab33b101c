"""Gathering across replicas, with its gradient."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import distribution


def _run(replicas, function):
    """Runs `function(replica id)`; returns every replica's result."""
    strategy = distribution.strategy("mirrored", virtual_devices=replicas)

    @tf.function
    def run():
        return strategy.run(lambda: function(distribution.replica_id()))

    return [x.numpy() for x in strategy.experimental_local_results(run())]


@pytest.mark.parametrize("replicas", [2, 4])
def test_concat_is_in_replica_order_on_every_replica(replicas):
    def local(replica):
        return distribution.cross_replica_concat(
            tf.stack([[2 * replica, 0], [2 * replica + 1, 0]])
        )

    for gathered in _run(replicas, local):
        np.testing.assert_array_equal(gathered[:, 0], np.arange(2 * replicas))


def test_concat_has_a_static_shape_and_is_the_identity_alone():
    x = tf.ones([3, 5])
    assert distribution.cross_replica_concat(x) is x

    def local(_):
        gathered = distribution.cross_replica_concat(tf.ones([3, 5]))
        assert gathered.shape == [6, 5]
        return gathered

    _run(2, local)


def test_gradient_is_that_of_the_sum_over_replicas():
    def local(replica):
        x = tf.cast(replica, tf.float32) + tf.constant([[1.0], [2.0]])
        weights = tf.cast(replica + 1, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(x)
            gathered = distribution.cross_replica_concat(x)
            loss = weights * tf.reduce_sum(gathered**2)
        return tape.gradient(loss, x)

    # The sum of all replicas' losses is (1 + 2) * sum of squares.
    for replica, gradient in enumerate(_run(2, local)):
        x = replica + np.array([[1.0], [2.0]])
        np.testing.assert_allclose(gradient, 3 * 2 * x)


def test_infinite_values_stay_in_their_rows():
    def local(replica):
        x = tf.where(replica == 1, np.inf, tf.cast(replica, tf.float32))
        return distribution.cross_replica_concat(x[tf.newaxis])

    for gathered in _run(4, local):
        np.testing.assert_array_equal(gathered, [0, np.inf, 2, 3])


def test_half_precision_and_wide_integers_are_refused():
    for dtype in (tf.bfloat16, tf.int64):
        with pytest.raises(ValueError, match="cast to float32 or int32 first"):
            distribution.cross_replica_concat(tf.zeros([2], dtype))
