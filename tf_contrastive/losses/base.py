"""Base classes of the losses: the call, its checks and the reduction."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.config import loss as declared
from tf_contrastive.losses import matrix_products, similarity

# The losses [A] of all anchors, or the `Rows` that compute them.
Losses = Any


class Inputs(NamedTuple):
    """The arguments of a loss, see `ContrastiveLoss.__call__`."""

    projections: tf.Tensor
    labels: tf.Tensor | None
    seed: tf.Tensor | None
    small_views: int


class ContrastiveLoss(declared.LossDeclaration):
    """A loss over the embeddings of the global batch.

    In a replica, a call returns replicas * (sum over the local anchors) /
    (anchors counted in the global batch), whose mean over replicas is the
    global mean. A training step divides the loss by `num_replicas_in_sync` and
    sums gradients over replicas: the result is the gradient of the global mean.
    Anchors without a positive contribute 0 and are not counted. If none is
    counted, the loss is 0.

    A loss of your own is a subclass with one method, `call`, or a function of
    the same arguments (see `FunctionLoss`). Variables and Keras layers that are
    its attributes are trained with the encoder. The losses of the package also
    inherit from their declaration in `config.loss`, a dataclass of their
    options.
    """

    # The values of losses that do not have the option.
    temperature: Any = None
    normalize: bool = True
    reduction: str = "mean"
    block_size: int | None = None
    similarity_products: str = "auto"

    # What computes is compared by identity, unlike declarations.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @tf.autograph.experimental.do_not_convert
    def __call__(
        self,
        projections: tf.Tensor,
        labels: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
        *,
        small_views: int = 0,
    ) -> tf.Tensor:
        """Computes the loss over the global batch, float32 [].

        Args:
          projections: [B, V, P] of this replica, any floating dtype.
          labels: int [B] or multi-hot [B, C], if the loss uses them.
          seed: int32 [2]; used by losses that draw random numbers.
          small_views: how many of the views, the last ones, are small; see
            `AnchorLoss`. Other losses treat all views alike.

        Raises:
          ValueError: for missing or misshapen arguments.
        """
        projections = check_projections(projections)
        inputs = Inputs(projections, labels, seed, small_views)
        return self._reduce(*self._anchor_losses(inputs))

    @tf.autograph.experimental.do_not_convert
    def call(
        self, projections: tf.Tensor, labels: tf.Tensor | None = None
    ) -> tf.Tensor:
        """The one method that a loss of your own has to write.

        It may leave out `labels`, and may take `seed`, int32 [2].

        Args:
          projections: float [B, V, P] of this replica; `global_batch` has those
            of all replicas.
          labels: int [B] or multi-hot [B, C], or None for data without labels.
            With the class variable `needs_labels = True` it is never None.

        Returns:
          The loss of each view, [B, V], or of each image, [B] or [B, 1], of
          which the mean over the global batch is taken; or this replica's loss,
          [], of which the mean over replicas is taken.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no method call(self, projections,"
            " labels): write one that returns a loss [B, V], or []"
        )

    def per_anchor(
        self,
        projections: tf.Tensor,
        labels: tf.Tensor | None = None,
        *,
        small_views: int = 0,
    ) -> tf.Tensor:
        """Computes the unscaled loss of each local anchor, float32 [B, V].

        Views that are not anchors have 0. Arguments are those of a call.
        """
        projections = check_projections(projections)
        inputs = Inputs(projections, labels, None, small_views)
        losses, counted = self._anchor_losses(inputs)
        if counted.shape == []:
            raise TypeError(f"{type(self).__name__} has no loss for each view")
        values = losses if tf.is_tensor(losses) else losses.values()
        values = tf.where(counted, values, 0.0)
        batch, views = tf.unstack(tf.shape(projections)[:2])
        values = tf.reshape(values, [batch, -1])
        missing = views - tf.shape(values)[1]
        return tf.pad(values, [[0, 0], [0, missing]])

    def get_config(self) -> dict[str, Any]:
        """Returns all constructor arguments, which are attributes, too."""
        names = inspect.signature(type(self)).parameters
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ContrastiveLoss":
        """Makes the loss that `get_config` describes."""
        return cls(**config)

    def _anchor_losses(self, inputs: Inputs) -> tuple[Losses, tf.Tensor]:
        """Returns each anchor's loss; bool [A], which anchors are counted.

        Both are [] for a loss of the whole replica.
        """
        projections, labels, seed, _ = inputs
        if self.needs_labels or labels is not None:
            labels = check_labels(self._title, labels, projections)
        _, *others = declared.function_inputs(self.call)["inputs"]
        further = [seed if name == "seed" else labels for name in others]
        losses = distribution.with_autograph(self.call)(projections, *further)
        try:
            losses = tf.cast(losses, tf.float32)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self._title} returned {type(losses).__name__}: must be a"
                " tensor"
            ) from error
        images, views = projections.shape[:2]
        shapes = [[], [images], *([images, v + 1] for v in range(views))]
        if losses.shape.rank is None or not any(
            losses.shape.is_compatible_with(shape) for shape in shapes
        ):
            raise ValueError(
                f"{self._title} returned a tensor of shape {losses.shape}: must"
                f" be a loss for each view, {projections.shape[:2]}, for each"
                f" image, [{images}], or []"
            )
        if losses.shape.rank:
            losses = tf.reshape(losses, [-1])
        return losses, tf.ones_like(losses, tf.bool)

    @property
    def _title(self) -> str:
        return type(self).__name__

    def _reduce(self, losses: Losses, counted: tf.Tensor) -> tf.Tensor:
        """Reduces [A] to this replica's loss, as the class describes."""
        counted = tf.cast(counted, tf.float32)
        weights = counted * distribution.num_replicas()
        if self.reduction == "mean":
            total = distribution.cross_replica_sum(tf.reduce_sum(counted))
            weights /= tf.maximum(total, 1.0)
        if tf.is_tensor(losses):
            return tf.reduce_sum(weights * losses)
        return losses.total(weights)

    def _checked_labels(self, inputs: Inputs) -> tf.Tensor | None:
        """Returns the labels, or None if the loss ignores them."""
        if not self.needs_labels:
            return None
        return check_labels(self._title, inputs.labels, inputs.projections)


