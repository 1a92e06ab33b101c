"""Similarities of this replica's anchors to the embeddings of all replicas.

Everything that compares embeddings walks blocks of the similarity matrix in a
`tf.while_loop`: memory grows with the batch and not with its square, and the
graph has the same size for any batch size.
"""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.losses import products

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
# What a block adds to its rows, and to its columns.
_Sides = tuple[Callable[[], tf.Tensor], Callable[[], tf.Tensor]]


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
    split: bool = False  # products, see `products.matmul`

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
    split: bool = False,
) -> Batch:
    """Gathers the candidates of all replicas for projections [B, V, P].

    Labels are int [B]; or multi-hot [B, C], where any shared class makes a
    positive; or None: an image's other views are its positives.
    """
    projections = tf.convert_to_tensor(projections)
    labels = None if labels is None else tf.convert_to_tensor(labels)
    gathered: list[_Gathered] | None = getattr(_shared, "gathered", None)
    for other in gathered or []:
        if (
            other.projections is projections
            and other.labels is labels
            and other.batch.normalized == normalize
        ):
            return other.batch._replace(split=split)
    batch = _gather(projections, labels, normalize)
    if gathered is not None:
        gathered.append(_Gathered(projections, labels, batch))
    return batch._replace(split=split)


class _Gathered(NamedTuple):
    """Arguments of `gather`, and its result."""

    projections: tf.Tensor
    labels: tf.Tensor | None
    batch: Batch


# Of each thread, since every replica is traced in one of its own.
_shared = threading.local()


@contextlib.contextmanager
def share_gathered() -> Iterator[None]:
    """Gathers the same tensors only once, by one collective each.

    Within it, the loss and the metrics of a step have a batch in common.
    """
    _shared.gathered = []
    try:
        yield
    finally:
        _shared.gathered = None


def _gather(
    projections: tf.Tensor, labels: tf.Tensor | None, normalize: bool
) -> Batch:
    batch, views, size = shape(projections)
    embeddings = tf.reshape(tf.cast(projections, tf.float32), [-1, size])
    if normalize:
        embeddings = l2_normalize(embeddings)
    if labels is not None and labels.shape.rank == 2:
        labels = tf.cast(labels > 0, tf.float32)
    elif labels is not None:
        labels = tf.cast(labels, tf.int32)

    def embedding_set(
        embeddings: tf.Tensor, labels: tf.Tensor | None, first: int | tf.Tensor
    ) -> EmbeddingSet:
        images = shape(embeddings)[0] // views
        image_ids = tf.repeat(first + tf.range(images), views)
        classes = image_ids
        if labels is not None:
            classes = tf.repeat(labels, views, axis=0)
        numbers = tf.tile(tf.range(views), [images])
        return EmbeddingSet(embeddings, image_ids, numbers, classes)

    concat = distribution.cross_replica_concat
    all_labels = None if labels is None else concat(labels)
    return Batch(
        embedding_set(embeddings, labels, distribution.replica_id() * batch),
        embedding_set(concat(embeddings), all_labels, 0),
        views,
        labels is not None,
        normalize,
    )


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


