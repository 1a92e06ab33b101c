"""Similarities of this replica's anchors to the embeddings of all replicas.

Layer 2. Everything that compares embeddings walks blocks of the similarity
matrix, so that memory grows with the batch and not with its square:

- `scan` reads each anchor's row of similarities and has no gradient;
- `Rows` is a differentiable function of each row: value and gradient are made
  in one walk over blocks of whole rows;
- `LogSumExp` is the row function that most losses share. On one replica the
  matrix is symmetric, and half of it is walked.

Loops are `tf.while_loop`s: the graph has one size at any batch size.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive import distribution

# Stands for minus infinity in a masked logit. Finite, so that a row without
# any candidate has a finite value and a zero gradient instead of NaN, and far
# below any similarity that float32 embeddings can have.
MASKED = -1e30

# Lowest temperature at which exp(cosine / temperature), and sums of a million
# of them, are normal float32 numbers, so that no maximum need be subtracted.
_BOUNDED_TEMPERATURE = 0.02

# Numbers of a block of the similarity matrix, by measurement (`benchmark
# loss`): small enough for the cache, large enough for the matrix products.
_ROWS_BLOCK = 2**20
_SQUARE_SIDE = 1024
# Anchors from which half of the matrix is less work than all of it at once.
_HALF_FROM = 768
# Exponentials (64 MiB) that are kept for the gradient rather than made again.
_KEPT = 2**24


class Side(NamedTuple):
    """Embeddings that are compared, and whose they are."""

    embeddings: tf.Tensor  # float32 [n, P]
    images: tf.Tensor  # int32 [n], position of the image in the global batch
    views: tf.Tensor  # int32 [n], which view of it
    classes: tf.Tensor  # int32 [n], or multi-hot float32 [n, C]

    def of_view(self, view: int, views: int) -> "Side":
        """The rows of one of `views` views."""
        return Side(*(x[view::views] for x in self))


class Batch(NamedTuple):
    """The embeddings of this replica against those of all replicas.

    Row i * V + v is view v of image i; the global batch has the replicas one
    after the other.
    """

    anchors: Side  # [B * V, ...]
    candidates: Side  # [G * V, ...]
    num_views: int  # V
    labelled: bool  # classes are labels; otherwise each image is one
    normalized: bool

    def of_view(self, view: int) -> "Batch":
        """The same with the anchors of one view only."""
        anchors = self.anchors.of_view(view, self.num_views)
        return self._replace(anchors=anchors)

    def bounded(self, temperature: float) -> bool:
        """Whether logits are small enough to be exponentiated as they are."""
        return self.normalized and temperature >= _BOUNDED_TEMPERATURE


def l2_normalize(x: tf.Tensor) -> tf.Tensor:
    """Scales rows to unit length in float32; a zero row stays zero.

    Rows are first divided by their largest entry, so that neither tiny nor
    huge rows leave float32's range when squared. A zero row has no direction,
    and a zero gradient: the limit's 1/0 would overflow in half precision.
    """
    x = tf.cast(x, tf.float32)
    largest = tf.reduce_max(tf.abs(x), axis=-1, keepdims=True)
    # Not "above 0", which would turn NaN into zeros, and hide a lost run.
    zero = tf.stop_gradient(tf.equal(largest, 0.0))
    scaled = x / tf.stop_gradient(tf.where(zero, 1.0, largest))
    return tf.math.l2_normalize(tf.where(zero, 0.0, scaled), axis=-1)


def gather(
    projections: tf.Tensor,
    labels: tf.Tensor | None = None,
    *,
    normalize: bool = True,
) -> Batch:
    """Makes local projections the anchors, and those of all the candidates.

    Args:
      projections: [B, V, P] of this replica, any floating dtype.
      labels: int [B], or multi-hot [B, C] in which any shared class makes a
        positive, or None: then an image's own views are its positives.
      normalize: cosine similarity; False: raw dot products.
    """
    projections = tf.convert_to_tensor(projections)
    labels = None if labels is None else tf.convert_to_tensor(labels)
    batch, views, size = _shape(projections)
    embeddings = tf.reshape(tf.cast(projections, tf.float32), [-1, size])
    if normalize:
        embeddings = l2_normalize(embeddings)
    first = distribution.replica_id() * batch
    images = tf.repeat(first + tf.range(batch), views)
    if labels is None:
        classes = images
    elif labels.shape.rank == 2:
        classes = tf.repeat(tf.cast(labels > 0, tf.float32), views, axis=0)
    else:
        classes = tf.repeat(tf.cast(labels, tf.int32), views)
    anchors = Side(
        embeddings, images, tf.tile(tf.range(views), [batch]), classes
    )
    candidates = Side(*map(distribution.cross_replica_concat, anchors))
    return Batch(anchors, candidates, views, labels is not None, normalize)


def _shape(x: tf.Tensor) -> list[int | tf.Tensor]:
    """The shape, as far as it can be as numbers."""
    dynamic = tf.shape(x)
    return [
        dynamic[axis] if length is None else length
        for axis, length in enumerate(x.shape.as_list())
    ]


class Block:
    """Some anchors' whole rows of similarities, and who is whose positive.

    Attributes:
      similarities: float32 [R, N], dot products of anchors and candidates.
      anchors, candidates: the sides, of R and N rows.
    """

    def __init__(
        self, similarities: tf.Tensor, anchors: Side, candidates: Side
    ) -> None:
        self.similarities = similarities
        self.anchors = anchors
        self.candidates = candidates

    @functools.cached_property
    def same_image(self) -> tf.Tensor:
        """Bool [R, N]: views of one image, an anchor itself among them."""
        return _outer_equal(self.anchors.images, self.candidates.images)

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
        mine, theirs = self.anchors.classes, self.candidates.classes
        if mine.shape.rank == 1:
            return _outer_equal(mine, theirs)
        shared = tf.matmul(mine, theirs, transpose_b=True)
        return (shared > 0.5) | self.same_image

    @functools.cached_property
    def positives(self) -> tf.Tensor:
        """Bool [R, N], P(i)."""
        return self.same_class & self.others

    @functools.cached_property
    def negatives(self) -> tf.Tensor:
        """Bool [R, N], N(i): of no class of the anchor's."""
        return ~self.same_class


