"""The log-sum-exp of every row, which most losses share."""

import tensorflow as tf

from tf_contrastive.losses.similarity.batch import Batch, shape
from tf_contrastive.losses.similarity.blocks import MASKED, log_sum_exp
from tf_contrastive.losses.similarity.half import Half
from tf_contrastive.losses.similarity.rows import Rows

# Anchors from which half of the matrix is less work than all of it at once.
_HALF_FROM = 768


class LogSumExp(Rows):
    """log sum_k exp(z_i . z_k / temperature) over A(i), or all candidates.

    Args:
      batch: what is compared.
      temperature: above 0.
      include_self: sum over the anchor itself, too.
      block_size: anchors at a time; 0: automatic.
    """

    def __init__(
        self,
        batch: Batch,
        temperature: float,
        *,
        include_self: bool = False,
        block_size: int = 0,
    ) -> None:
        bounded = batch.bounded(temperature)

        def function(block):
            return log_sum_exp(
                block.similarities / temperature,
                None if include_self else block.others,
                bounded=bounded,
            )

        super().__init__(
            function, batch.anchors, batch.candidates, block_size=block_size
        )
        self._temperature = temperature
        self._include_self = include_self
        # Every candidate is an anchor: one replica, and all views.
        square = batch.anchors.embeddings is batch.candidates.embeddings
        total = shape(batch.anchors.embeddings)[0]
        few = isinstance(total, int) and total < _HALF_FROM
        self._symmetric = bounded and square and not (few and not block_size)

    def values(self) -> tf.Tensor:
        """The log-sum-exp of each anchor, float32 [A]."""
        if not self._symmetric:
            return super().values()
        return self._from_half(self._anchors.embeddings)

    def total(self, weights: tf.Tensor) -> tf.Tensor:
        """Sum of weights [A] * values, float32 []."""
        if not self._symmetric:
            return super().total(weights)
        return tf.reduce_sum(weights * self.values())

    def _from_half(self, embeddings: tf.Tensor) -> tf.Tensor:
        """Values by the blocks on and above the diagonal, each taken twice.

        With E = exp(z z' / t), without its diagonal, and r its row sums, the
        gradient of sum(g * log r) by z is W z / t, W = E * (g/r + (g/r)').
        """
        half = Half(
            tf.stop_gradient(embeddings) / self._temperature**0.5,
            self._block_size,
            self._include_self,
        )

        @tf.custom_gradient
        def log_sums(embeddings):
            del embeddings
            sums, exponentials = half.row_sums()
            empty = tf.equal(sums, 0.0)
            sums = tf.where(empty, 1.0, sums)

            def gradient(upstream):
                shares = tf.where(empty, 0.0, upstream / sums)
                by_z = half.product(shares, exponentials)
                return by_z / self._temperature**0.5

            return tf.where(empty, MASKED, tf.math.log(sums)), gradient

        return log_sums(embeddings)
