"""Losses of all anchors against themselves, by half of their similarities.

On one replica every candidate is an anchor, and S = z z' is symmetric. Sorted
by class, positives are near its diagonal: blocks away from it need exponentials
and their sums only.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tf_contrastive.losses import products
from tf_contrastive.losses.similarity import (
    MASKED,
    Batch,
    Block,
    EmbeddingSet,
    Rows,
    compare,
    join_rows,
    log_sum_exp,
    masked_mean,
    not_negative,
    num_positives,
    outer_equal,
    rows_per_block,
    shape,
    split_rows,
)

# Anchors from which half of the matrix is less work than all of it at once.
_SYMMETRIC_FROM = 768
_BLOCK_SIDE = 1024
# Exponentials (64 MiB) to store for the gradient instead of recomputing them.
_MAX_STORED = 2**24
# Stored blocks of exponentials: one array, or none.
_Stored = tuple[tf.TensorArray, ...]
# What a block adds to its rows, and to its columns.
_Sides = tuple[Callable[[], tf.Tensor], Callable[[], tf.Tensor]]


def is_symmetric(batch: Batch, temperature: float, block_size: int) -> bool:
    """Whether half of the batch's similarities are enough, and less work."""
    total = shape(batch.anchors.embeddings)[0]
    few = isinstance(total, int) and total < _SYMMETRIC_FROM
    return (
        batch.bounded(temperature)
        # Every candidate is an anchor: one replica, and all views.
        and batch.anchors.embeddings is batch.candidates.embeddings
        and not (few and not block_size)
        and batch.anchors.classes.shape.rank == 1
    )