class AnchorLoss(declared.Pairwise, ContrastiveLoss):
    """A mean over anchors, each compared with the global batch's embeddings.

    Every loss over anchors has these options, and others have some of them.
    `temperature`, above 0, always divides similarities.

    With `small_views` (multi-crop, Caron et al. 2020, section 2.3) the anchors
    are all views of the global batch, and the candidates, which are an anchor's
    positives and negatives, its large views. So every view is compared with
    large ones, no view with small ones, and the loss is the mean over all
    anchors. Where a loss asks for an anchor's own view (N-pairs), small view s
    takes the place of large view s modulo their number.

    Args:
      normalize: whether projections are l2-normalised first; False: raw dot
        products.
      reduction: "mean" over the counted anchors of the global batch, or their
        "sum", as Khosla et al. 2020 print SupCon (Eq. 19).
      block_size: anchors compared at a time, which changes speed and memory
        only; None: automatic.
      similarity_products: precision of the matrix products on devices that
        round float32 factors. "plain": that of the device; "split": nearly
        float32, by three products; "auto": split on TPUs, and on GPUs with
        TF32.
    """

    def _anchor_losses(self, inputs: Inputs) -> tuple[Losses, tf.Tensor]:
        batch = self._gather(inputs)
        return self._anchor_losses_of(batch), self._counted(batch)

    def _gather(self, inputs: Inputs) -> similarity.Batch:
        return similarity.gather(
            inputs.projections,
            self._checked_labels(inputs),
            normalize=self.normalize,
            split=matrix_products.use_split(self.similarity_products),
            unlabelled=self.allows_unlabelled,
            small_views=inputs.small_views,
            block_size=self.block_size,
        )

    def _anchor_losses_of(self, batch: similarity.Batch) -> Losses:
        """Returns the loss of each anchor."""
        raise NotImplementedError

    def _counted(self, batch: similarity.Batch) -> tf.Tensor:
        """Returns whether each anchor is counted, bool [A]."""
        return similarity.num_positives(batch) > 0

    def _rows(
        self,
        function: Callable[[similarity.Block], tf.Tensor],
        batch: similarity.Batch,
        negatives: str = "all_views",
    ) -> similarity.Rows | similarity.PerView:
        """Applies `function`, block -> [R], to each anchor's row.

        Similarities of the block are divided by the temperature, if any. With
        `negatives="other_view"`, candidates are those of an anchor's other
        view.
        """
        if self.temperature:
            # Of the embeddings, which are far fewer than the similarities.
            scaled = batch.anchors.embeddings / self.temperature
            anchors = batch.anchors._replace(embeddings=scaled)
            batch = batch._replace(anchors=anchors)
        if negatives == "all_views":
            return similarity.Rows(function, batch)
        if (batch.num_views, batch.small_views) != (2, 0):
            raise ValueError(
                "negatives='other_view' compares two views, but the projections"
                f" have {batch.num_views} and {batch.small_views} small ones:"
                " pass [B, 2, P]"
            )
        pairs = [
            batch.of_view(view)._replace(
                candidates=batch.candidates.of_view(1 - view, 2)
            )
            for view in (0, 1)
        ]
        return similarity.PerView(
            [similarity.Rows(function, pair) for pair in pairs]
        )


def check_projections(projections: tf.Tensor) -> tf.Tensor:
    """Returns `projections` as a tensor; they must be floating [B, V, P]."""
    projections = tf.convert_to_tensor(projections)
    if projections.shape.rank != 3 or not projections.dtype.is_floating:
        raise ValueError(
            f"projections of shape {projections.shape} and type"
            f" {projections.dtype.name}: must be floating [B, V, P]"
            " (images, views per image, projection size)"
        )
    if not projections.shape[1:].is_fully_defined():
        raise ValueError(
            f"projections of shape {projections.shape}: the number of views and"
            " their size must be known, such as by tf.ensure_shape(projections,"
            " [None, V, P])"
        )
    return projections


def check_labels(
    user: str, labels: tf.Tensor | None, projections: tf.Tensor
) -> tf.Tensor:
    """Returns `labels` as a tensor; they must be int [B] or multi-hot [B, C].

    `user` is what needs them, for messages.
    """
    if labels is None:
        raise ValueError(f"{user} needs labels: int [B] or multi-hot [B, C]")
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
