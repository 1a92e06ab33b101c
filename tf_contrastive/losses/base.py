"""What every contrastive loss shares: arguments, checks and the reduction."""

from typing import Any

import tensorflow as tf

from tf_contrastive import distribution, errors
from tf_contrastive.config.loss import REDUCTIONS
from tf_contrastive.losses import similarity

# (coefficient, values of each anchor [A] or the rows that give them)
Term = tuple[float, Any]


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
      block_size: anchors compared at a time; 0: as many as suit the batch. It
        changes speed and memory alone.
    """

    # Whether calling it without labels is an error.
    needs_labels = False

    def __init__(
        self,
        *,
        temperature: float | None = None,
        normalize: bool = True,
        reduction: str = "mean",
        block_size: int = 0,
    ) -> None:
        if temperature is not None and not temperature > 0:
            raise ValueError(f"temperature={temperature}: must be above 0")
        if block_size < 0:
            raise ValueError(
                f"block_size={block_size}: must be at least 1, or 0 for"
                " automatic"
            )
        check_choice("reduction", reduction, REDUCTIONS)
        self.temperature = temperature
        self.normalize = normalize
        self.reduction = reduction
        self.block_size = block_size

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
        batch = self._gather(projections, labels)
        return self._reduce(self._terms(batch), self._counted(batch))

    def per_anchor(
        self, projections: tf.Tensor, labels: tf.Tensor | None = None
    ) -> tf.Tensor:
        """The loss of each local anchor, unscaled, float32 [B, V].

        Args and errors are those of a call.
        """
        batch = self._gather(projections, labels)
        return self._spread(
            self._terms(batch), self._counted(batch), projections
        )

    def _gather(self, projections, labels) -> similarity.Batch:
        return similarity.gather(
            check_projections(projections),
            self._checked_labels(labels, projections),
            normalize=self.normalize,
        )

    def _checked_labels(self, labels, projections) -> tf.Tensor | None:
        if not self.needs_labels:
            return None
        if labels is None:
            raise ValueError(
                f"{type(self).__name__} needs labels: int [B] or multi-hot"
                " [B, C]"
            )
        labels = tf.convert_to_tensor(labels)
        images = projections.shape[:1]
        if (
            labels.shape.rank not in (1, 2)
            or not labels.shape[:1].is_compatible_with(images)
            or (labels.shape.rank == 1 and not labels.dtype.is_integer)
        ):
            raise ValueError(
                f"labels of shape {labels.shape} and type {labels.dtype.name}"
                f" for {images[0]} images: must be int [B] or multi-hot [B, C]"
            )
        return labels

    def _terms(self, batch: similarity.Batch) -> list[Term]:
        """What the loss of each anchor is the sum of."""
        raise TypeError(f"{type(self).__name__} defines no _terms")

    def _counted(self, batch: similarity.Batch) -> tf.Tensor:
        """Whether each anchor enters the mean, bool [A]."""
        return similarity.num_positives(batch) > 0

    def _reduce(self, terms: list[Term], counted: tf.Tensor) -> tf.Tensor:
        """The loss of this replica, of which the class speaks."""
        counted = tf.cast(counted, tf.float32)
        weights = counted * distribution.num_replicas()
        if self.reduction == "mean":
            total = distribution.cross_replica_sum(tf.reduce_sum(counted))
            weights /= tf.maximum(total, 1.0)
        return tf.add_n([_total(term, weights) for term in terms])

    def _spread(
        self, terms: list[Term], counted: tf.Tensor, projections: tf.Tensor
    ) -> tf.Tensor:
        """The terms' sum as [B, V]; 0 for views that are no anchors."""
        values = tf.add_n([_values(term) for term in terms])
        values = tf.where(counted, values, 0.0)
        batch, views = tf.unstack(tf.shape(projections)[:2])
        values = tf.reshape(values, [batch, -1])
        missing = views - tf.shape(values)[1]
        return tf.pad(values, [[0, 0], [0, missing]])


def _total(term: Term, weights: tf.Tensor) -> tf.Tensor:
    coefficient, values = term
    weights *= coefficient
    if tf.is_tensor(values):
        return tf.reduce_sum(weights * values)
    return values.total(weights)


def _values(term: Term) -> tf.Tensor:
    coefficient, values = term
    return coefficient * (values if tf.is_tensor(values) else values.values())


def check_projections(projections: tf.Tensor) -> tf.Tensor:
    """Raises `ValueError` for what is not floating [B, V, P]."""
    projections = tf.convert_to_tensor(projections)
    if projections.shape.rank != 3 or not projections.dtype.is_floating:
        raise ValueError(
            f"projections of shape {projections.shape} and type"
            f" {projections.dtype.name}: must be floating [B, V, P]"
            " (images, views per image, projection size)"
        )
    return projections


def check_choice(option: str, given: str, known: tuple[str, ...]) -> None:
    """Raises `ValueError` for a value that an option does not have."""
    if given not in known:
        raise errors.unknown(option, given, known)


def check_at_least(option: str, given: float, least: float) -> None:
    """Raises `ValueError` for a number below `least`."""
    if not given >= least:
        raise ValueError(f"{option}={given}: must be at least {least}")


def check_two_views(name: str, batch: similarity.Batch) -> None:
    """Raises `ValueError` unless every image has two views."""
    if batch.num_views != 2:
        raise ValueError(
            f"{name} compares two views, and the projections have"
            f" {batch.num_views}: give [B, 2, P]"
        )


def against_other_view(
    function, batch: similarity.Batch, block_size: int
) -> similarity.PerView:
    """Rows of each view's anchors against the candidates of the other view."""
    check_two_views("negatives='other_view'", batch)
    return similarity.PerView(
        [
            similarity.Rows(
                function,
                batch.anchors.of_view(view, 2),
                batch.candidates.of_view(1 - view, 2),
                block_size=block_size,
            )
            for view in (0, 1)
        ]
    )
