"""Losses of your own: functions, and what they need of the other replicas."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.base import callables
from tf_contrastive.config import loss as declared
from tf_contrastive.losses import labels as label_checks
from tf_contrastive.losses.base import (
    ContrastiveLoss,
    check_labels,
    check_projections,
)


class GlobalBatch(NamedTuple):
    """The batch of all replicas, in their order."""

    projections: tf.Tensor  # float32 [G, V, P]
    labels: tf.Tensor | None  # [G] or [G, C]
    first: tf.Tensor  # This replica's first image among them, int32 [].


@tf.autograph.experimental.do_not_convert
def global_batch(
    projections: tf.Tensor, labels: tf.Tensor | None = None
) -> GlobalBatch:
    """Gathers the batch of all replicas, for the negatives of a loss.

    Gradients pass through it: those of a loss over the replica's own images
    are those of the loss over the global batch. Projections are [B, V, P] of
    this replica, of the same shape on each; labels int [B] or multi-hot [B, C].
    """
    projections = check_projections(projections)
    concat = distribution.cross_replica_concat
    if labels is not None:
        labels = check_labels("global_batch", labels, projections)
        projections = label_checks.noticed(projections, labels)
        # Numbers that all devices sum.
        ids = labels.shape.rank == 1
        labels = concat(tf.cast(labels, tf.int32 if ids else tf.float32))
    return GlobalBatch(
        concat(tf.cast(projections, tf.float32)),
        labels,
        distribution.replica_id() * tf.shape(projections)[0],
    )


class FunctionLoss(ContrastiveLoss):
    """A loss that a function of your own computes.

    Args:
      function: (projections [B, V, P]) or (projections, labels) -> the loss of
        each view, [B, V], or of this replica, [], as of `ContrastiveLoss.call`.
        Labels with a default are passed where there are any. A parameter
        `seed` gets int32 [2], the same on all replicas. A Keras layer of these
        is trained with the encoder.
      **options: its other arguments.

    Raises:
      UserError: a ValueError, for another form, or an unknown option.

    Examples:
      >>> def gap(projections, weight=1.0):  # Squared distance of two views.
      ...     first, second = tf.unstack(projections, axis=1)
      ...     return weight * tf.reduce_mean((first - second) ** 2)
      >>> z = tf.constant([[[0.0, 1.0], [0.0, 3.0]]])  # [B, V, P]
      >>> print(f"{FunctionLoss(gap, weight=0.5)(z):.4f}")
      1.0000
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        takes = declared.function_inputs(function)
        callables.options_of(function, takes["inputs"], options)
        self.function, self.options = function, options
        self.needs_labels = takes["needs_labels"]
        self._inputs = takes["inputs"]

    @tf.autograph.experimental.do_not_convert
    def call(
        self,
        projections: tf.Tensor,
        labels: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Calls the function."""
        _, *others = self._inputs
        further = {name: seed if name == "seed" else labels for name in others}
        function = distribution.with_autograph(self.function)
        return function(projections, **further, **self.options)

    @property
    def _title(self) -> str:
        return callables.name_of(self.function)

    def get_config(self) -> dict[str, Any]:
        """Returns the function and its options."""
        return {"function": self.function, **self.options}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "FunctionLoss":
        """Makes the loss of `get_config`, also as Keras saves it."""
        function = config["function"]
        if isinstance(function, dict):
            function = tf.keras.saving.deserialize_keras_object(function)
        return cls(**{**config, "function": function})


def of_part(part: Any, **options: Any) -> ContrastiveLoss:
    """Makes a loss of a function, or of a subclass of `ContrastiveLoss`."""
    if isinstance(part, type) and issubclass(part, ContrastiveLoss):
        callables.options_of(part, (), options)
        return part(**options)
    return FunctionLoss(part, **options)


def get(loss: Any) -> ContrastiveLoss:
    """Returns a loss; a function of your own becomes one."""
    return loss if isinstance(loss, ContrastiveLoss) else FunctionLoss(loss)


class Parts(tf.keras.layers.Layer):
    """What a loss has as attributes: variables and layers, trained with it."""

    def __init__(self, parts: dict[str, Any]) -> None:
        super().__init__(name="loss")
        self.parts = parts
        self.built = True

    def call(
        self,
        loss: ContrastiveLoss,
        *inputs: Any,
        training: bool,
        **options: Any,
    ) -> Any:
        """Calls the loss, whose layers learn of `training` by Keras."""
        del training
        return loss(*inputs, **options)

    @property
    def complete(self) -> bool:
        """Whether all layers have their variables."""
        layer = tf.keras.layers.Layer
        return all(x.built for x in self.submodules if isinstance(x, layer))


def parts(loss: ContrastiveLoss, size: int) -> Parts | None:
    """Returns the variables and layers of a loss on projections of a size."""
    owner = getattr(loss, "function", loss)
    owner = getattr(owner, "__self__", owner)  # Of a method.
    attributes = getattr(owner, "__dict__", {})
    if isinstance(owner, tf.Module):
        attributes = {"function": owner}
    held = {
        name: value
        for name, value in attributes.items()
        if any(
            isinstance(x, tf.Variable | tf.Module)
            for x in tf.nest.flatten(value)
        )
    }
    if not held:
        return None
    found = Parts(held)
    if not found.complete:
        # As in a first step, since layers are built by a call. Of other views
        # or labels the first batch builds them.
        two = tf.zeros([2], tf.int32)
        with contextlib.suppress(Exception):
            loss(tf.zeros([2, 2, size]), two, two)
    return found
