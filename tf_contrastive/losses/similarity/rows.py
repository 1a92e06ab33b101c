"""Functions of each anchor's row, made by walking blocks of rows."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive.losses.similarity.batch import Side, shape
from tf_contrastive.losses.similarity.blocks import Block

# Numbers of a block of the similarity matrix, by measurement (`benchmark
# loss`): small enough for the cache, large enough for the matrix products.
_ROWS_BLOCK = 2**20


def rows_per_block(
    candidates: int | tf.Tensor, block_size: int = 0
) -> int | tf.Tensor:
    """Anchors compared at a time: `block_size`, unless it is 0 (automatic)."""
    if block_size:
        return block_size
    if isinstance(candidates, int):
        return min(max(_ROWS_BLOCK // candidates, 128), 1024)
    return tf.clip_by_value(_ROWS_BLOCK // candidates, 128, 1024)


def _is_one_block(anchors: Side, candidates: Side, block_size: int) -> bool:
    """Whether there is nothing to walk: a small batch."""
    total, columns = (shape(x.embeddings)[0] for x in (anchors, candidates))
    known = isinstance(total, int) and isinstance(columns, int)
    return known and total <= rows_per_block(columns, block_size)


def split(x: tf.Tensor, rows: int | tf.Tensor) -> tf.Tensor:
    """Cuts the first axis into blocks, padded with zeros: [n, rows, ...]."""
    total = shape(x)[0]
    blocks = -(-total // rows)
    padding = [[0, blocks * rows - total]] + [[0, 0]] * (x.shape.rank - 1)
    return tf.reshape(tf.pad(x, padding), [blocks, rows, *x.shape[1:]])


def join(x: tf.Tensor, total: int | tf.Tensor) -> tf.Tensor:
    """Undoes `_split`: [n, rows, ...] -> [total, ...]."""
    return tf.reshape(x, [-1, *x.shape[2:]])[:total]


def _compare(anchors: Side, candidates: Side) -> Block:
    products = tf.matmul(
        anchors.embeddings, candidates.embeddings, transpose_b=True
    )
    return Block(products, anchors, candidates)


def scan(
    function: Callable[[Block], Any],
    anchors: Side,
    candidates: Side,
    *,
    outputs: Any = tf.float32,
    block_size: int = 0,
) -> Any:
    """Applies `function` to each anchor's row of similarities.

    Args:
      function: block -> a nest of [R].
      anchors: of A rows.
      candidates: of N rows.
      outputs: the nest of its types.
      block_size: anchors at a time; 0: automatic.

    Returns:
      The nest of [A], without gradient.
    """
    total = shape(anchors.embeddings)[0]
    rows = rows_per_block(shape(candidates.embeddings)[0], block_size)
    anchors, candidates = tf.nest.map_structure(
        tf.stop_gradient, (anchors, candidates)
    )
    if _is_one_block(anchors, candidates, block_size):
        return function(_compare(anchors, candidates))
    found = tf.map_fn(
        lambda side: function(_compare(Side(*side), candidates)),
        Side(*(split(x, rows) for x in anchors)),
        fn_output_signature=outputs,
        parallel_iterations=1,
    )
    return tf.nest.map_structure(lambda x: join(x, total), found)


class Rows:
    """A differentiable function of each anchor's row of similarities.

    Args:
      function: block -> [R], differentiable by `block.similarities`, and
        finite for an anchor of zeros.
      anchors: of A rows.
      candidates: of N rows.
      block_size: anchors at a time; 0: automatic.

    A second derivative is not defined.
    """

    def __init__(
        self,
        function: Callable[[Block], tf.Tensor],
        anchors: Side,
        candidates: Side,
        *,
        block_size: int = 0,
    ) -> None:
        self._function = function
        self._anchors = anchors
        self._candidates = candidates
        self._block_size = block_size

    def values(self) -> tf.Tensor:
        """The function's values, float32 [A].

        Rows are walked once, and once more by the gradient.
        """
        if self._is_one_block():
            return self._function(_compare(self._anchors, self._candidates))

        @tf.custom_gradient
        def of_embeddings(anchors, candidates):
            del anchors, candidates
            values = scan(
                self._function,
                self._anchors,
                self._candidates,
                block_size=self._block_size,
            )
            return values, lambda upstream: self._differentiate(upstream)[1:]

        return of_embeddings(
            self._anchors.embeddings, self._candidates.embeddings
        )

    def total(self, weights: tf.Tensor) -> tf.Tensor:
        """Sum of weights [A] * values, float32 [].

        Since the weights are known, a row's gradient is made as soon as its
        value: rows are walked once in all.
        """
        if self._is_one_block():
            return tf.reduce_sum(weights * self.values())

        @tf.custom_gradient
        def of_embeddings(anchors, candidates):
            del anchors, candidates
            total, *gradients = self._differentiate(weights)
            return total, lambda upstream: [upstream * g for g in gradients]

        return of_embeddings(
            self._anchors.embeddings, self._candidates.embeddings
        )

    def _is_one_block(self) -> bool:
        return _is_one_block(self._anchors, self._candidates, self._block_size)

    def _differentiate(
        self, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The weighted sum, and its gradients by anchors and candidates."""
        anchors, candidates = tf.nest.map_structure(
            tf.stop_gradient, (self._anchors, self._candidates)
        )
        total = shape(anchors.embeddings)[0]
        rows = rows_per_block(shape(candidates.embeddings)[0], self._block_size)
        sides = [split(x, rows) for x in anchors]
        weights = split(tf.stop_gradient(weights), rows)
        blocks = shape(weights)[0]

        def one_block(k, value, by_anchors, by_candidates):
            side = Side(*(x[k] for x in sides))
            block = _compare(side, candidates)
            with tf.GradientTape() as tape:
                tape.watch(block.similarities)
                weighted = tf.reduce_sum(weights[k] * self._function(block))
            g = tape.gradient(
                weighted,
                block.similarities,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return (
                k + 1,
                value + weighted,
                by_anchors.write(k, tf.matmul(g, candidates.embeddings)),
                by_candidates + tf.matmul(g, side.embeddings, transpose_a=True),
            )

        by_anchors = tf.TensorArray(
            tf.float32, blocks, element_shape=sides[0].shape[1:]
        )
        _, value, by_anchors, by_candidates = tf.while_loop(
            lambda k, *_: k < blocks,
            one_block,
            (0, 0.0, by_anchors, tf.zeros_like(candidates.embeddings)),
            parallel_iterations=1,
        )
        return value, join(by_anchors.stack(), total), by_candidates


class PerView:
    """Rows that differ by the anchor's view, put in the anchors' order.

    Args:
      rows: of the anchors of view 0, of view 1, ...
    """

    def __init__(self, rows: list[Rows]) -> None:
        self._rows = rows

    def values(self) -> tf.Tensor:
        """The values of all anchors, float32 [A]."""
        return tf.reshape(tf.stack([r.values() for r in self._rows], 1), [-1])

    def total(self, weights: tf.Tensor) -> tf.Tensor:
        """Sum of weights [A] * values, float32 []."""
        count = len(self._rows)
        return tf.add_n(
            [r.total(weights[v::count]) for v, r in enumerate(self._rows)]
        )
