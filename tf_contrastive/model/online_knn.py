"""The nearest neighbour among recent training images, while training.

Layer 4. A number that tells day by day whether features get better, without a
classifier that must catch up with them. It is no result: its images are those
of training, augmented, and their features of many steps; `evaluate` has the
protocol that compares with others.
"""

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.losses import similarity


class OnlineNeighbors(tf.keras.layers.Layer):
    """A bank of the latest features and labels, asked by the next batch.

    Features enter l2-normalised, as they are in training; the oldest leave.
    An image that comes again while it is still in the bank may find itself:
    let the bank hold a small part of the images of an epoch.

    Args:
      size: Q, features kept; at least a global batch.
      features: D.

    Raises:
      ValueError: for a size below 1.
    """

    def __init__(self, size: int, features: int) -> None:
        super().__init__(name="online_neighbors", dtype="float32")
        if size < 1:
            raise ValueError(f"size={size}: must be at least 1")
        self.size = size
        self.bank = self.add_weight(
            "bank", [size, features], initializer="zeros", trainable=False
        )
        # -1: nothing is there.
        self.labels = self.add_weight(
            "labels",
            [size],
            tf.int32,
            initializer=tf.keras.initializers.Constant(-1),
            trainable=False,
        )
        self.entered = self.add_weight(
            "entered", [], tf.int64, initializer="zeros", trainable=False
        )
        self.built = True

    def call(
        self, features: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Classifies this replica's features by their nearest neighbours.

        Args:
          features: [B, D], without a gradient from here.
          labels: int [B].

        Returns:
          (share of them whose nearest neighbour has their label, float32 []; 1,
          or 0 where there is no neighbour yet, float32 []).
        """
        rows = similarity.l2_normalize(_finite(features)[0])
        cosines = tf.matmul(rows, self.bank, transpose_b=True)  # [B, Q]
        cosines = tf.where(self.labels >= 0, cosines, -2.0)
        nearest = tf.gather(self.labels, tf.argmax(cosines, axis=1))
        hits = tf.equal(nearest, tf.cast(labels, tf.int32))
        any_there = tf.reduce_any(self.labels >= 0)
        return (
            tf.reduce_mean(tf.cast(hits, tf.float32)),
            tf.cast(any_there, tf.float32),
        )

    def enter(self, features: tf.Tensor, labels: tf.Tensor) -> None:
        """Puts features [B, D] of all replicas in the place of the oldest.

        Features that are no numbers leave a gap.

        Raises:
          ValueError: if there is no room for the global batch; if its size is
            known only once the step runs, that raises InvalidArgumentError.
        """
        rows, good = _finite(features)
        labels = tf.where(good, tf.cast(labels, tf.int32), -1)
        rows = distribution.cross_replica_concat(similarity.l2_normalize(rows))
        labels = distribution.cross_replica_concat(labels)
        count = rows.shape[0]
        message = (
            f"online neighbours of {self.size} images have no room for the"
            f" {count or 'number of'} images of a global batch: give more"
        )
        if count is None:
            tf.debugging.assert_less_equal(
                tf.shape(rows)[0], self.size, message
            )
        elif count > self.size:
            raise ValueError(message)
        count = tf.shape(rows, tf.int64)[0]
        slots = (tf.range(count) + self.entered)[:, tf.newaxis] % self.size
        distribution.assign(
            [self.bank, self.labels, self.entered],
            [
                tf.tensor_scatter_nd_update(self.bank, slots, rows),
                tf.tensor_scatter_nd_update(self.labels, slots, labels),
                self.entered + count,
            ],
        )


def _finite(features: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Features float32 [B, D], zero where they are no numbers; which are."""
    rows = tf.stop_gradient(tf.cast(features, tf.float32))
    good = tf.reduce_all(tf.math.is_finite(rows), axis=1)
    return tf.where(good[:, tf.newaxis], rows, 0.0), good