class SortedRows:
    """The rows of a symmetric batch, computed in the order of its classes.

    Positives are then contiguous; those of an anchor keep their order. `make`
    makes the rows of the sorted batch.
    """

    def __init__(
        self, batch: Batch, make: Callable[[Batch], "Rows | ClassRows"]
    ) -> None:
        self._order = tf.argsort(batch.anchors.classes, stable=True)
        anchors = EmbeddingSet(
            _permute(batch.anchors.embeddings, self._order),
            *(tf.gather(x, self._order) for x in batch.anchors[1:]),
        )
        self._rows = make(batch._replace(anchors=anchors, candidates=anchors))

    def values(self) -> tf.Tensor:
        """Returns the values of all anchors, float32 [A]."""
        return _permute(self._rows.values(), tf.argsort(self._order))

    def total(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the sum of weights [A] * values, float32 []."""
        return self._rows.total(tf.gather(weights, self._order))


@tf.custom_gradient
def _permute(x: tf.Tensor, order: tf.Tensor) -> Any:
    """Returns x[order]. The gradient is another gather, not a sum."""
    return tf.gather(x, order), lambda g: (
        tf.gather(g, tf.argsort(order)),
        None,
    )


class _SymmetricBlocks:
    """The blocks S_ij, j >= i, of S = z z', z float32 [n, P].

    Args:
      z: the embeddings.
      classes: int32 [n] in ascending order. Positives are the others of a row's
        class.
      over: columns in sums of exponentials, as of `LogSumExp`.
      with_positives: whether sums over positives are needed.
      side: rows of a block; 0: automatic.
      split: see `products.matmul`.
    """

    def __init__(
        self,
        z: tf.Tensor,
        classes: tf.Tensor,
        *,
        over: str,
        with_positives: bool,
        side: int,
        split: bool,
    ) -> None:
        self._total = shape(z)[0]
        if not side:
            # At least 2 blocks, of one size, so that little is padded.
            blocks = -(-self._total // _BLOCK_SIDE)
            if isinstance(blocks, int):
                blocks = max(blocks, 2)
            side = -(-self._total // blocks)
        else:
            side = rows_per_block(self._total, side)
        self._side = side
        self._over = over
        self._with_positives = with_positives
        self._split = split
        # Padding has z = 0, which adds nothing to products and to sums of
        # similarities.
        self._z = split_rows(z, side)  # [blocks, side, P]
        self._classes = split_rows(classes, side)
        self._blocks = shape(self._z)[0]

    def row_sums(self) -> tuple[tf.Tensor, _Stored]:
        """Returns sums over rows, [n, 1 or 2], and the blocks exp(S), if few.

        The sums of exp(S), and those of the positives' S if there are classes.
        """
        stored: _Stored = ()
        pairs = self._blocks * (self._blocks + 1) // 2
        if isinstance(pairs, int) and pairs * self._side**2 <= _MAX_STORED:
            block = [self._side, self._side]
            stored = (tf.TensorArray(tf.float32, pairs, element_shape=block),)

        def sums_of(
            k: tf.Tensor, i: tf.Tensor, j: tf.Tensor, stored: _Stored
        ) -> tuple[_Sides, _Stored]:
            s = self._similarities(i, j)
            e = self._exponentials(s, i, j)

            of_positives: tuple[tf.Tensor, ...] = ()
            if self._with_positives:
                of_positives = self._sums_of_positives(s, i, j)

            def along(axis: int) -> tf.Tensor:
                # Not a product with ones, which devices round.
                sums = [tf.reduce_sum(e, axis)]
                if of_positives:
                    sums.append(of_positives[axis])
                return tf.stack(sums, axis=-1)

            sides = functools.partial(along, 1), functools.partial(along, 0)
            return sides, tuple(array.write(k, e) for array in stored)

        columns = 2 if self._with_positives else 1
        zeros = tf.zeros([self._blocks, self._side, columns])
        return self._walk(sums_of, zeros, stored)

    def product(
        self,
        weights: tf.Tensor,
        weights_of_positives: tf.Tensor | None,
        stored: _Stored,
    ) -> tf.Tensor:
        """Returns (exp(S) * (w + w') - M * (c + c')) z, [n, P].

        M is the mask of positives. w and c, [n], are repeated over columns.
        """
        w = split_rows(weights, self._side)
        c = w
        if weights_of_positives is not None:
            c = split_rows(weights_of_positives, self._side)

        def products_of(
            k: tf.Tensor, i: tf.Tensor, j: tf.Tensor, stored: _Stored
        ) -> tuple[_Sides, _Stored]:
            if stored:
                e = stored[0].read(k)
            else:
                e = self._exponentials(self._similarities(i, j), i, j)
            block = e * (w[i][:, tf.newaxis] + w[j])

            def less_positives() -> tf.Tensor:
                both = c[i][:, tf.newaxis] + c[j]
                return block - tf.where(self._positives(i, j), both, 0.0)

            if weights_of_positives is not None:
                # In one matrix: the two nearly cancel at a low loss.
                block = tf.cond(
                    self._may_have_positives(i, j),
                    less_positives,
                    lambda: block,
                )
            matmul = functools.partial(products.matmul, split=self._split)
            return (
                lambda: matmul(block, self._z[j]),
                lambda: matmul(block, self._z[i], transpose_a=True),
            ), stored

        return self._walk(products_of, tf.zeros_like(self._z), stored)[0]

    def _walk(
        self,
        visit: Callable[..., tuple[_Sides, _Stored]],
        result: tf.Tensor,
        stored: _Stored,
    ) -> tuple[tf.Tensor, _Stored]:
        """Adds what each block gives its rows and, mirrored, its columns."""

        def one_block(
            k: tf.Tensor,
            i: tf.Tensor,
            j: tf.Tensor,
            result: tf.Tensor,
            stored: _Stored,
        ) -> tuple[Any, ...]:
            (of_rows, of_columns), stored = visit(k, i, j, stored)
            result = _add_row(result, i, of_rows())
            result = tf.cond(
                tf.equal(i, j),
                lambda: result,
                lambda: _add_row(result, j, of_columns()),
            )
            end = tf.equal(j + 1, self._blocks)
            i = tf.where(end, i + 1, i)
            return k + 1, i, tf.where(end, i, j + 1), result, stored

        *_, result, stored = tf.while_loop(
            lambda k, i, *_: i < self._blocks,
            one_block,
            (0, 0, 0, result, stored),
        )
        return join_rows(result, self._total), stored

    def _similarities(self, i: tf.Tensor, j: tf.Tensor) -> tf.Tensor:
        """Returns S_ij."""
        return products.dot_products(self._z[i], self._z[j], split=self._split)

    def _sums_of_positives(
        self, s: tf.Tensor, i: tf.Tensor, j: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Returns the positives' sums over columns and over rows of S_ij."""

        def sums() -> tuple[tf.Tensor, ...]:
            of_positives = tf.where(self._positives(i, j), s, 0.0)
            return tuple(tf.reduce_sum(of_positives, axis) for axis in (0, 1))

        zeros = tf.zeros([self._side])
        some = self._may_have_positives(i, j)
        return tf.cond(some, sums, lambda: (zeros, zeros))

    def _may_have_positives(self, i: tf.Tensor, j: tf.Tensor) -> tf.Tensor:
        """Whether a class begins in block i, or before, and ends in j >= i."""
        last, first = self._classes[i, -1], self._classes[j, 0]
        return tf.equal(i, j) | tf.equal(last, first)

    def _same_class(self, i: tf.Tensor, j: tf.Tensor) -> tf.Tensor:
        """Returns the mask of equal classes in block ij, with the diagonal."""
        return outer_equal(self._classes[i], self._classes[j])

    def _positives(self, i: tf.Tensor, j: tf.Tensor) -> tf.Tensor:
        """Returns the mask of the others of the same class, in block ij."""
        same = self._same_class(i, j)
        return tf.cond(
            tf.equal(i, j),
            lambda: tf.linalg.set_diag(same, tf.zeros([self._side], tf.bool)),
            lambda: same,
        )

    def _exponentials(
        self, s: tf.Tensor, i: tf.Tensor, j: tf.Tensor
    ) -> tf.Tensor:
        """Returns exp(S_ij), with 0 for columns that are not summed."""
        e = tf.exp(s)
        if self._over == "others":
            e = tf.cond(
                tf.equal(i, j),
                lambda: tf.linalg.set_diag(e, tf.zeros([self._side])),
                lambda: e,
            )
        elif self._over == "negatives":
            e = tf.cond(
                self._may_have_positives(i, j),
                lambda: tf.where(self._same_class(i, j), 0.0, e),
                lambda: e,
            )
        padding = self._blocks * self._side - self._total
        if isinstance(padding, int) and not padding:
            return e

        def without_padding() -> tf.Tensor:
            columns = j * self._side + tf.range(self._side)
            return tf.where(columns < self._total, e, 0.0)

        return tf.cond(
            tf.equal(j, self._blocks - 1), without_padding, lambda: e
        )


def _add_row(x: tf.Tensor, row: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Adds `values` to x[row]."""
    return tf.tensor_scatter_nd_add(x, [[row]], values[tf.newaxis])


class LogSumExp(Rows):
    """The log-sum-exp of each row of logits, and the mean of its positives.

        repulsion * log sum_k exp(s_ik / t) - attraction * mean_p s_ip / t

    k runs over the "others", A(i), over "all" candidates, or over the
    "negatives", N(i); p over P(i). Both terms take the same products: their
    rounding errors cancel at a low loss, where s_ip is most of the sum. Half of
    a symmetric batch, which must be sorted by class, is walked.
    """

    def __init__(
        self,
        batch: Batch,
        temperature: float,
        *,
        attraction: float = 0.0,
        repulsion: float = 1.0,
        over: str = "others",
        block_size: int = 0,
    ) -> None:
        bounded = batch.bounded(temperature)

        def function(block: Block) -> tf.Tensor:
            logits = block.similarities / temperature
            mask = None if over == "all" else getattr(block, over)
            values = repulsion * log_sum_exp(logits, mask, bounded=bounded)
            if attraction:
                values -= attraction * masked_mean(logits, block.positives)
            return self._checked(values)

        super().__init__(
            function,
            batch.anchors,
            batch.candidates,
            block_size,
            batch.split,
        )
        self._batch = batch
        self._temperature = temperature
        self._attraction = attraction
        self._repulsion = repulsion
        self._over = over
        self._symmetric = is_symmetric(batch, temperature, block_size)

    def values(self) -> tf.Tensor:
        """Returns the value of each anchor, float32 [A]."""
        if not self._symmetric:
            return super().values()
        return self._checked(self._symmetric_values(self.anchors.embeddings))

    def total(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the sum of weights [A] * values, float32 []."""
        if not self._symmetric:
            return super().total(weights)
        return tf.reduce_sum(weights * self.values())

    def _checked(self, values: tf.Tensor) -> tf.Tensor:
        # A cross entropy: the mean is at most the log-sum-exp.
        cross_entropy = self._attraction == self._repulsion
        return not_negative(values) if cross_entropy else values

    def _symmetric_values(self, embeddings: tf.Tensor) -> tf.Tensor:
        """Uses each block on and above the diagonal twice.

        With E = exp(z z' / t), 0 where k does not run, r its row sums, M the
        mask of positives and n its row sums, the gradient of sum(g * value) by
        z is W z / t, where W = repulsion E * (g/r + (g/r)') - attraction M *
        (g/n + (g/n)').
        """
        with_positives = self._attraction != 0
        blocks = _SymmetricBlocks(
            tf.stop_gradient(embeddings) / self._temperature**0.5,
            self.anchors.classes,
            over=self._over,
            with_positives=with_positives,
            side=self.block_size,
            split=self.split,
        )

        @tf.custom_gradient
        def of_embeddings(embeddings: tf.Tensor) -> Any:
            del embeddings
            row_sums, exponentials = blocks.row_sums()
            sums = row_sums[:, 0]
            empty = tf.equal(sums, 0.0)
            sums = tf.where(empty, 1.0, sums)
            values = self._repulsion * tf.where(
                empty, MASKED, tf.math.log(sums)
            )
            positives = None
            if with_positives:
                number = tf.maximum(num_positives(self._batch), 1.0)
                positives = self._attraction / number
                values -= positives * row_sums[:, 1]

            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                weights = self._repulsion * tf.where(
                    empty, 0.0, upstream / sums
                )
                by_z = blocks.product(
                    weights,
                    None if positives is None else positives * upstream,
                    exponentials,
                )
                return by_z / self._temperature**0.5

            return values, gradient

        return of_embeddings(embeddings)


class ClassRows:
    """A differentiable function of each anchor's class, and of its noise.

    The noise, the log-sum-exp of the negatives, takes half of the similarities.
    The rest compares each anchor with the candidates of its class only.

    Args:
      function: as of `Rows`; takes similarities of other classes from
        `Block.noise` only.
      batch: symmetric and sorted by class.
      temperature, block_size: as of the loss.
    """

    def __init__(
        self,
        function: Callable[[Block], tf.Tensor],
        batch: Batch,
        temperature: float,
        block_size: int,
    ) -> None:
        self._function = function
        self._anchors = batch.anchors
        self._rows = rows_per_block(
            shape(batch.anchors.embeddings)[0], block_size
        )
        self._split = batch.split
        self._noise = LogSumExp(
            batch, temperature, over="negatives", block_size=block_size
        ).values()

    def values(self) -> tf.Tensor:
        """Returns the function's values, float32 [A]."""

        @tf.custom_gradient
        def of_inputs(embeddings: tf.Tensor, noise: tf.Tensor) -> Any:
            del embeddings
            values, *_ = self._walk(tf.zeros_like(noise))
            return values, lambda upstream: self._walk(upstream)[1:]

        return of_inputs(self._anchors.embeddings, self._noise)

    def total(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the sum of weights [A] * values, float32 [], in one walk."""

        @tf.custom_gradient
        def of_inputs(embeddings: tf.Tensor, noise: tf.Tensor) -> Any:
            del embeddings, noise
            values, *gradients = self._walk(weights)
            total = tf.reduce_sum(weights * values)
            return total, lambda upstream: [upstream * g for g in gradients]

        return of_inputs(self._anchors.embeddings, self._noise)

    def _walk(
        self, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns values [A], their gradients by embeddings and noise."""
        anchors = EmbeddingSet(*map(tf.stop_gradient, self._anchors))
        classes = anchors.classes
        total = shape(classes)[0]
        anchor_blocks = [split_rows(x, self._rows) for x in anchors]
        noise = split_rows(tf.stop_gradient(self._noise), self._rows)
        weights = split_rows(tf.stop_gradient(weights), self._rows)
        blocks = shape(noise)[0]
        matmul = functools.partial(products.matmul, split=self._split)

        def classes_of(k: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            """Where the classes of the k-th anchors begin and end."""
            last = tf.minimum((k + 1) * self._rows, total) - 1
            first = classes[k * self._rows]
            return (
                tf.searchsorted(classes, [first], side="left")[0],
                tf.searchsorted(classes, [classes[last]], side="right")[0],
            )

        def one_block(
            k: tf.Tensor,
            values: tf.TensorArray,
            by_anchors: tf.TensorArray,
            by_candidates: tf.Tensor,
            by_noise: tf.TensorArray,
        ) -> tuple[Any, ...]:
            first, end = classes_of(k)
            own = EmbeddingSet(*(x[k] for x in anchor_blocks))
            others = EmbeddingSet(*(x[first:end] for x in anchors))
            block = compare(own, others, self._split)
            block.noise_of_negatives = noise[k]
            inputs = [block.similarities, block.noise_of_negatives]
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                result = self._function(block)
            g, of_noise = tape.gradient(
                result,
                inputs,
                weights[k],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            by_others = matmul(g, own.embeddings, transpose_a=True)
            return (
                k + 1,
                values.write(k, result),
                by_anchors.write(k, matmul(g, others.embeddings)),
                tf.tensor_scatter_nd_add(
                    by_candidates,
                    tf.range(first, end)[:, tf.newaxis],
                    by_others,
                ),
                by_noise.write(k, of_noise),
            )

        def array(like: tf.Tensor) -> tf.TensorArray:
            return tf.TensorArray(
                tf.float32, blocks, element_shape=like.shape[1:]
            )

        _, values, by_anchors, by_candidates, by_noise = tf.while_loop(
            lambda k, *_: k < blocks,
            one_block,
            (
                0,
                array(noise),
                array(anchor_blocks[0]),
                tf.zeros_like(anchors.embeddings),
                array(noise),
            ),
            parallel_iterations=1,
        )
        values, by_anchors, by_noise = (
            join_rows(x.stack(), total) for x in (values, by_anchors, by_noise)
        )
        return values, by_anchors + by_candidates, by_noise


def class_rows(
    function: Callable[[Block], tf.Tensor],
    batch: Batch,
    temperature: float,
    block_size: int,
) -> Rows | SortedRows:
    """Applies `function` to each anchor's class and noise, see `ClassRows`.

    Where that is not possible, to its whole row.
    """
    # A block's classes have any number of candidates, which XLA cannot compile.
    graph = tf.compat.v1.get_default_graph()
    compiled = control_flow_util.GraphOrParentsInXlaContext(graph)
    if compiled or not is_symmetric(batch, temperature, block_size):
        anchors, candidates = batch.anchors, batch.candidates
        return Rows(function, anchors, candidates, block_size, batch.split)
    return SortedRows(
        batch, lambda x: ClassRows(function, x, temperature, block_size)
    )
