"""Detection of steps whose loss or gradient is not finite.

A replica records its own steps without asking the others; the records are
combined when the host reads them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.model.contrastive_step import (
    ContrastiveStep,
    Gradients,
    NonFiniteSteps,
    Results,
)


class NonFiniteMonitor:
    """Records non-finite steps; create it in the strategy's scope."""

    def __init__(self) -> None:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        # Per replica: its first non-finite step, counted from 1; how many; and
        # whether the encoder's part of the first was not finite.
        # GPUs have no variables of 32-bit integers.
        self._records = tf.Variable(
            tf.zeros([replicas, 3], tf.int64),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def record(
        self,
        step: tf.Tensor,
        loss: tf.Tensor,
        gradients: Sequence[tf.Tensor],
        others: Sequence[tf.Tensor] = (),
    ) -> None:
        """Looks at a step of this replica, counted from 0.

        The gradients are those before they are summed over replicas; `others`
        has the losses and gradients of what is trained beside the encoder.
        """
        bad_encoder = _not_finite([loss, *gradients])
        bad = bad_encoder
        if others:
            bad = tf.maximum(bad, _not_finite(others))
        here = tf.one_hot(
            distribution.replica_id(), self._records.shape[0], dtype=tf.int64
        )
        records = tf.convert_to_tensor(self._records)
        is_first = here * bad * tf.cast(tf.equal(records[:, 0], 0), tf.int64)
        first = is_first * (tf.cast(step, tf.int64) + 1)
        self._records.assign_add(
            tf.stack([first, here * bad, is_first * bad_encoder], axis=1)
        )

    def read(self) -> NonFiniteSteps:
        """Combines the records; with several workers, all must call it."""
        first, count, encoder = np.transpose(self._records.numpy())
        if not count.any():
            return NonFiniteSteps()
        step = first[first > 0].min()
        replicas = np.flatnonzero(first == step)
        return NonFiniteSteps(
            int(count.max()),
            int(step),
            tuple(replicas.tolist()),
            only_probe=not encoder[replicas].any(),
        )


def _not_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns 1 if a number in the tensors is not finite, else 0: int64 []."""
    # A sum is finite if its parts are; testing each element costs more.
    sums = [tf.reduce_sum(tf.cast(x, tf.float32)) for x in tensors]
    return tf.cast(~tf.math.is_finite(tf.add_n(sums)), tf.int64)


class NonFinite(ContrastiveStep):
    """Records each step whose loss or gradient is not finite."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._non_finite = NonFiniteMonitor()

    def update(self, gradients: Gradients, results: Results) -> None:
        """Looks at the losses and the gradients."""
        looked_at = gradients
        if self.dtype_policy.compute_dtype == "float16":
            # There gradients overflow now and then, and the loss scale falls.
            looked_at = {name: [] for name in gradients}
        self._non_finite.record(
            self.optimizer.iterations,
            results["loss"],
            looked_at["loss"],
            [
                x
                for name, group in looked_at.items()
                if name != "loss"
                for x in (results[name], *group)
            ],
        )
        super().update(gradients, results)

    def non_finite_steps(self) -> NonFiniteSteps:
        """Returns the non-finite steps so far."""
        return self._non_finite.read()
