"""Similarities of this replica's anchors to the embeddings of all replicas.

Layer 2. The shape of everything that compares embeddings: rows are the local
anchors, row i * V + v being view v of local image i; columns are the
candidates of the global batch in the same order, replica after replica.
"""

from typing import NamedTuple

import tensorflow as tf

from tf_contrastive import distribution

# Stands for minus infinity in a masked logit. Finite, so that a row without
# any candidate has a finite value and a zero gradient instead of NaN, and far
# below any similarity that float32 embeddings can have.
MASKED = -1e30


class Pairs(NamedTuple):
    """Anchors (A = B * V of this replica) against candidates (N = G * V)."""

    logits: tf.Tensor  # float32 [A, N], similarity / temperature, self MASKED
    positives: tf.Tensor  # bool [A, N], without self
    others: tf.Tensor  # bool [A, N], all but self


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


def pairs(
    projections: tf.Tensor,
    labels: tf.Tensor | None,
    *,
    temperature: float,
    normalize: bool = True,
) -> Pairs:
    """Compares every local embedding with every embedding of the global batch.

    Args:
      projections: [B, V, P] of this replica, any floating dtype.
      labels: int [B], or multi-hot [B, C] in which any shared class makes a
        positive, or None: then an image's own views are its positives.
      temperature: what similarities are divided by.
      normalize: cosine similarity; False: raw dot products.
    """
    batch, views, size = _static_or_dynamic_shape(projections)
    anchors = tf.reshape(tf.cast(projections, tf.float32), [-1, size])
    if normalize:
        anchors = l2_normalize(anchors)
    candidates = distribution.cross_replica_concat(anchors)
    logits = tf.matmul(anchors, candidates, transpose_b=True) / temperature

    first = distribution.replica_id() * batch * views
    rows = tf.range(batch * views)[:, tf.newaxis]
    columns = tf.range(tf.shape(candidates)[0])[tf.newaxis]
    others = tf.not_equal(rows + first, columns)
    if labels is None:
        same = tf.equal((rows + first) // views, columns // views)
    else:
        same = _share_a_class(labels, views)
    return Pairs(
        logits=tf.where(others, logits, MASKED),
        positives=tf.logical_and(same, others),
        others=others,
    )


def _static_or_dynamic_shape(x: tf.Tensor) -> list[int | tf.Tensor]:
    dynamic = tf.shape(x)
    return [
        dynamic[axis] if length is None else length
        for axis, length in enumerate(x.shape.as_list())
    ]


def _share_a_class(labels: tf.Tensor, views: int) -> tf.Tensor:
    """Whether anchor and candidate share a class, bool [A, N]."""
    if labels.shape.rank == 2:
        mine = tf.repeat(tf.cast(labels > 0, tf.float32), views, axis=0)
        theirs = distribution.cross_replica_concat(mine)
        return tf.matmul(mine, theirs, transpose_b=True) > 0.5
    mine = tf.repeat(tf.cast(labels, tf.int32), views, axis=0)
    theirs = distribution.cross_replica_concat(mine)
    return tf.equal(mine[:, tf.newaxis], theirs[tf.newaxis])


def log_sum_exp(logits: tf.Tensor) -> tf.Tensor:
    """Log of the sum of exponentials over the candidates of each row, [A]."""
    return tf.reduce_logsumexp(logits, axis=-1)


def mean_over_positives(values: tf.Tensor, positives: tf.Tensor) -> tf.Tensor:
    """Mean of `values` [A, N] over each row's positives; 0 without any, [A]."""
    total = tf.reduce_sum(tf.where(positives, values, 0.0), axis=-1)
    count = tf.reduce_sum(tf.cast(positives, tf.float32), axis=-1)
    return total / tf.maximum(count, 1.0)
