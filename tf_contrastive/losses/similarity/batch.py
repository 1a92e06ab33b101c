"""Anchors of this replica, candidates of all replicas, and sums over them."""

import dataclasses
import functools
from typing import NamedTuple

import tensorflow as tf

from tf_contrastive import distribution

# Replaces minus infinity in a masked logit. Finite, so that a row without any
# candidate has a finite value and a zero gradient instead of NaN, and far below
# any similarity that float32 embeddings can have.
MASKED = -1e30
# Lowest temperature at which exp(cosine / temperature), and sums of a million
# of them, are normal float32 numbers, so that no maximum need be subtracted.
_BOUNDED_TEMPERATURE = 0.02


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
    """Whole rows of similarities of some anchors, and masks over them.

    Attributes:
      similarities: float32 [R, N], dot products of anchors and candidates.
      anchors, candidates: the sets of R and N embeddings.
    """

    similarities: tf.Tensor
    anchors: EmbeddingSet
    candidates: EmbeddingSet

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
    """Gathers the candidates of all replicas for local projections.

    Args:
      projections: [B, V, P] of this replica, any floating dtype.
      labels: int [B]; or multi-hot [B, C], where any shared class makes a
        positive; or None: an image's other views are its positives.
      normalize: cosine similarity; False: raw dot products.
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
    """Scales rows to unit length in float32; a zero row stays zero.

    Rows are first divided by their largest entry, so that neither tiny nor
    huge rows leave float32's range when squared. A zero row has no direction,
    and a zero gradient: the limit's 1/0 would overflow in half precision.
    """
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
    """Log of the sum of exponentials over the columns in `mask`, [R].

    Args:
      logits: float32 [R, N].
      mask: bool [R, N], or None for all columns. An empty row has `MASKED`.
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
    """Number of columns in each row's `mask`, float32 [R]."""
    return tf.reduce_sum(tf.cast(mask, tf.float32), axis=-1)
