"""Detection of steps whose loss or gradient is not finite.

A replica records its own steps without asking the others; the records are
combined when the host reads them.
"""

import dataclasses
import itertools
import types
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.distribution import joined
from tf_contrastive.model.contrastive_step import (
    ContrastiveStep,
    Gradients,
    Results,
)


@dataclasses.dataclass(frozen=True)
class NonFiniteSteps:
    """Steps whose loss or gradient was not finite."""

    count: int = 0  # Of the replica that had most.
    step: int = 0  # The first of them, counted from 1.
    replicas: tuple[int, ...] = ()  # Those on which that step was not finite.
    only_probe: bool = False  # Whether the encoder's part of it was finite.


class NonFinite(ContrastiveStep):
    """Records each step whose loss or gradient is not finite."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        # Per replica: its first non-finite step, counted from 1; how many; and
        # whether the encoder's part of the first was not finite. Keras does not
        # look into a namespace: it is no weight of the model.
        # GPUs have no variables of 32-bit integers.
        self._non_finite = types.SimpleNamespace(
            records=tf.Variable(
                tf.zeros([replicas, 3], tf.int64),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
        )

    def update(self, gradients: Gradients, results: Results) -> None:
        """Looks at the losses, and at the gradients before they are summed."""
        # In float16 these overflow now and then, and the loss scale falls.
        half = self.dtype_policy.compute_dtype == "float16"
        names = ["loss", *(name for name in gradients if name != "loss")]
        parts = {
            name: [results[name], *([] if half else gradients[name])]
            for name in names
        }
        of_encoder = len(parts["loss"])
        # A sum is finite if its parts are; testing each element costs more.
        looked_at = itertools.chain(*parts.values())
        sums = joined.sums([tf.cast(x, tf.float32) for x in looked_at])
        bad_encoder, bad = map(_not_finite, (sums[:of_encoder], sums))
        variable = self._non_finite.records
        here = tf.one_hot(
            distribution.replica_id(), variable.shape[0], dtype=tf.int64
        )
        records = tf.convert_to_tensor(variable)
        is_first = here * bad * tf.cast(tf.equal(records[:, 0], 0), tf.int64)
        first = is_first * (tf.cast(self.optimizer.iterations, tf.int64) + 1)
        variable.assign_add(
            tf.stack([first, here * bad, is_first * bad_encoder], axis=1)
        )
        super().update(gradients, results)

    def non_finite_steps(self) -> NonFiniteSteps:
        """Combines the records; with several workers, all must call it."""
        records = self._non_finite.records.numpy()
        first, count, encoder = np.transpose(records)
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


def _not_finite(numbers: tf.Tensor) -> tf.Tensor:
    """Returns 1 if one of the numbers is not finite, else 0: int64 []."""
    return tf.cast(~tf.reduce_all(tf.math.is_finite(numbers)), tf.int64)
