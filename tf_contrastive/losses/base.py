"""What every contrastive loss shares: arguments, checks and the reduction."""

import tensorflow as tf

from tf_contrastive import config, distribution, similarity


class ContrastiveLoss:
    """A loss over the embeddings of the global batch.

    Called inside a replica it returns replicas * (sum over the local anchors)
    / (anchors counted in the global batch): the mean of that over replicas is
    the global mean. A training step divides it by `num_replicas_in_sync` and
    sums gradients over replicas, which gives the gradient of the global mean.
    Anchors without a positive contribute 0 and leave the count; if none is
    counted, the loss is 0.

    Args:
      temperature: what similarities are divided by, above 0.
      normalize: l2-normalise projections first; False: raw dot products.
      reduction: "mean" over the counted anchors, or "sum" over them as SupCon
        prints it (Eq. 19), of the global batch.
    """

    # Whether calling it without labels is an error.
    needs_labels = False

    def __init__(
        self, *, temperature: float, normalize: bool, reduction: str
    ) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature={temperature}: must be above 0")
        if reduction not in config.REDUCTIONS:
            raise config.unknown("reduction", reduction, config.REDUCTIONS)
        self.temperature = temperature
        self.normalize = normalize
        self.reduction = reduction

    def __call__(
        self,
        projections: tf.Tensor,
        labels: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Computes the loss over the global batch.

        Args:
          projections: [B, V, P] of this replica, any floating dtype.
          labels: int [B] or multi-hot [B, C], where the loss uses them.
          seed: int32 [2]; only losses that draw random numbers read it.

        Returns:
          float32 [], scaled as the class says.

        Raises:
          ValueError: for projections that are not [B, V, P], or for a missing
            or misshapen `labels`.
        """
        del seed
        pairs = self._pairs(projections, labels)
        total = tf.reduce_sum(self._values(pairs))
        replicas = tf.cast(distribution.num_replicas(), tf.float32)
        if self.reduction == "sum":
            return replicas * total
        counted = tf.reduce_any(pairs.positives, axis=-1)
        count = distribution.cross_replica_sum(
            tf.reduce_sum(tf.cast(counted, tf.float32))
        )
        return replicas * total / tf.maximum(count, 1.0)

    def per_anchor(
        self, projections: tf.Tensor, labels: tf.Tensor | None = None
    ) -> tf.Tensor:
        """The loss of each local anchor, unscaled, float32 [B, V].

        Args and errors are those of a call.
        """
        values = self._values(self._pairs(projections, labels))
        return tf.reshape(values, tf.shape(projections)[:2])

    def _pairs(self, projections, labels) -> similarity.Pairs:
        projections = tf.convert_to_tensor(projections)
        if projections.shape.rank != 3 or not projections.dtype.is_floating:
            raise ValueError(
                f"projections of shape {projections.shape} and type"
                f" {projections.dtype.name}: must be floating [B, V, P]"
                " (images, views per image, projection size)"
            )
        return similarity.pairs(
            projections,
            self._checked_labels(labels, projections.shape[0]),
            temperature=self.temperature,
            normalize=self.normalize,
        )

    def _checked_labels(self, labels, batch) -> tf.Tensor | None:
        if not self.needs_labels:
            return None
        if labels is None:
            raise ValueError(
                f"{type(self).__name__} needs labels: int [B] or multi-hot"
                " [B, C]"
            )
        labels = tf.convert_to_tensor(labels)
        if labels.shape.rank not in (1, 2) or not (
            labels.shape[:1].is_compatible_with([batch])
        ):
            raise ValueError(
                f"labels of shape {labels.shape} for {batch} images: must be"
                " int [B] or multi-hot [B, C]"
            )
        return labels

    def _values(self, pairs: similarity.Pairs) -> tf.Tensor:
        """The loss of each anchor, [A]; 0 where it has no positive."""
        raise TypeError(f"{type(self).__name__} defines no _values")
