"""Histograms of one fixed batch of views, as the encoder sees it by and by."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import model as models
from tf_contrastive import optimizers
from tf_contrastive.losses import metrics
from tf_contrastive.tensorboard import scalars
from tf_contrastive.tensorboard.local_copy import DEVICE, LocalCopy

# Views of the batch, at most, and their pixels: 32 views of 224 x 224. The
# gradient keeps the activations of all of them.
_VIEWS = 128
_PIXELS = 32 * 224**2
# Pairs of which a histogram is made, at most.
_PAIRS = 5_000


class Measured(NamedTuple):
    """What was measured of the batch.

    Attributes:
      histograms: tag -> float32 [n].
      scalars: tag -> number.
    """

    histograms: dict[str, np.ndarray]
    scalars: dict[str, float]


def images_of(image_size: int, views: int) -> int:
    """How many images to take for a batch."""
    room = min(_VIEWS, _PIXELS // image_size**2)
    return max(room // views, 2)


class Distributions:
    """Measures similarities, norms and trust ratios of the same views.

    All are of inference mode, in which BatchNormalization needs no other
    replica: also the gradient for the trust ratios, which differs from that of
    a step in this, and in that it is of fewer images. They are measured for
    LARS alone, and not with the loss "moco", whose keys another encoder makes.

    Make it outside of the strategy's scope: its graph is made here, and may
    then be called from callbacks.

    Args:
      copy: with whose encoder and head to look at the batch.
      model: compiled; what `copy` follows.
      views: float32 [B, V, S, S, K] in [0, 1].
      labels: int [B], multi-hot [B, C], or None.
    """

    def __init__(
        self,
        copy: LocalCopy,
        model: models.ContrastiveModel,
        views: tf.Tensor,
        labels: tf.Tensor | None,
    ) -> None:
        self._copy, self._model = copy, model
        # Behind it where steps that are not finite are passed over.
        optimizer = model.optimizer
        self._lars = getattr(optimizer, "inner_optimizer", optimizer)
        if not isinstance(self._lars, optimizers.LARS) or model.key_branch:
            self._lars = None
        with tf.device(DEVICE):
            self._views = tf.identity(views)
            self._labels = None if labels is None else tf.identity(labels)
            self._positives, self._negatives = _pairs(
                views.shape[:2],
                labels if model.contrastive_loss.needs_labels else None,
            )
            self._look: Callable[[], dict] = tf.function(
                self._of_batch, autograph=False
            ).get_concrete_function()

    def measure(self) -> Measured:
        """Measures the batch with the values that the model has now."""
        self._copy.follow(self._model)
        found = self._look()
        gradients = found.pop("gradients", None)
        numbers = {
            tag: float(found.pop(tag).numpy())
            for tag in (scalars.FEATURE_STD, scalars.FEATURE_RANK)
        }
        histograms = {tag: value.numpy() for tag, value in found.items()}
        if gradients is not None:
            ratios = self._trust_ratios(gradients)
            if len(ratios):
                histograms["optimizer/log10_trust_ratio"] = np.log10(ratios)
        return Measured(histograms, numbers)

    def _of_batch(self) -> dict:
        count = self._views.shape[1]
        flat = tf.reshape(self._views, [-1, *self._views.shape[2:]])
        with tf.GradientTape() as tape:
            features = self._copy.encoder(flat, training=False)  # [B * V, D]
            projections = self._copy.head(features, training=False)
            if self._lars:
                shape = [-1, count, projections.shape[-1]]
                loss = self._model.contrastive_loss(
                    tf.reshape(projections, shape),
                    self._labels,
                    tf.zeros([2], tf.int32),
                )
        found = {}
        if self._lars:
            found["gradients"] = tape.gradient(
                loss,
                self._copy.trainable_variables,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
        if self._model.contrastive_loss.normalize:
            projections = tf.math.l2_normalize(projections, axis=-1)
        similarities = tf.matmul(projections, projections, transpose_b=True)
        for name, pairs in (
            ("positives", self._positives),
            ("negatives", self._negatives),
        ):
            if len(pairs):
                values = tf.gather_nd(similarities, pairs)
                found[f"similarity/{name}"] = values
        found["similarity/feature_norms"] = tf.norm(features, axis=-1)
        unit = tf.math.l2_normalize(features, axis=-1)
        centre = tf.reduce_mean(unit, axis=0)
        # As `metrics.contrastive_task` has it of the projections.
        found[scalars.FEATURE_STD] = tf.sqrt(
            tf.maximum(1.0 - tf.reduce_sum(centre**2), 0.0)
        )
        found[scalars.FEATURE_RANK] = metrics.effective_rank(features)
        return found

    def _trust_ratios(self, gradients: list[tf.Tensor]) -> np.ndarray:
        """The trust of each variable that is adapted, float32 [n]."""
        variables = self._model.pretrained_variables
        return np.array(
            [
                self._lars.trust_ratio(gradient, variable).numpy()
                for gradient, variable in zip(gradients, variables, strict=True)
                if self._lars.is_adapted(variable)
            ],
            np.float32,
        )


def _pairs(
    shape: tuple[int, int], labels: tf.Tensor | None
) -> tuple[np.ndarray, np.ndarray]:
    """Positive and negative pairs of views, int [n, 2], each pair once."""
    images, views = shape
    of_image = np.repeat(np.arange(images), views)
    same = of_image[:, np.newaxis] == of_image
    if labels is not None:
        of_view = np.asarray(labels)[of_image]
        if of_view.ndim == 2:
            same |= (of_view @ of_view.T) > 0
        else:
            same |= of_view[:, np.newaxis] == of_view
    pairs = np.stack(np.triu_indices(len(of_image), 1), axis=1)
    positive = same[pairs[:, 0], pairs[:, 1]]
    return _spread(pairs[positive]), _spread(pairs[~positive])


def _spread(pairs: np.ndarray) -> np.ndarray:
    """At most `_PAIRS` of them, evenly."""
    return pairs[:: max(math.ceil(len(pairs) / _PAIRS), 1)]