def _outer_equal(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return tf.equal(a[:, tf.newaxis], b[tf.newaxis])


def log_sum_exp(
    logits: tf.Tensor, mask: tf.Tensor | None = None, *, bounded: bool = False
) -> tf.Tensor:
    """Log of the sum of exponentials over the columns in `mask`, [R].

    Args:
      logits: float32 [R, N].
      mask: bool [R, N], or None for all columns. A row of none has `MASKED`.
      bounded: exponentiate without subtracting the row's maximum.
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
    """How many columns each row's `mask` has, float32 [R]."""
    return tf.reduce_sum(tf.cast(mask, tf.float32), axis=-1)


# ---- Walking rows ------------------------------------------------------------


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
    total, columns = (_shape(x.embeddings)[0] for x in (anchors, candidates))
    known = isinstance(total, int) and isinstance(columns, int)
    return known and total <= rows_per_block(columns, block_size)


def _split(x: tf.Tensor, rows: int | tf.Tensor) -> tf.Tensor:
    """Cuts the first axis into blocks, padded with zeros: [n, rows, ...]."""
    total = _shape(x)[0]
    blocks = -(-total // rows)
    padding = [[0, blocks * rows - total]] + [[0, 0]] * (x.shape.rank - 1)
    return tf.reshape(tf.pad(x, padding), [blocks, rows, *x.shape[1:]])


def _join(x: tf.Tensor, total: int | tf.Tensor) -> tf.Tensor:
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
    total = _shape(anchors.embeddings)[0]
    rows = rows_per_block(_shape(candidates.embeddings)[0], block_size)
    anchors, candidates = tf.nest.map_structure(
        tf.stop_gradient, (anchors, candidates)
    )
    if _is_one_block(anchors, candidates, block_size):
        return function(_compare(anchors, candidates))
    found = tf.map_fn(
        lambda side: function(_compare(Side(*side), candidates)),
        Side(*(_split(x, rows) for x in anchors)),
        fn_output_signature=outputs,
        parallel_iterations=1,
    )
    return tf.nest.map_structure(lambda x: _join(x, total), found)


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
        total = _shape(anchors.embeddings)[0]
        rows = rows_per_block(
            _shape(candidates.embeddings)[0], self._block_size
        )
        sides = [_split(x, rows) for x in anchors]
        weights = _split(tf.stop_gradient(weights), rows)
        blocks = _shape(weights)[0]

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
        return value, _join(by_anchors.stack(), total), by_candidates


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


# ---- The log-sum-exp of every row --------------------------------------------


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
        total = _shape(batch.anchors.embeddings)[0]
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
        half = _Half(
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


class _Half:
    """The blocks E_ij, j >= i, of E = exp(z z') without its diagonal.

    Args:
      z: float32 [n, P].
      side: rows and columns of a block; 0: automatic.
      with_diagonal: E with its diagonal.
    """

    def __init__(self, z: tf.Tensor, side: int, with_diagonal: bool) -> None:
        self._total = _shape(z)[0]
        self._side = side or self._automatic_side()
        self._with_diagonal = with_diagonal
        self._z = _split(z, self._side)  # [blocks, side, P]
        self._blocks = _shape(self._z)[0]

    def _automatic_side(self) -> int | tf.Tensor:
        # At least 2 blocks, of one size, so that little is padded.
        blocks = -(-self._total // _SQUARE_SIDE)
        if isinstance(blocks, int):
            blocks = max(blocks, 2)
        return -(-self._total // blocks)

    def row_sums(self) -> tuple[tf.Tensor, tuple[tf.TensorArray, ...]]:
        """The sums of E's rows, [n], and the blocks, if they are few."""
        kept = ()
        pairs = self._blocks * (self._blocks + 1) // 2
        if isinstance(pairs, int) and pairs * self._side**2 <= _KEPT:
            shape = [self._side, self._side]
            kept = (tf.TensorArray(tf.float32, pairs, element_shape=shape),)
        ones = tf.ones([self._side, 1])

        def add(k, i, j, sums, kept):
            e = self._exponentials(i, j)
            kept = tuple(array.write(k, e) for array in kept)
            sums = _add_row(sums, i, tf.matmul(e, ones)[:, 0])

            def below():
                return _add_row(
                    sums, j, tf.matmul(e, ones, transpose_a=True)[:, 0]
                )

            return tf.cond(tf.equal(i, j), lambda: sums, below), kept

        sums = tf.zeros(tf.shape(self._z)[:2])
        sums, kept = self._walk(add, sums, kept)
        return _join(sums, self._total), kept

    def product(
        self, shares: tf.Tensor, kept: tuple[tf.TensorArray, ...]
    ) -> tf.Tensor:
        """(E * (s + s')) z, for s [n] repeated over columns, [n, P]."""
        z, shares = self._z, _split(shares, self._side)

        def add(k, i, j, product, kept):
            e = kept[0].read(k) if kept else self._exponentials(i, j)
            w = e * (shares[i][:, tf.newaxis] + shares[j])
            product = _add_row(product, i, tf.matmul(w, z[j]))

            def below():
                return _add_row(
                    product, j, tf.matmul(w, z[i], transpose_a=True)
                )

            return tf.cond(tf.equal(i, j), lambda: product, below), kept

        product, _ = self._walk(add, tf.zeros_like(z), kept)
        return _join(product, self._total)

    def _walk(self, add, start, kept):
        """Loops over j >= i, as block k: `add` gets (k, i, j, so far, kept)."""

        def one_block(k, i, j, so_far, kept):
            so_far, kept = add(k, i, j, so_far, kept)
            end = tf.equal(j + 1, self._blocks)
            i = tf.where(end, i + 1, i)
            return k + 1, i, tf.where(end, i, j + 1), so_far, kept

        return tf.while_loop(
            lambda k, i, *_: i < self._blocks, one_block, (0, 0, 0, start, kept)
        )[-2:]

    def _exponentials(self, i: tf.Tensor, j: tf.Tensor) -> tf.Tensor:
        """E_ij, with 0 where there is padding."""
        e = tf.exp(tf.matmul(self._z[i], self._z[j], transpose_b=True))
        plain = tf.not_equal(j, self._blocks - 1)
        if not self._with_diagonal:
            plain &= tf.not_equal(i, j)
        return tf.cond(plain, lambda: e, lambda: self._masked(e, i, j))

    def _masked(self, e, i, j):
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


# ---- Positives, without walking pairs ----------------------------------------


def num_positives(batch: Batch) -> tf.Tensor:
    """How many positives each anchor has, |P(i)|, float32 [A]."""
    anchors, candidates = batch.anchors, batch.candidates
    if not batch.labelled:
        return tf.fill(tf.shape(anchors.images), batch.num_views - 1.0)
    if anchors.classes.shape.rank == 2:
        return scan(lambda block: count(block.positives), anchors, candidates)
    ordered = tf.sort(candidates.classes)
    first = tf.searchsorted(ordered, anchors.classes, side="left")
    end = tf.searchsorted(ordered, anchors.classes, side="right")
    return tf.cast(end - first - 1, tf.float32)


def positive_sums(batch: Batch) -> tf.Tensor:
    """Sum over positives of z_i . z_p, [A], of int labels or none.

    A dot product with the sum of the class: no pair is looked at.
    """
    anchors, candidates = batch.anchors, batch.candidates
    z = anchors.embeddings
    if not batch.labelled:
        of_image = tf.reshape(z, [-1, batch.num_views, z.shape[-1]])
        sums = tf.reduce_sum(of_image, axis=1, keepdims=True)
        return tf.reshape(tf.reduce_sum(of_image * (sums - of_image), -1), [-1])
    ordered = tf.sort(candidates.classes)
    # The first of its class stands for the class.
    sums = tf.math.unsorted_segment_sum(
        candidates.embeddings,
        tf.searchsorted(ordered, candidates.classes),
        _shape(ordered)[0],
    )
    sums = tf.gather(sums, tf.searchsorted(ordered, anchors.classes))
    return tf.reduce_sum(z * (sums - z), axis=-1)
