"""Steps whose loss or gradient is no number: which, and on which replicas.

A replica notes its own without asking the others; what they noted is joined
when the host reads it.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from tf_contrastive import distribution


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """What went wrong so far.

    Attributes:
      count: bad steps, of the replica that had most; 0: none.
      step: the first of them, counted from 1; 0: none.
      replicas: those on which it was one.
    """

    count: int
    step: int
    replicas: tuple[int, ...]


class FiniteGuard:
    """Notes non-finite steps; make it in the strategy's scope."""

    def __init__(self) -> None:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        # Per replica: its first bad step counted from 1, and how many it had.
        self._noted = tf.Variable(
            tf.zeros([replicas, 2], tf.int32),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def note(
        self, step: tf.Tensor, loss: tf.Tensor, gradients: Iterable[tf.Tensor]
    ) -> None:
        """Looks at a step, counted from 0, of this replica.

        Args:
          step: integer [].
          loss: float32 [].
          gradients: by the variables, of this replica alone.
        """
        # A sum is finite where its parts are; a pass of its own for each
        # element would cost more.
        parts = [
            loss,
            *(tf.reduce_sum(tf.cast(g, tf.float32)) for g in gradients),
        ]
        bad = tf.cast(~tf.math.is_finite(tf.add_n(parts)), tf.int32)
        here = tf.one_hot(
            distribution.replica_id(), self._noted.shape[0], dtype=tf.int32
        )
        noted = tf.convert_to_tensor(self._noted)
        is_first = here * bad * tf.cast(tf.equal(noted[:, 0], 0), tf.int32)
        first = is_first * (tf.cast(step, tf.int32) + 1)
        self._noted.assign_add(tf.stack([first, here * bad], axis=1))

    def read(self) -> NonFinite:
        """What all replicas noted; where there are several workers, all ask."""
        first, count = np.transpose(self._noted.numpy())
        if not count.any():
            return NonFinite(0, 0, ())
        step = first[first > 0].min()
        replicas = np.flatnonzero(first == step).tolist()
        return NonFinite(int(count.max()), int(step), tuple(replicas))
