"""Gathering across replicas; `losses/replicas_test.py` has its gradient."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import distribution


def test_concat_is_in_replica_order_and_keeps_infinity_in_its_row():
    strategy = distribution.strategy("mirrored", virtual_devices=4)

    def local():
        replica = distribution.replica_id()
        value = tf.where(replica == 1, np.inf, tf.cast(replica, tf.float32))
        gathered = distribution.cross_replica_concat(
            tf.stack([[value, 0], [value + 0.5, 0]])
        )
        assert gathered.shape == [8, 2]
        return gathered

    results = strategy.run(tf.function(local))
    for gathered in strategy.experimental_local_results(results):
        expected = [0, 0.5, np.inf, np.inf, 2, 2.5, 3, 3.5]
        np.testing.assert_array_equal(gathered[:, 0], expected)


def test_concat_is_the_identity_alone():
    x = tf.ones([3, 5])
    assert distribution.cross_replica_concat(x) is x


def test_half_precision_and_wide_integers_are_refused():
    for dtype in (tf.bfloat16, tf.int64):
        with pytest.raises(ValueError, match="cast to float32 or int32 first"):
            distribution.cross_replica_concat(tf.zeros([2], dtype))
