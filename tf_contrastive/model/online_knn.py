"""Online kNN: accuracy of the nearest neighbor among recent training images.

It shows during training whether features improve, without a classifier that
must catch up with them. It is not a result to report: its images are augmented
training images, and their features are of many steps.
"""

from typing import Any

import tensorflow as tf

from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.losses import labels as label_checks
from tf_contrastive.losses import similarity
from tf_contrastive.model import ring_buffer
from tf_contrastive.model.contrastive_step import (
    Batch,
    ContrastiveStep,
    Results,
)

# Another name than that of the protocol of `evaluate`, as it does not compare.
METRIC = "online_knn_top1"


class OnlineKNN(ContrastiveStep):
    """Classifies view 0 of each training batch by the bank's nearest features.

    Without `online_knn_size` it changes nothing.
    """

    arguments: tuple[str, ...] = ("online_knn_size",)

    def __init__(
        self, *args: Any, online_knn_size: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.online_knn_size = online_knn_size
        self.neighbors = None
        if online_knn_size:
            features = self.encoder.output_shape[-1]
            self.neighbors = OnlineNeighbors(online_knn_size, features)
            self.means.add(METRIC)

    @classmethod
    def arguments_of_run(
        cls, run: Pretrain, num_classes: int | None
    ) -> dict[str, Any]:
        """The constructor's arguments for a resolved run."""
        size = run.probe.online_knn_size if num_classes else 0
        arguments = super().arguments_of_run(run, num_classes)
        return {**arguments, "online_knn_size": size}

    def checkpointed(self) -> dict[str, Any]:
        """The bank, too."""
        parts = super().checkpointed()
        if self.neighbors is not None:
            parts["neighbors"] = self.neighbors
        return parts

    def record(
        self, results: Results, batch: Batch, features: tf.Tensor | None
    ) -> list[str]:
        """Adds the accuracy, and the features to the bank."""
        names = super().record(results, batch, features)
        if self.neighbors is None or features is None or batch.labels is None:
            return names
        labels = label_checks.check_classes("online_knn_size", batch.labels)
        view = label_checks.noticed(  # [B, D]
            features[:, 0], labels, self.unlabelled
        )
        top1, has_neighbors = self.neighbors(view, labels)
        self.neighbors.enqueue(view, labels)
        weights = {METRIC: has_neighbors}
        return names + self.means.update({METRIC: top1}, weights)


class OnlineNeighbors(tf.keras.layers.Layer):
    """A bank of the latest features and labels, which the next batch searches.

    Features are l2-normalised; the oldest leave first. An image that returns
    while it is in the bank may find itself: use a bank that holds a small
    fraction of an epoch's images. `size` is Q, at least a global batch;
    `features` is D.
    """

    def __init__(self, size: int, features: int) -> None:
        super().__init__(name="online_neighbors", dtype="float32")
        if size < 1:
            raise ValueError(f"size={size}: must be at least 1")
        self.size = size
        self.bank = self.add_weight(
            "bank", [size, features], initializer="zeros", trainable=False
        )
        # -1: an empty slot. GPUs have no variables of 32-bit integers.
        self.labels = self.add_weight(
            "labels",
            [size],
            tf.int64,
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
        """Classifies features [B, D], without a gradient; labels are int [B].

        Those of label -1 have none, and are left out.

        Returns:
          (fraction whose nearest neighbor has their label, float32 []; 1, or 0
          while the bank is empty or all are left out, float32 []).
        """
        rows = similarity.l2_normalize(_finite_rows(features)[0])
        cosines = tf.matmul(rows, self.bank, transpose_b=True)  # [B, Q]
        cosines = tf.where(self.labels >= 0, cosines, -2.0)
        nearest = tf.gather(self.labels, tf.argmax(cosines, axis=1))
        labels = tf.cast(labels, tf.int64)
        hits = tf.cast(tf.equal(nearest, labels), tf.float32)
        number = tf.reduce_sum(tf.cast(labels >= 0, tf.float32))
        found = tf.reduce_any(self.labels >= 0) & (number > 0)
        return (
            tf.reduce_sum(hits) / tf.maximum(number, 1.0),
            tf.cast(found, tf.float32),
        )

    def enqueue(self, features: tf.Tensor, labels: tf.Tensor) -> None:
        """Puts features [B, D] of all replicas in place of the oldest ones.

        Features that are not finite leave their slot empty.
        """
        rows, finite = _finite_rows(features)
        labels = tf.where(finite, tf.cast(labels, tf.int32), -1)
        ring_buffer.enqueue(
            [self.bank, self.labels],
            self.entered,
            [similarity.l2_normalize(rows), labels],
            f"online_knn_size={self.size} is less than the {{size}} images of"
            " a global batch: use a larger one",
        )


def _finite_rows(features: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Features float32 [B, D] with non-finite rows zeroed; finite rows [B]."""
    rows = tf.stop_gradient(tf.cast(features, tf.float32))
    finite = tf.reduce_all(tf.math.is_finite(rows), axis=1)
    return tf.where(finite[:, tf.newaxis], rows, 0.0), finite
