"""Similarities of this replica's anchors to the embeddings of all replicas.

Everything that compares embeddings walks blocks of the similarity matrix in a
`tf.while_loop`: memory grows with the batch and not with its square, and the
graph has the same size for any batch size.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive import distribution

# Replaces minus infinity in a masked logit. Finite, so that a row without any
# candidate has a finite value and a zero gradient instead of NaN, and far below
# any similarity that float32 embeddings can have.
MASKED = -1e30
# Lowest temperature at which exp(cosine / temperature), and sums of a million
# of them, are normal float32 numbers, so that no maximum need be subtracted.
_BOUNDED_TEMPERATURE = 0.02
# Entries of a block of the similarity matrix, by measurement (`benchmark
# loss`): small enough for the cache, large enough for the matrix products.
_ROWS_BLOCK = 2**20
# Anchors from which half of the matrix is less work than all of it at once.
_SYMMETRIC_FROM = 768
_BLOCK_SIDE = 1024
# Exponentials (64 MiB) to store for the gradient instead of recomputing them.
_MAX_STORED = 2**24
# Stored blocks of exponentials: one array, or none.
_Stored = tuple[tf.TensorArray, ...]


class EmbeddingSet(NamedTuple):
    """Embeddings to compare, and which image, view and class each is of."""

    embeddings: tf.Tensor  # float32 [n, P]
    image_ids: tf.Tensor  # int32 [n], position of the image in the global batch
    views: tf.Tensor  # int32 [n], number of the image's view
    classes: tf.Tensor  # int32 [n], or multi-hot float32 [n, C]

    def of_view(self, view: int, views: int) -> "EmbeddingSet":
        """Returns the rows of one of `views` views."""
        return EmbeddingSet(*(x[view::views] for x in self))


class Batch(NamedTuple):
    """The embeddings of this replica against those of all replicas.

    Row i * V + v is view v of image i; the global batch concatenates the
    replicas.
    """

    anchors: EmbeddingSet  # [B * V, ...]
    candidates: EmbeddingSet  # [G * V, ...]
    num_views: int  # V
    labelled: bool  # False: each image is a class
    normalized: bool

    def of_view(self, view: int) -> "Batch":
        """Returns the batch with the anchors of one view only."""
        anchors = self.anchors.of_view(view, self.num_views)
        return self._replace(anchors=anchors)

    def bounded(self, temperature: float) -> bool:
        """Whether exp(logit) is safe without subtracting the maximum."""
        return self.normalized and temperature >= _BOUNDED_TEMPERATURE


@dataclasses.dataclass(eq=False)
class Block:
    """Whole rows of similarities of some anchors, and masks over them."""

    similarities: tf.Tensor  # float32 [R, N], dot products
    anchors: EmbeddingSet  # R embeddings
    candidates: EmbeddingSet  # N embeddings

    @functools.cached_property
    def same_image(self) -> tf.Tensor:
        """Bool [R, N]: views of one image, including the anchor itself."""
        return _outer_equal(self.anchors.image_ids, self.candidates.image_ids)

    @functools.cached_property
    def same_view(self) -> tf.Tensor:
        """Bool [R, N]: views of the same number."""
        return _outer_equal(self.anchors.views, self.candidates.views)

    @functools.cached_property
    def others(self) -> tf.Tensor:
        """Bool [R, N], A(i): all but the anchor itself."""
        return ~(self.same_image & self.same_view)

    @functools.cached_property
    def same_class(self) -> tf.Tensor:
        """Bool [R, N]: a class in common; an image's views always have one."""
        anchors, candidates = self.anchors.classes, self.candidates.classes
        if anchors.shape.rank == 1:
            return _outer_equal(anchors, candidates)
        shared = tf.matmul(anchors, candidates, transpose_b=True)
        return (shared > 0.5) | self.same_image

    @functools.cached_property
    def positives(self) -> tf.Tensor:
        """Bool [R, N], P(i)."""
        return self.same_class & self.others

    @functools.cached_property
    def negatives(self) -> tf.Tensor:
        """Bool [R, N], N(i): no class in common."""
        return ~self.same_class


