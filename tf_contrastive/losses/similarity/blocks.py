"""Some anchors' rows of similarities, and sums over them."""

import functools

import tensorflow as tf

from tf_contrastive.losses.similarity.batch import Side

# Stands for minus infinity in a masked logit. Finite, so that a row without
# any candidate has a finite value and a zero gradient instead of NaN, and far
# below any similarity that float32 embeddings can have.
MASKED = -1e30


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
