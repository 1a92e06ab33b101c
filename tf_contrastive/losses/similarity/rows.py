"""Functions of each anchor's row, computed block by block."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive.losses.similarity.batch import (
    Batch,
    Block,
    EmbeddingSet,
    count,
    shape,
)

# Entries of a block of the similarity matrix, by measurement (`benchmark
# loss`): small enough for the cache, large enough for the matrix products.
_ROWS_BLOCK = 2**20


def rows_per_block(
    candidates: int | tf.Tensor, block_size: int = 0
) -> int | tf.Tensor:
    """Returns the anchors compared at a time: `block_size`; 0: automatic."""
    if block_size:
        return block_size
    if isinstance(candidates, int):
        return min(max(_ROWS_BLOCK // candidates, 128), 1024)
    return tf.clip_by_value(_ROWS_BLOCK // candidates, 128, 1024)


def _is_one_block(
    anchors: EmbeddingSet, candidates: EmbeddingSet, block_size: int
) -> bool:
    """Whether the batch is small enough to need no loop."""
    total, columns = (shape(x.embeddings)[0] for x in (anchors, candidates))
    known = isinstance(total, int) and isinstance(columns, int)
    return known and total <= rows_per_block(columns, block_size)


def split(x: tf.Tensor, rows: int | tf.Tensor) -> tf.Tensor:
    """Splits the first axis into blocks, padded with zeros: [n, rows, ...]."""
    total = shape(x)[0]
    blocks = -(-total // rows)
    padding = [[0, blocks * rows - total]] + [[0, 0]] * (x.shape.rank - 1)
    return tf.reshape(tf.pad(x, padding), [blocks, rows, *x.shape[1:]])


def join(x: tf.Tensor, total: int | tf.Tensor) -> tf.Tensor:
    """Reverses `split`: [n, rows, ...] -> [total, ...]."""
    return tf.reshape(x, [-1, *x.shape[2:]])[:total]


def _compare(anchors: EmbeddingSet, candidates: EmbeddingSet) -> Block:
    products = tf.matmul(
        anchors.embeddings, candidates.embeddings, transpose_b=True
    )
    return Block(products, anchors, candidates)


def scan(
    function: Callable[[Block], Any],
    anchors: EmbeddingSet,
    candidates: EmbeddingSet,
    *,
    outputs: Any = tf.float32,
    block_size: int = 0,
) -> Any:
    """Applies `function` to each anchor's row of similarities.

    Args:
      function: block -> a nest of [R].
      anchors: A embeddings.
      candidates: N embeddings.
      outputs: the nest of the function's dtypes.
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
    blocks = tf.map_fn(
        lambda block: function(_compare(EmbeddingSet(*block), candidates)),
        EmbeddingSet(*(split(x, rows) for x in anchors)),
        fn_output_signature=outputs,
        parallel_iterations=1,
    )
    return tf.nest.map_structure(lambda x: join(x, total), blocks)