def masked_mean(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Mean of `values` [R, N] over each row's `mask`, or 0, [R]."""
    return masked_sum(values, mask) / tf.maximum(count(mask), 1.0)


def not_negative(values: tf.Tensor) -> tf.Tensor:
    """Removes rounding errors below 0 from values, not from gradients."""
    return values - tf.stop_gradient(tf.minimum(values, 0.0))


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


def _compare(
    anchors: EmbeddingSet, candidates: EmbeddingSet, split: bool
) -> Block:
    similarities = products.dot_products(
        anchors.embeddings, candidates.embeddings, split=split
    )
    return Block(similarities, anchors, candidates)


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
    split: bool = False,
) -> Any:
    """Applies `function` to each anchor's row, without a gradient.

    It maps a block to a nest of [R], of the dtypes `outputs`; the result is the
    nest of [A]. `block_size`: anchors at a time; 0: automatic. `split`: as of
    `products.matmul`.
    """
    total = shape(anchors.embeddings)[0]
    rows = rows_per_block(shape(candidates.embeddings)[0], block_size)
    anchors, candidates = tf.nest.map_structure(
        tf.stop_gradient, (anchors, candidates)
    )
    if _is_one_block(anchors, candidates, block_size):
        return function(_compare(anchors, candidates, split))
    blocks = tf.map_fn(
        lambda block: function(
            _compare(EmbeddingSet(*block), candidates, split)
        ),
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
    split: bool = False  # products, see `products.matmul`

    def values(self) -> tf.Tensor:
        """Returns the function's values, float32 [A].

        Rows are walked once, and once more for the gradient.
        """
        sets = self.anchors, self.candidates
        if _is_one_block(*sets, self.block_size):
            return self.function(_compare(*sets, self.split))

        @tf.custom_gradient
        def of_embeddings(anchors: tf.Tensor, candidates: tf.Tensor) -> Any:
            del anchors, candidates
            values = scan(
                self.function,
                *sets,
                block_size=self.block_size,
                split=self.split,
            )
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
        matmul = functools.partial(products.matmul, split=self.split)

        def one_block(
            k: tf.Tensor,
            value: tf.Tensor,
            by_anchors: tf.TensorArray,
            by_candidates: tf.Tensor,
        ) -> tuple[tf.Tensor, ...]:
            own = EmbeddingSet(*(x[k] for x in anchor_blocks))
            block = _compare(own, candidates, self.split)
            with tf.GradientTape() as tape:
                tape.watch(block.similarities)
                weighted = tf.reduce_sum(weights[k] * self.function(block))
            g = tape.gradient(
                weighted,
                block.similarities,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            by_own = matmul(g, candidates.embeddings)
            by_others = matmul(g, own.embeddings, transpose_a=True)
            return (
                k + 1,
                value + weighted,
                by_anchors.write(k, by_own),
                by_candidates + by_others,
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


class _SymmetricBlocks:
    """The blocks S_ij, j >= i, of S = z z', z float32 [n, P].

    Args:
      z, classes: the embeddings; int32 [n], where sums over the positives, the
        others of a row's class, are needed.
      side: rows of a block; 0: automatic.
      include_self: whether sums of exponentials include the diagonal.
      split: see `products.matmul`.
    """

    def __init__(
        self,
        z: tf.Tensor,
        classes: tf.Tensor | None,
        *,
        side: int,
        include_self: bool,
        split: bool,
    ) -> None:
        self._total = shape(z)[0]
        if not side:
            # At least 2 blocks, of one size, so that little is padded.
            blocks = -(-self._total // _BLOCK_SIDE)
            if isinstance(blocks, int):
                blocks = max(blocks, 2)
            side = -(-self._total // blocks)
        self._side = side
        self._include_self = include_self
        self._split = split
        # Padding has z = 0, which adds nothing to sums over positives.
        self._z = _split(z, side)  # [blocks, side, P]
        self._classes = None if classes is None else _split(classes, side)
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
            if self._classes is not None:
                of_positives = self._sums_of_positives(s, i, j)

            def along(axis: int) -> tf.Tensor:
                # Not a product with ones, which devices round.
                sums = [tf.reduce_sum(e, axis)]
                if of_positives:
                    sums.append(of_positives[axis])
                return tf.stack(sums, axis=-1)

            sides = functools.partial(along, 1), functools.partial(along, 0)
            return sides, tuple(array.write(k, e) for array in stored)

        columns = 1 if self._classes is None else 2
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
        w = _split(weights, self._side)
        c = w
        if weights_of_positives is not None:
            c = _split(weights_of_positives, self._side)

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
        return _join(result, self._total), stored

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
        """Whether ranges of classes overlap; without labels, near i = j."""
        assert self._classes is not None
        rows, columns = self._classes[i], self._classes[j]
        return (tf.reduce_min(rows) <= tf.reduce_max(columns)) & (
            tf.reduce_min(columns) <= tf.reduce_max(rows)
        )

    def _positives(self, i: tf.Tensor, j: tf.Tensor) -> tf.Tensor:
        """Returns the mask of the others of the same class, in block ij."""
        assert self._classes is not None
        same = _outer_equal(self._classes[i], self._classes[j])
        return tf.cond(
            tf.equal(i, j),
            lambda: same & ~tf.eye(self._side, dtype=tf.bool),
            lambda: same,
        )

    def _exponentials(
        self, s: tf.Tensor, i: tf.Tensor, j: tf.Tensor
    ) -> tf.Tensor:
        """Returns exp(S_ij), with 0 for padding."""
        e = tf.exp(s)
        plain = tf.not_equal(j, self._blocks - 1)
        if not self._include_self:
            plain &= tf.not_equal(i, j)

        def masked() -> tf.Tensor:
            numbers = tf.range(self._side)
            rows = (i * self._side + numbers)[:, tf.newaxis]
            columns = j * self._side + numbers
            keep = (rows < self._total) & (columns < self._total)
            if not self._include_self:
                keep &= rows != columns
            return tf.where(keep, e, 0.0)

        return tf.cond(plain, lambda: e, masked)


def _add_row(x: tf.Tensor, row: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Adds `values` to x[row]."""
    return tf.tensor_scatter_nd_add(x, [[row]], values[tf.newaxis])


class LogSumExp(Rows):
    """The log-sum-exp of each row of logits, and the mean of its positives.

        repulsion * log sum_k exp(s_ik / t) - attraction * mean_p s_ip / t

    k runs over A(i), or all candidates if `include_self`; p over P(i). Both
    terms take the same products: their rounding errors cancel at a low loss,
    where s_ip is most of the sum. On one replica the matrix is symmetric, and
    half of it is walked.
    """

    def __init__(
        self,
        batch: Batch,
        temperature: float,
        *,
        attraction: float = 0.0,
        repulsion: float = 1.0,
        include_self: bool = False,
        block_size: int = 0,
    ) -> None:
        bounded = batch.bounded(temperature)

        def function(block: Block) -> tf.Tensor:
            logits = block.similarities / temperature
            mask = None if include_self else block.others
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
        self._include_self = include_self
        # Every candidate is an anchor: one replica, and all views.
        square = batch.anchors.embeddings is batch.candidates.embeddings
        total = shape(batch.anchors.embeddings)[0]
        few = isinstance(total, int) and total < _SYMMETRIC_FROM
        self._symmetric = (
            bounded
            and square
            and not (few and not block_size)
            and (not attraction or batch.anchors.classes.shape.rank == 1)
        )

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

        With E = exp(z z' / t), without its diagonal, r its row sums, M the mask
        of positives and n its row sums, the gradient of sum(g * value) by z is
        W z / t, where W = repulsion E * (g/r + (g/r)') - attraction M * (g/n +
        (g/n)').
        """
        with_positives = self._attraction != 0
        blocks = _SymmetricBlocks(
            tf.stop_gradient(embeddings) / self._temperature**0.5,
            self.anchors.classes if with_positives else None,
            side=self.block_size,
            include_self=self._include_self,
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
