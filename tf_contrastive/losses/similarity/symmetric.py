"""The log-sum-exp of every row, from half of a symmetric matrix."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive.losses.similarity.batch import (
    MASKED,
    Batch,
    Block,
    log_sum_exp,
    shape,
)
from tf_contrastive.losses.similarity.rows import Rows, join, split

# Anchors from which half of the matrix is less work than all of it at once.
_SYMMETRIC_FROM = 768
_BLOCK_SIDE = 1024
# Exponentials (64 MiB) to store for the gradient instead of recomputing them.
_MAX_STORED = 2**24
# Stored blocks of exponentials: one array, or none.
_Stored = tuple[tf.TensorArray, ...]


class SymmetricBlocks:
    """The blocks E_ij, j >= i, of E = exp(z z') without its diagonal.

    Args:
      z: float32 [n, P].
      side: rows and columns of a block; 0: automatic.
      with_diagonal: whether E includes its diagonal.
    """

    def __init__(self, z: tf.Tensor, side: int, with_diagonal: bool) -> None:
        self._total = shape(z)[0]
        self._side = side or self._automatic_side()
        self._with_diagonal = with_diagonal
        self._z = split(z, self._side)  # [blocks, side, P]
        self._blocks = shape(self._z)[0]

    def _automatic_side(self) -> int | tf.Tensor:
        # At least 2 blocks, of one size, so that little is padded.
        blocks = -(-self._total // _BLOCK_SIDE)
        if isinstance(blocks, int):
            blocks = max(blocks, 2)
        return -(-self._total // blocks)

    def row_sums(self) -> tuple[tf.Tensor, _Stored]:
        """Returns the sums of E's rows, [n], and its blocks, if few."""
        stored: _Stored = ()
        pairs = self._blocks * (self._blocks + 1) // 2
        if isinstance(pairs, int) and pairs * self._side**2 <= _MAX_STORED:
            block = [self._side, self._side]
            stored = (tf.TensorArray(tf.float32, pairs, element_shape=block),)
        ones = tf.ones([self._side, 1])

        def add(
            k: tf.Tensor,
            i: tf.Tensor,
            j: tf.Tensor,
            sums: tf.Tensor,
            stored: _Stored,
        ) -> tuple[tf.Tensor, _Stored]:
            e = self._exponentials(i, j)
            stored = tuple(array.write(k, e) for array in stored)
            sums = _add_row(sums, i, tf.matmul(e, ones)[:, 0])

            def below() -> tf.Tensor:
                return _add_row(
                    sums, j, tf.matmul(e, ones, transpose_a=True)[:, 0]
                )

            return tf.cond(tf.equal(i, j), lambda: sums, below), stored

        sums = tf.zeros(tf.shape(self._z)[:2])
        sums, stored = self._walk(add, sums, stored)
        return join(sums, self._total), stored

    def product(self, weights: tf.Tensor, stored: _Stored) -> tf.Tensor:
        """Returns (E * (w + w')) z, for w [n] repeated over columns, [n, P]."""
        z, weights = self._z, split(weights, self._side)

        def add(
            k: tf.Tensor,
            i: tf.Tensor,
            j: tf.Tensor,
            product: tf.Tensor,
            stored: _Stored,
        ) -> tuple[tf.Tensor, _Stored]:
            e = stored[0].read(k) if stored else self._exponentials(i, j)
            w = e * (weights[i][:, tf.newaxis] + weights[j])
            product = _add_row(product, i, tf.matmul(w, z[j]))

            def below() -> tf.Tensor:
                return _add_row(
                    product, j, tf.matmul(w, z[i], transpose_a=True)
                )

            return tf.cond(tf.equal(i, j), lambda: product, below), stored

        product, _ = self._walk(add, tf.zeros_like(z), stored)
        return join(product, self._total)

    def _walk(
        self,
        add: Callable[..., tuple[tf.Tensor, _Stored]],
        start: tf.Tensor,
        stored: _Stored,
    ) -> tuple[tf.Tensor, _Stored]:
        """Calls `add(k, i, j, accumulator, stored)` for block k, all j >= i."""

        def one_block(
            k: tf.Tensor,
            i: tf.Tensor,
            j: tf.Tensor,
            accumulator: tf.Tensor,
            stored: _Stored,
        ) -> tuple[Any, ...]:
            accumulator, stored = add(k, i, j, accumulator, stored)
            end = tf.equal(j + 1, self._blocks)
            i = tf.where(end, i + 1, i)
            return k + 1, i, tf.where(end, i, j + 1), accumulator, stored

        return tf.while_loop(
            lambda k, i, *_: i < self._blocks,
            one_block,
            (0, 0, 0, start, stored),
        )[-2:]

    def _exponentials(self, i: tf.Tensor, j: tf.Tensor) -> tf.Tensor:
        """Returns E_ij, with 0 for padding."""
        e = tf.exp(tf.matmul(self._z[i], self._z[j], transpose_b=True))
        plain = tf.not_equal(j, self._blocks - 1)
        if not self._with_diagonal:
            plain &= tf.not_equal(i, j)
        return tf.cond(plain, lambda: e, lambda: self._masked(e, i, j))

    def _masked(self, e: tf.Tensor, i: tf.Tensor, j: tf.Tensor) -> tf.Tensor:
        numbers = tf.range(self._side)
        rows = (i * self._side + numbers)[:, tf.newaxis]
        columns = j * self._side + numbers
        keep = (rows < self._total) & (columns < self._total)
        if not self._with_diagonal:
            keep &= rows != columns
        return tf.where(keep, e, 0.0)


def _add_row(x: tf.Tensor, row: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Adds `values` to x[row]."""
    return tf.tensor_scatter_nd_add(x, [[row]], values[tf.newaxis])


class LogSumExp(Rows):
    """log sum_k exp(z_i . z_k / temperature) over A(i), or all candidates.

    Args:
      batch: anchors and candidates.
      temperature: above 0.
      include_self: whether the sum includes the anchor itself.
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

        def function(block: Block) -> tf.Tensor:
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
        few = isinstance(total, int) and total < _SYMMETRIC_FROM
        self._symmetric = bounded and square and not (few and not block_size)

    def values(self) -> tf.Tensor:
        """Returns the log-sum-exp of each anchor, float32 [A]."""
        if not self._symmetric:
            return super().values()
        return self._symmetric_values(self._anchors.embeddings)

    def total(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the sum of weights [A] * values, float32 []."""
        if not self._symmetric:
            return super().total(weights)
        return tf.reduce_sum(weights * self.values())

    def _symmetric_values(self, embeddings: tf.Tensor) -> tf.Tensor:
        """Uses each block on and above the diagonal twice.

        With E = exp(z z' / t), without its diagonal, and r its row sums, the
        gradient of sum(g * log r) by z is W z / t, W = E * (g/r + (g/r)').
        """
        blocks = SymmetricBlocks(
            tf.stop_gradient(embeddings) / self._temperature**0.5,
            self._block_size,
            self._include_self,
        )

        @tf.custom_gradient
        def log_sums(embeddings: tf.Tensor) -> Any:
            del embeddings
            sums, exponentials = blocks.row_sums()
            empty = tf.equal(sums, 0.0)
            sums = tf.where(empty, 1.0, sums)

            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                weights = tf.where(empty, 0.0, upstream / sums)
                by_z = blocks.product(weights, exponentials)
                return by_z / self._temperature**0.5

            return tf.where(empty, MASKED, tf.math.log(sums)), gradient

        return log_sums(embeddings)
