"""Histograms of one fixed batch of views, measured by a copy of the model."""

import math

import numpy as np
import tensorflow as tf

from tf_contrastive import model as models
from tf_contrastive import optimizers
from tf_contrastive.checkpoints import networks
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.losses import metrics
from tf_contrastive.tensorboard import scalars

# Leaves the accelerators' memory to the training step.
DEVICE = "CPU:0"
# Limits of the batch: 32 views of 224 x 224. The gradient keeps the activations
# of all of them.
_MAX_VIEWS = 128
_MAX_PIXELS = 32 * 224**2
# Limit of the pairs in one histogram.
_MAX_PAIRS = 5_000


class HostCopy:
    """A float32 copy of encoder and head on the CPU, outside of any strategy.

    Reading the model itself would need all workers, because each replica has
    its own moving statistics. The copy has the values of this process's first
    replica. Make it outside of the strategy's scope and before the model: it
    draws initial weights.

    Attributes:
      encoder: images [N, S, S, K] -> h [N, D].
      head: h -> z [N, P].
    """

    def __init__(self, run: Pretrain, num_classes: int | None) -> None:
        with tf.device(DEVICE), networks.precision("float32"):
            self.encoder = networks.build_encoder(run, synchronized=False)
            self.head = networks.build_head(run, num_classes)
            self.head(tf.keras.Input(self.encoder.output_shape[1:]))

    def update(self, model: models.ContrastiveModel) -> None:
        """Copies the present values of a model's variables."""
        local_results = model.distribute_strategy.experimental_local_results
        for copy, original in (
            (self.encoder, model.encoder),
            (self.head, model.projection_head),
        ):
            for variable, value in zip(
                copy.variables, original.variables, strict=True
            ):
                variable.assign(local_results(value)[0])


def images_per_batch(image_size: int, views: int) -> int:
    """Returns how many images the batch for `Histograms` should have."""
    return max(min(_MAX_VIEWS, _MAX_PIXELS // image_size**2) // views, 2)


class Histograms:
    """Measures similarities, norms and trust ratios of a fixed batch of views.

    All are measured in inference mode, in which BatchNormalization needs no
    other replica: the gradient for the trust ratios differs in this from a
    training step's. They are measured for LARS only, and not with the loss
    "moco", whose keys come from another encoder. Make it outside of the
    strategy's scope: the constructor traces the graph.

    Args:
      copy: encoder and head that embed the batch.
      model: compiled; the original of `copy`.
      views: float32 [B, V, S, S, K] in [0, 1].
      labels: int [B], multi-hot [B, C], or None.
    """

    def __init__(
        self,
        copy: HostCopy,
        model: models.ContrastiveModel,
        views: tf.Tensor,
        labels: tf.Tensor | None,
    ) -> None:
        self._copy, self._model = copy, model
        # A LossScaleOptimizer wraps it under mixed_float16.
        optimizer = model.optimizer
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        self._lars: optimizers.LARS | None = None
        if isinstance(optimizer, optimizers.LARS) and not model.key_branch:
            self._lars = optimizer
        with tf.device(DEVICE):
            self._views = tf.identity(views)
            self._labels = None if labels is None else tf.identity(labels)
            self._pairs = _pairs(
                views.shape[:2],
                labels if model.contrastive_loss.needs_labels else None,
            )
            self._function = tf.function(
                self._measure, autograph=False
            ).get_concrete_function()

    def measure(self) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Measures the batch with the model's present weights.

        Returns:
          (tag -> values float32 [n] of a histogram, tag -> scalar).
        """
        self._copy.update(self._model)
        tensors, numbers, gradients = self._function()
        histograms = {tag: tensor.numpy() for tag, tensor in tensors.items()}
        if self._lars:
            ratios = [
                self._lars.trust_ratio(gradient, variable).numpy()
                for gradient, variable in zip(
                    gradients, self._model.pretrained_variables, strict=True
                )
                if self._lars.is_adapted(variable)
            ]
            if ratios:
                histograms["optimizer/log10_trust_ratio"] = np.log10(
                    np.array(ratios, np.float32)
                )
        return histograms, {tag: float(n) for tag, n in numbers.items()}

    def _measure(
        self,
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor], list[tf.Tensor]]:
        """Returns (histograms, scalars, gradients)."""
        count = self._views.shape[1]
        flat = tf.reshape(self._views, [-1, *self._views.shape[2:]])
        with tf.GradientTape() as tape:
            features = self._copy.encoder(flat, training=False)  # [B * V, D]
            projections = self._copy.head(features, training=False)
            if self._lars:
                loss = self._model.contrastive_loss(
                    tf.reshape(projections, [-1, count, projections.shape[-1]]),
                    self._labels,
                    tf.zeros([2], tf.int32),
                )
        gradients = []
        if self._lars:
            gradients = tape.gradient(
                loss,
                # In the order of the model's `pretrained_variables`.
                [
                    *self._copy.encoder.trainable_variables,
                    *self._copy.head.trainable_variables,
                ],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
        if self._model.contrastive_loss.normalize:
            projections = tf.math.l2_normalize(projections, axis=-1)
        similarities = tf.matmul(projections, projections, transpose_b=True)
        histograms = {
            f"similarity/{name}": tf.gather_nd(similarities, pairs)
            for name, pairs in self._pairs.items()
            if len(pairs)
        }
        histograms["similarity/feature_norms"] = tf.norm(features, axis=-1)
        # The standard deviation as in `metrics.contrastive_task`.
        unit = tf.math.l2_normalize(features, axis=-1)
        centre = tf.reduce_mean(unit, axis=0)
        numbers = {
            scalars.FEATURE_STD: tf.sqrt(
                tf.maximum(1.0 - tf.reduce_sum(centre**2), 0.0)
            ),
            scalars.FEATURE_RANK: metrics.effective_rank(features),
        }
        return histograms, numbers, gradients


def _pairs(
    shape: tuple[int, int], labels: tf.Tensor | None
) -> dict[str, np.ndarray]:
    """Returns the "positives" and "negatives": pairs of views, int [n, 2]."""
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
    return {
        name: part[:: max(math.ceil(len(part) / _MAX_PAIRS), 1)]
        for name, part in (
            ("positives", pairs[positive]),
            ("negatives", pairs[~positive]),
        )
    }