def _outer_equal(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return tf.equal(a[:, tf.newaxis], b[tf.newaxis])


def gather(
    projections: tf.Tensor,
    labels: tf.Tensor | None = None,
    *,
    normalize: bool = True,
) -> Batch:
    """Gathers the candidates of all replicas for projections [B, V, P].

    Labels are int [B]; or multi-hot [B, C], where any shared class makes a
    positive; or None: an image's other views are its positives.
    """
    projections = tf.convert_to_tensor(projections)
    labels = None if labels is None else tf.convert_to_tensor(labels)
    batch, views, size = shape(projections)
    embeddings = tf.reshape(tf.cast(projections, tf.float32), [-1, size])
    if normalize:
        embeddings = l2_normalize(embeddings)
    first = distribution.replica_id() * batch
    image_ids = tf.repeat(first + tf.range(batch), views)
    if labels is None:
        classes = image_ids
    elif labels.shape.rank == 2:
        classes = tf.repeat(tf.cast(labels > 0, tf.float32), views, axis=0)
    else:
        classes = tf.repeat(tf.cast(labels, tf.int32), views)
    anchors = EmbeddingSet(
        embeddings, image_ids, tf.tile(tf.range(views), [batch]), classes
    )
    candidates = EmbeddingSet(*map(distribution.cross_replica_concat, anchors))
    return Batch(anchors, candidates, views, labels is not None, normalize)


def l2_normalize(x: tf.Tensor) -> tf.Tensor:
    """Scales rows to unit length in float32; a zero row stays zero."""
    # Rows are first divided by their largest entry, so that neither tiny nor
    # huge rows leave float32's range when squared. A zero row has a zero
    # gradient: the limit's 1/0 would overflow in half precision.
    x = tf.cast(x, tf.float32)
    largest = tf.reduce_max(tf.abs(x), axis=-1, keepdims=True)
    # Not "above 0", which would turn NaN into zeros and hide a diverged run.
    zero = tf.stop_gradient(tf.equal(largest, 0.0))
    scaled = x / tf.stop_gradient(tf.where(zero, 1.0, largest))
    return tf.math.l2_normalize(tf.where(zero, 0.0, scaled), axis=-1)


def shape(x: tf.Tensor) -> list[int | tf.Tensor]:
    """Returns the shape, with numbers for all static dimensions."""
    dynamic = tf.shape(x)
    return [
        dynamic[axis] if length is None else length
        for axis, length in enumerate(x.shape.as_list())
    ]


def log_sum_exp(
    logits: tf.Tensor, mask: tf.Tensor | None = None, *, bounded: bool = False
) -> tf.Tensor:
    """Log of the sum of exponentials over the mask's columns, [R, N] -> [R].

    An empty row has `MASKED`. If `bounded`, its maximum is not subtracted.
    """
    if mask is not None:
        logits = tf.where(mask, logits, MASKED)
    shift = 0.0
    if not bounded:
        shift = tf.stop_gradient(tf.reduce_max(logits, -1, keepdims=True))
        logits -= shift
        shift = shift[:, 0]
    total = tf.reduce_sum(tf.exp(logits), axis=-1)
    # Not "above 0", which would hide NaN.
    empty = tf.equal(total, 0.0)
    return tf.where(
        empty, MASKED, tf.math.log(tf.where(empty, 1.0, total)) + shift
    )


def masked_sum(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Sum of `values` [R, N] over each row's `mask`, [R]."""
    return tf.reduce_sum(tf.where(mask, values, 0.0), axis=-1)


def count(mask: tf.Tensor) -> tf.Tensor:
    """Number of columns in each row's `mask`, float32 [R]."""
    return tf.reduce_sum(tf.cast(mask, tf.float32), axis=-1)


def rows_per_block(
    candidates: int | tf.Tensor, block_size: int = 0
) -> int | tf.Tensor:
    """Returns the anchors compared at a time: `block_size`; 0: automatic."""
    if block_size:
        return block_size
    if isinstance(candidates, int):
        return min(max(_ROWS_BLOCK // candidates, 128), 1024)
    return tf.clip_by_value(_ROWS_BLOCK // candidates, 128, 1024)


def _split(x: tf.Tensor, rows: int | tf.Tensor) -> tf.Tensor:
    """Splits the first axis into blocks, padded with zeros: [n, rows, ...]."""
    total = shape(x)[0]
    blocks = -(-total // rows)
    padding = [[0, blocks * rows - total]] + [[0, 0]] * (x.shape.rank - 1)
    return tf.reshape(tf.pad(x, padding), [blocks, rows, *x.shape[1:]])


def _join(x: tf.Tensor, total: int | tf.Tensor) -> tf.Tensor:
    """Reverses `_split`: [n, rows, ...] -> [total, ...]."""
    return tf.reshape(x, [-1, *x.shape[2:]])[:total]


def _compare(anchors: EmbeddingSet, candidates: EmbeddingSet) -> Block:
    products = tf.matmul(
        anchors.embeddings, candidates.embeddings, transpose_b=True
    )
    return Block(products, anchors, candidates)


def _is_one_block(
    anchors: EmbeddingSet, candidates: EmbeddingSet, block_size: int
) -> bool:
    """Whether the batch is small enough to need no loop."""
    total, columns = (shape(x.embeddings)[0] for x in (anchors, candidates))
    known = isinstance(total, int) and isinstance(columns, int)
    return known and total <= rows_per_block(columns, block_size)


def scan(
    function: Callable[[Block], Any],
    anchors: EmbeddingSet,
    candidates: EmbeddingSet,
    *,
    outputs: Any = tf.float32,
    block_size: int = 0,
) -> Any:
    """Applies `function` to each anchor's row, without a gradient.

    It maps a block to a nest of [R], of the dtypes `outputs`; the result is the
    nest of [A]. `block_size`: anchors at a time; 0: automatic.
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
        EmbeddingSet(*(_split(x, rows) for x in anchors)),
        fn_output_signature=outputs,
        parallel_iterations=1,
    )
    return tf.nest.map_structure(lambda x: _join(x, total), blocks)


@dataclasses.dataclass(eq=False)
class Rows:
    """A differentiable function of each anchor's row of similarities.

    Value and gradient are computed in one walk over blocks of whole rows. The
    second derivative is not defined.
    """

    # Block -> [R], differentiable by `block.similarities`, and finite for an
    # anchor of zeros.
    function: Callable[[Block], tf.Tensor]
    anchors: EmbeddingSet  # A embeddings
    candidates: EmbeddingSet  # N embeddings
    block_size: int = 0  # anchors at a time; 0: automatic

    def values(self) -> tf.Tensor:
        """Returns the function's values, float32 [A].

        Rows are walked once, and once more for the gradient.
        """
        sets = self.anchors, self.candidates
        if _is_one_block(*sets, self.block_size):
            return self.function(_compare(*sets))

        @tf.custom_gradient
        def of_embeddings(anchors: tf.Tensor, candidates: tf.Tensor) -> Any:
            del anchors, candidates
            values = scan(self.function, *sets, block_size=self.block_size)
            return values, lambda upstream: self._differentiate(upstream)[1:]

        return of_embeddings(*(x.embeddings for x in sets))

    def total(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the sum of weights [A] * values, float32 [].

        The weights are known, so a row's gradient is computed together with
        its value: rows are walked only once.
        """
        if _is_one_block(self.anchors, self.candidates, self.block_size):
            return tf.reduce_sum(weights * self.values())

        @tf.custom_gradient
        def of_embeddings(anchors: tf.Tensor, candidates: tf.Tensor) -> Any:
            del anchors, candidates
            total, *gradients = self._differentiate(weights)
            return total, lambda upstream: [upstream * g for g in gradients]

        return of_embeddings(
            self.anchors.embeddings, self.candidates.embeddings
        )

    def _differentiate(
        self, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the weighted sum, its gradients by anchors and candidates."""
        anchors, candidates = tf.nest.map_structure(
            tf.stop_gradient, (self.anchors, self.candidates)
        )
        total = shape(anchors.embeddings)[0]
        rows = rows_per_block(shape(candidates.embeddings)[0], self.block_size)
        anchor_blocks = [_split(x, rows) for x in anchors]
        weights = _split(tf.stop_gradient(weights), rows)
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
                weighted = tf.reduce_sum(weights[k] * self.function(block))
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
        return value, _join(by_anchors.stack(), total), by_candidates


class PerView:
    """The rows of the anchors of view 0, view 1, ..., in the anchors' order."""

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
    """Sums z_i . z_p over positives, float32 [A]; for int labels or none."""
    # A dot product with the sum of the class, which needs no pairs.
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


class _SymmetricBlocks:
    """The blocks E_ij, j >= i, of E = exp(z z'), z float32 [n, P]."""

    def __init__(self, z: tf.Tensor, side: int, with_diagonal: bool) -> None:
        self._total = shape(z)[0]
        if not side:
            # At least 2 blocks, of one size, so that little is padded.
            blocks = -(-self._total // _BLOCK_SIDE)
            if isinstance(blocks, int):
                blocks = max(blocks, 2)
            side = -(-self._total // blocks)
        self._side = side
        self._with_diagonal = with_diagonal
        self._z = _split(z, side)  # [blocks, side, P]
        self._blocks = shape(self._z)[0]

    def row_sums(self) -> tuple[tf.Tensor, _Stored]:
        """Returns the sums of E's rows, [n], and its blocks, if few."""
        stored: _Stored = ()
        pairs = self._blocks * (self._blocks + 1) // 2
        if isinstance(pairs, int) and pairs * self._side**2 <= _MAX_STORED:
            block = [self._side, self._side]
            stored = (tf.TensorArray(tf.float32, pairs, element_shape=block),)

        def block_of(
            k: tf.Tensor, i: tf.Tensor, j: tf.Tensor, stored: _Stored
        ) -> tuple[tf.Tensor, _Stored]:
            e = self._exponentials(i, j)
            return e, tuple(array.write(k, e) for array in stored)

        ones = tf.ones([*shape(self._z)[:2], 1])
        sums, stored = self._multiply(block_of, ones, stored)
        return sums[:, 0], stored

    def product(self, weights: tf.Tensor, stored: _Stored) -> tf.Tensor:
        """Returns (E * (w + w')) z, for w [n] repeated over columns, [n, P]."""
        w = _split(weights, self._side)

        def block_of(
            k: tf.Tensor, i: tf.Tensor, j: tf.Tensor, stored: _Stored
        ) -> tuple[tf.Tensor, _Stored]:
            e = stored[0].read(k) if stored else self._exponentials(i, j)
            return e * (w[i][:, tf.newaxis] + w[j]), stored

        return self._multiply(block_of, self._z, stored)[0]

    def _multiply(
        self,
        block_of: Callable[..., tuple[tf.Tensor, _Stored]],
        x: tf.Tensor,
        stored: _Stored,
    ) -> tuple[tf.Tensor, _Stored]:
        """Multiplies the matrix of these blocks by x [blocks, side, p]."""

        def one_block(
            k: tf.Tensor,
            i: tf.Tensor,
            j: tf.Tensor,
            product: tf.Tensor,
            stored: _Stored,
        ) -> tuple[Any, ...]:
            block, stored = block_of(k, i, j, stored)
            product = _add_row(product, i, tf.matmul(block, x[j]))

            def below() -> tf.Tensor:
                mirrored = tf.matmul(block, x[i], transpose_a=True)
                return _add_row(product, j, mirrored)

            product = tf.cond(tf.equal(i, j), lambda: product, below)
            end = tf.equal(j + 1, self._blocks)
            i = tf.where(end, i + 1, i)
            return k + 1, i, tf.where(end, i, j + 1), product, stored

        *_, product, stored = tf.while_loop(
            lambda k, i, *_: i < self._blocks,
            one_block,
            (0, 0, 0, tf.zeros_like(x), stored),
        )
        return _join(product, self._total), stored

    def _exponentials(self, i: tf.Tensor, j: tf.Tensor) -> tf.Tensor:
        """Returns E_ij, with 0 for padding."""
        e = tf.exp(tf.matmul(self._z[i], self._z[j], transpose_b=True))
        plain = tf.not_equal(j, self._blocks - 1)
        if not self._with_diagonal:
            plain &= tf.not_equal(i, j)

        def masked() -> tf.Tensor:
            numbers = tf.range(self._side)
            rows = (i * self._side + numbers)[:, tf.newaxis]
            columns = j * self._side + numbers
            keep = (rows < self._total) & (columns < self._total)
            if not self._with_diagonal:
                keep &= rows != columns
            return tf.where(keep, e, 0.0)

        return tf.cond(plain, lambda: e, masked)


def _add_row(x: tf.Tensor, row: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Adds `values` to x[row]."""
    return tf.tensor_scatter_nd_add(x, [[row]], values[tf.newaxis])


class LogSumExp(Rows):
    """log sum_k exp(z_i . z_k / temperature) over A(i), or all candidates.

    On one replica the matrix is symmetric, and half of it is walked.
    `include_self`: whether the sum includes the anchor itself.
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

        super().__init__(function, batch.anchors, batch.candidates, block_size)
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
        return self._symmetric_values(self.anchors.embeddings)

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
        blocks = _SymmetricBlocks(
            tf.stop_gradient(embeddings) / self._temperature**0.5,
            self.block_size,
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