class Rows:
    """A differentiable function of each anchor's row of similarities.

    Args:
      function: block -> [R], differentiable by `block.similarities`, and
        finite for an anchor of zeros.
      anchors: A embeddings.
      candidates: N embeddings.
      block_size: anchors at a time; 0: automatic.

    The second derivative is not defined.
    """

    def __init__(
        self,
        function: Callable[[Block], tf.Tensor],
        anchors: EmbeddingSet,
        candidates: EmbeddingSet,
        *,
        block_size: int = 0,
    ) -> None:
        self._function = function
        self._anchors = anchors
        self._candidates = candidates
        self._block_size = block_size

    def values(self) -> tf.Tensor:
        """Returns the function's values, float32 [A].

        Rows are walked once, and once more for the gradient.
        """
        if self._is_one_block():
            return self._function(_compare(self._anchors, self._candidates))

        @tf.custom_gradient
        def of_embeddings(anchors: tf.Tensor, candidates: tf.Tensor) -> Any:
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
        """Returns the sum of weights [A] * values, float32 [].

        The weights are known, so a row's gradient is computed together with
        its value: rows are walked only once.
        """
        if self._is_one_block():
            return tf.reduce_sum(weights * self.values())

        @tf.custom_gradient
        def of_embeddings(anchors: tf.Tensor, candidates: tf.Tensor) -> Any:
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
        """Returns the weighted sum, its gradients by anchors and candidates."""
        anchors, candidates = tf.nest.map_structure(
            tf.stop_gradient, (self._anchors, self._candidates)
        )
        total = shape(anchors.embeddings)[0]
        rows = rows_per_block(shape(candidates.embeddings)[0], self._block_size)
        anchor_blocks = [split(x, rows) for x in anchors]
        weights = split(tf.stop_gradient(weights), rows)
        blocks = shape(weights)[0]

        def one_block(
            k: tf.Tensor,
            value: tf.Tensor,
            by_anchors: tf.TensorArray,
            by_candidates: tf.Tensor,
        ) -> tuple[tf.Tensor, ...]:
            own = EmbeddingSet(*(x[k] for x in anchor_blocks))
            block = _compare(own, candidates)
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
                by_candidates + tf.matmul(g, own.embeddings, transpose_a=True),
            )

        by_anchors = tf.TensorArray(
            tf.float32, blocks, element_shape=anchor_blocks[0].shape[1:]
        )
        _, value, by_anchors, by_candidates = tf.while_loop(
            lambda k, *_: k < blocks,
            one_block,
            (0, 0.0, by_anchors, tf.zeros_like(candidates.embeddings)),
            parallel_iterations=1,
        )
        return value, join(by_anchors.stack(), total), by_candidates


class PerView:
    """Rows of each view's anchors, joined in the anchors' order.

    Args:
      rows: of the anchors of view 0, of view 1, ...
    """

    def __init__(self, rows: list[Rows]) -> None:
        self._rows = rows

    def values(self) -> tf.Tensor:
        """Returns the values of all anchors, float32 [A]."""
        return tf.reshape(tf.stack([r.values() for r in self._rows], 1), [-1])

    def total(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the sum of weights [A] * values, float32 []."""
        count = len(self._rows)
        return tf.add_n(
            [r.total(weights[v::count]) for v, r in enumerate(self._rows)]
        )


def num_positives(batch: Batch) -> tf.Tensor:
    """Counts the positives of each anchor, |P(i)|, float32 [A]."""
    anchors, candidates = batch.anchors, batch.candidates
    if not batch.labelled:
        return tf.fill(tf.shape(anchors.image_ids), batch.num_views - 1.0)
    if anchors.classes.shape.rank == 2:
        return scan(lambda block: count(block.positives), anchors, candidates)
    ordered = tf.sort(candidates.classes)
    first = tf.searchsorted(ordered, anchors.classes, side="left")
    end = tf.searchsorted(ordered, anchors.classes, side="right")
    return tf.cast(end - first - 1, tf.float32)


def positive_sums(batch: Batch) -> tf.Tensor:
    """Sums z_i . z_p over positives, float32 [A]; for int labels or none.

    A dot product with the sum of the class, which needs no pairs.
    """
    anchors, candidates = batch.anchors, batch.candidates
    z = anchors.embeddings
    if not batch.labelled:
        of_image = tf.reshape(z, [-1, batch.num_views, z.shape[-1]])
        sums = tf.reduce_sum(of_image, axis=1, keepdims=True)
        return tf.reshape(tf.reduce_sum(of_image * (sums - of_image), -1), [-1])
    ordered = tf.sort(candidates.classes)
    # A class is identified by the position of its first member.
    sums = tf.math.unsorted_segment_sum(
        candidates.embeddings,
        tf.searchsorted(ordered, candidates.classes),
        shape(ordered)[0],
    )
    sums = tf.gather(sums, tf.searchsorted(ordered, anchors.classes))
    return tf.reduce_sum(z * (sums - z), axis=-1)
