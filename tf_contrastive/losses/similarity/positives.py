"""Positives, without walking pairs."""

import tensorflow as tf

from tf_contrastive.losses.similarity.batch import Batch, shape
from tf_contrastive.losses.similarity.blocks import count
from tf_contrastive.losses.similarity.rows import scan


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
        shape(ordered)[0],
    )
    sums = tf.gather(sums, tf.searchsorted(ordered, anchors.classes))
    return tf.reduce_sum(z * (sums - z), axis=-1)
