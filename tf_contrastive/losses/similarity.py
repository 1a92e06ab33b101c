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
from tf_contrastive.losses import labels as label_checks
from tf_contrastive.losses import matrix_products

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


class EmbeddingSet(NamedTuple):
    """Embeddings to compare, and which image, view and class each is of."""

    embeddings: tf.Tensor  # float32 [n, P]
    image_ids: tf.Tensor  # int32 [n], position of the image in the global batch
    # Int32 [n], number of the image's view; a small one has that of the large
    # view whose place it takes.
    views: tf.Tensor
    # Int32 [n], position among the candidates; -1 for a small view.
    rows: tf.Tensor
    # Int32 [n], below 0 for an image without a label; or multi-hot float32
    # [n, C].
    classes: tf.Tensor

    def of_view(self, view: int, views: int) -> "EmbeddingSet":
        """Returns the rows of one of `views` views."""
        return EmbeddingSet(*(x[view::views] for x in self))


class Batch(NamedTuple):
    """The embeddings of this replica against those of all replicas.

    Row i * V + v is view v of image i; the global batch concatenates the
    replicas. Small views follow an image's large ones among the anchors, and
    are not among the candidates.
    """

    anchors: EmbeddingSet  # [B * (V + S), ...]
    candidates: EmbeddingSet  # [G * V, ...]
    num_views: int  # V
    labelled: bool  # False: each image is a class
    normalized: bool
    split: bool = False  # products, see `matrix_products.matmul`
    small_views: int = 0  # S
    block_size: int | None = None  # anchors at a time; None: automatic

    @property
    def embeddings(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The embeddings of anchors and candidates."""
        return self.anchors.embeddings, self.candidates.embeddings

    @property
    def rows_per_block(self) -> int | tf.Tensor:
        """The anchors compared at a time."""
        candidates = shape(self.candidates.embeddings)[0]
        return rows_per_block(candidates, self.block_size)

    def without_gradient(self) -> "Batch":
        """Returns the batch behind a stop-gradient."""
        anchors, candidates = tf.nest.map_structure(tf.stop_gradient, self[:2])
        return self._replace(anchors=anchors, candidates=candidates)

    def of_view(self, view: int) -> "Batch":
        """Returns the batch with the anchors of one view only."""
        views = self.num_views + self.small_views
        return self._replace(anchors=self.anchors.of_view(view, views))

    def bounded(self, temperature: float) -> bool:
        """Whether exp(logit) is safe without subtracting the maximum."""
        return self.normalized and temperature >= _BOUNDED_TEMPERATURE


@dataclasses.dataclass(eq=False)
class Block:
    """Rows of similarities of some anchors, and masks over them."""

    # Float32 [R, N], dot products; over the temperature if the loss has one.
    similarities: tf.Tensor
    anchors: EmbeddingSet  # R embeddings
    candidates: EmbeddingSet  # N embeddings

    @functools.cached_property
    def same_image(self) -> tf.Tensor:
        """Bool [R, N]: views of one image, including the anchor itself."""
        return outer_equal(self.anchors.image_ids, self.candidates.image_ids)

    @functools.cached_property
    def same_view(self) -> tf.Tensor:
        """Bool [R, N]: views of the same number."""
        return outer_equal(self.anchors.views, self.candidates.views)

    @functools.cached_property
    def others(self) -> tf.Tensor:
        """Bool [R, N], A(i): all but the anchor itself."""
        rows = self.anchors.rows[:, tf.newaxis]
        return tf.not_equal(rows, self.candidates.rows)

    @functools.cached_property
    def is_candidate(self) -> tf.Tensor:
        """Bool [R]: the anchor is also a candidate, not a small view."""
        return self.anchors.rows >= 0

    @functools.cached_property
    def same_class(self) -> tf.Tensor:
        """Bool [R, N]: a class in common; an image's views always have one."""
        anchors, candidates = self.anchors.classes, self.candidates.classes
        if anchors.shape.rank == 1:
            return outer_equal(anchors, candidates)
        return (self._shared_classes > 0.5) | self.same_image

    @functools.cached_property
    def _shared_classes(self) -> tf.Tensor:
        """Float32 [R, N]: the number of classes in common, of multi-hot."""
        anchors, candidates = self.anchors.classes, self.candidates.classes
        return tf.matmul(anchors, candidates, transpose_b=True)

    @functools.cached_property
    def positives(self) -> tf.Tensor:
        """Bool [R, N], P(i)."""
        return self.same_class & self.others

    @functools.cached_property
    def negatives(self) -> tf.Tensor:
        """Bool [R, N], N(i): no class in common."""
        return ~self.same_class

    @functools.cached_property
    def unlabelled(self) -> tf.Tensor:
        """Bool [R, N]: of another image, which has no label."""
        classes = self.candidates.classes
        if classes.shape.rank == 2:
            without = tf.reduce_sum(classes, axis=-1) < 0.5
        else:
            without = classes < 0
        return without[tf.newaxis] & ~self.same_image

    def weights(self, positives: tf.Tensor, overlap: str) -> tf.Tensor:
        """Returns the weights of `positives`, bool [R, N], as floats or a mask.

        With "jaccard" these are, up to a factor of the row, the classes in
        common over the classes of either; views of one image have all in
        common. A row's sum is the number of its positives. With "any", and for
        one class per image, all are 1, and the mask is returned.
        """
        if overlap == "any" or self.anchors.classes.shape.rank == 1:
            return positives
        sizes = count(self.anchors.classes)[:, tf.newaxis]
        either = sizes + count(self.candidates.classes) - self._shared_classes
        jaccard = tf.math.divide_no_nan(self._shared_classes, either)
        weights = tf.where(self.same_image, 1.0, jaccard)
        weights = tf.where(positives, weights, 0.0)
        factors = tf.math.divide_no_nan(count(positives), count(weights))
        return weights * factors[:, tf.newaxis]

    def of_other_views(self, views: int, negatives: str) -> tf.Tensor:
        """Mean similarity to the image's other views, or 0, [R].

        Candidates are all `views` of each image, or one, as `negatives` says.
        """
        columns = self.anchors.image_ids[:, tf.newaxis]
        if negatives != "all_views":
            return tf.gather(self.similarities, columns, batch_dims=1)[:, 0]
        columns = views * columns + tf.range(views)
        found = tf.gather(self.similarities, columns, batch_dims=1)
        is_other = tf.not_equal(columns, self.anchors.rows[:, tf.newaxis])
        return masked_mean(found, is_other)


def outer_equal(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Compares each of a [m] to each of b [n], bool [m, n]."""
    return tf.equal(a[:, tf.newaxis], b[tf.newaxis])


def gather(
    projections: tf.Tensor,
    labels: tf.Tensor | None = None,
    *,
    normalize: bool = True,
    split: bool = False,
    unlabelled: bool = False,
    small_views: int = 0,
    block_size: int | None = None,
) -> Batch:
    """Gathers the candidates of all replicas for projections [B, V, P].

    Labels are int [B]; or multi-hot [B, C], where any shared class makes a
    positive; or None: an image's other views are its positives. With
    `unlabelled` that holds for images with the label -1, too. The last
    `small_views` of the views are anchors only.
    """
    projections = tf.convert_to_tensor(projections)
    labels = None if labels is None else tf.convert_to_tensor(labels)
    gathered = getattr(_shared, "gathered", {})
    of_labels = None if labels is None else (labels.ref(), unlabelled)
    key = projections.ref(), of_labels, normalize, small_views
    if key not in gathered:
        gathered[key] = _gather(
            projections, labels, normalize, unlabelled, small_views
        )
    return gathered[key]._replace(split=split, block_size=block_size)


# Of each thread, since every replica is traced in one of its own.
_shared = threading.local()


@contextlib.contextmanager
def share_gathered() -> Iterator[None]:
    """Gathers the same tensors only once, by one collective each.

    Within it, the loss and the metrics of a step have a batch in common.
    """
    _shared.gathered = {}
    try:
        yield
    finally:
        del _shared.gathered


def _gather(
    projections: tf.Tensor,
    labels: tf.Tensor | None,
    normalize: bool,
    unlabelled: bool,
    small_views: int,
) -> Batch:
    batch, every, size = shape(projections)
    views = every - small_views
    if views < 1:
        raise ValueError(
            f"small_views={small_views} of {every} views: must be fewer, since"
            " they are compared with the others"
        )
    embeddings = tf.reshape(tf.cast(projections, tf.float32), [-1, size])
    if normalize:
        embeddings = l2_normalize(embeddings)
    if labels is not None and labels.shape.rank == 2:
        if labels.shape[1] == 1:
            raise ValueError(
                "labels of shape [B, 1] would be multi-hot labels of one"
                " class: pass int [B], such as labels[:, 0]"
            )
        embeddings = label_checks.noticed(embeddings, labels)
        labels = tf.cast(labels, tf.float32)
    elif labels is not None:
        embeddings = label_checks.noticed(embeddings, labels, unlabelled)
        labels = tf.cast(labels, tf.int32)

    def embedding_set(
        embeddings: tf.Tensor,
        labels: tf.Tensor | None,
        first: int | tf.Tensor,
        count: int,
    ) -> EmbeddingSet:
        images = shape(embeddings)[0] // count
        image_ids = tf.repeat(first + tf.range(images), count)
        classes = image_ids
        if labels is not None:
            classes = tf.repeat(labels, count, axis=0)
            if unlabelled and classes.shape.rank == 1:
                # A class of its own, which no id is.
                classes = tf.where(classes < 0, -1 - image_ids, classes)
        numbers = tf.tile(tf.range(count), [images])
        rows = tf.where(numbers < views, image_ids * views + numbers, -1)
        of_view = numbers % views
        return EmbeddingSet(embeddings, image_ids, of_view, rows, classes)

    concat = distribution.cross_replica_concat
    all_labels = None if labels is None else concat(labels)
    first = distribution.replica_id() * batch
    large = embeddings
    if small_views:
        large = tf.reshape(embeddings, [-1, every, size])[:, :views]
        large = tf.reshape(large, [-1, size])
    return Batch(
        embedding_set(embeddings, labels, first, every),
        embedding_set(concat(large), all_labels, 0, views),
        views,
        labels is not None,
        normalize,
        small_views=small_views,
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

    @tf.custom_gradient
    def of_logits(logits: tf.Tensor) -> Any:
        if mask is not None:
            logits = tf.where(mask, logits, MASKED)
        shift = tf.zeros([])
        if not bounded:
            # Above `MASKED`, so that the exponentials of an empty row are 0.
            shift = tf.reduce_max(logits, axis=-1, keepdims=True)
            shift = tf.maximum(shift, MASKED / 2)
            logits -= shift
            shift = shift[:, 0]
        e = tf.exp(logits)
        total = tf.reduce_sum(e, axis=-1)
        # Not "above 0", which would hide NaN.
        empty = tf.equal(total, 0.0)
        total = tf.where(empty, 1.0, total)
        values = tf.where(empty, MASKED, tf.math.log(total) + shift)
        # One product: the mask is in the exponentials already.
        return values, lambda upstream: (upstream / total)[:, tf.newaxis] * e

    return of_logits(logits)


def masked_sum(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Sum of `values` [R, N] over each row's `mask`, or by weights, [R]."""
    if mask.dtype == tf.bool:
        return tf.reduce_sum(tf.where(mask, values, 0.0), axis=-1)
    return tf.reduce_sum(values * mask, axis=-1)


def masked_mean(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Mean of `values` [R, N] over each row's `mask`, or 0, [R]."""
    return masked_sum(values, mask) / tf.maximum(count(mask), 1.0)


def not_negative(values: tf.Tensor) -> tf.Tensor:
    """Removes rounding errors below 0 from values, not from gradients."""
    return values - tf.stop_gradient(tf.minimum(values, 0.0))


def count(mask: tf.Tensor) -> tf.Tensor:
    """Number of columns in each row's `mask`, or sum of weights, [R]."""
    return tf.reduce_sum(tf.cast(mask, tf.float32), axis=-1)


def rows_per_block(
    candidates: int | tf.Tensor, block_size: int | None = None
) -> int | tf.Tensor:
    """Returns the anchors compared at a time: `block_size`; None: automatic."""
    if isinstance(candidates, int):
        rows = block_size or min(max(_ROWS_BLOCK // candidates, 128), 1024)
        return min(rows, candidates)
    if block_size:
        return tf.minimum(block_size, candidates)
    return tf.clip_by_value(_ROWS_BLOCK // candidates, 128, 1024)


def split_rows(x: tf.Tensor, rows: int | tf.Tensor) -> tf.Tensor:
    """Splits the first axis into blocks, padded with zeros: [n, rows, ...]."""
    total = shape(x)[0]
    blocks = -(-total // rows)
    padding = [[0, blocks * rows - total]] + [[0, 0]] * (x.shape.rank - 1)
    return tf.reshape(tf.pad(x, padding), [blocks, rows, *x.shape[1:]])


def join_rows(x: tf.Tensor, total: int | tf.Tensor) -> tf.Tensor:
    """Reverses `split_rows`: [n, rows, ...] -> [total, ...]."""
    return tf.reshape(x, [-1, *x.shape[2:]])[:total]


def compare(batch: Batch) -> Block:
    """Returns the block of all anchors and candidates."""
    similarities = matrix_products.dot_products(
        *batch.embeddings, split=batch.split
    )
    return Block(similarities, batch.anchors, batch.candidates)


def _is_one_block(batch: Batch) -> bool:
    """Whether the batch is small enough to need no loop."""
    sizes = [shape(x)[0] for x in batch.embeddings]
    known = all(isinstance(size, int) for size in sizes)
    return known and sizes[0] <= batch.rows_per_block


def scan(
    function: Callable[[Block], Any], batch: Batch, outputs: Any = tf.float32
) -> Any:
    """Applies `function` to each anchor's row, without a gradient.

    It maps a block to a nest of [R], of the dtypes `outputs`; the result is the
    nest of [A].
    """
    batch = batch.without_gradient()
    if _is_one_block(batch):
        return function(compare(batch))
    blocks = tf.map_fn(
        lambda block: function(
            compare(batch._replace(anchors=EmbeddingSet(*block)))
        ),
        tuple(split_rows(x, batch.rows_per_block) for x in batch.anchors),
        fn_output_signature=outputs,
        parallel_iterations=1,
    )
    total = shape(batch.anchors.embeddings)[0]
    return tf.nest.map_structure(lambda x: join_rows(x, total), blocks)


@dataclasses.dataclass(eq=False)
class Rows:
    """A differentiable function of each anchor's row of similarities.

    Value and gradient are computed in one walk over blocks of whole rows. The
    second derivative is not defined.
    """

    # Block -> [R], differentiable by `block.similarities`, and finite for an
    # anchor of zeros.
    function: Callable[[Block], tf.Tensor]
    batch: Batch  # A anchors, N candidates

    def values(self) -> tf.Tensor:
        """Returns the function's values, float32 [A].

        Rows are walked once, and once more for the gradient.
        """
        if _is_one_block(self.batch):
            return self.function(compare(self.batch))

        @tf.custom_gradient
        def of_embeddings(anchors: tf.Tensor, candidates: tf.Tensor) -> Any:
            del anchors, candidates
            values = scan(self.function, self.batch)
            return values, lambda upstream: self._differentiate(upstream)[1:]

        return of_embeddings(*self.batch.embeddings)

    def total(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the sum of weights [A] * values, float32 [].

        The weights are known, so a row's gradient is computed together with
        its value: rows are walked only once.
        """
        if _is_one_block(self.batch):
            return tf.reduce_sum(weights * self.values())

        @tf.custom_gradient
        def of_embeddings(anchors: tf.Tensor, candidates: tf.Tensor) -> Any:
            del anchors, candidates
            total, *gradients = self._differentiate(weights)
            return total, lambda upstream: [upstream * g for g in gradients]

        return of_embeddings(*self.batch.embeddings)

    def _differentiate(
        self, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the weighted sum, its gradients by anchors and candidates."""
        batch = self.batch.without_gradient()
        candidates = batch.candidates.embeddings
        total, rows = shape(batch.anchors.embeddings)[0], batch.rows_per_block
        anchor_blocks = [split_rows(x, rows) for x in batch.anchors]
        weights = split_rows(tf.stop_gradient(weights), rows)
        blocks = shape(weights)[0]
        matmul = functools.partial(matrix_products.matmul, split=batch.split)

        def one_block(
            k: tf.Tensor,
            value: tf.Tensor,
            by_anchors: tf.TensorArray,
            by_candidates: tf.Tensor,
        ) -> tuple[tf.Tensor, ...]:
            own = EmbeddingSet(*(x[k] for x in anchor_blocks))
            block = compare(batch._replace(anchors=own))
            with tf.GradientTape() as tape:
                tape.watch(block.similarities)
                weighted = tf.reduce_sum(weights[k] * self.function(block))
            g = tape.gradient(
                weighted,
                block.similarities,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            by_own = matmul(g, candidates)
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
            (0, 0.0, by_anchors, tf.zeros_like(candidates)),
            parallel_iterations=1,
        )
        return value, join_rows(by_anchors.stack(), total), by_candidates


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
    itself = tf.cast(anchors.rows >= 0, tf.int32)
    if not batch.labelled:
        return tf.cast(batch.num_views - itself, tf.float32)
    if anchors.classes.shape.rank == 2:
        return scan(lambda block: count(block.positives), batch)
    ordered = tf.sort(candidates.classes)
    first = tf.searchsorted(ordered, anchors.classes, side="left")
    end = tf.searchsorted(ordered, anchors.classes, side="right")
    return tf.cast(end - first - itself, tf.float32)
