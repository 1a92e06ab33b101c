"""What is compared: this replica's anchors, all replicas' candidates."""

from typing import NamedTuple

import tensorflow as tf

from tf_contrastive import distribution

# Lowest temperature at which exp(cosine / temperature), and sums of a million
# of them, are normal float32 numbers, so that no maximum need be subtracted.
_BOUNDED_TEMPERATURE = 0.02


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
    batch, views, size = shape(projections)
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


def shape(x: tf.Tensor) -> list[int | tf.Tensor]:
    """The shape, as far as it can be as numbers."""
    dynamic = tf.shape(x)
    return [
        dynamic[axis] if length is None else length
        for axis, length in enumerate(x.shape.as_list())
    ]
