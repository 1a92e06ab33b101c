"""One fixed batch of views, and its histograms by a copy of the model."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import model as models
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.views import NoAugmentation, Views, resolve_views
from tf_contrastive.losses import contrastive_metrics
from tf_contrastive.model import networks
from tf_contrastive.tensorboard import scalars

# Images whose views are shown.
GRID_IMAGES = 8
# Leaves the accelerators' memory to the training step.
DEVICE = "CPU:0"
# Limits of the batch: 32 views of 224 x 224.
_MAX_VIEWS = 128
_MAX_PIXELS = 32 * 224**2
# Encoded examples among which those that are shown are chosen.
_SHUFFLED_EXAMPLES = 1024
# Limit of the pairs in one histogram.
_MAX_PAIRS = 5_000


class HostCopy:
    """A float32 copy of encoder and head on the CPU, outside of any strategy.

    Reading the model itself would need all workers, because each replica has
    its own moving statistics; the copy has those of this process's first one.
    Make it outside of the strategy's scope and before the model: it draws
    initial weights.
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
    """Measures similarities and norms of a fixed batch of views, in inference.

    Args:
      copy: encoder and head that embed the batch.
      model: the original of `copy`.
      examples: returns (views float32 [B, V, S, S, K] in [0, 1]; labels int
        [B], multi-hot [B, C], or None); called once, when it is first measured.
    """

    def __init__(
        self,
        copy: HostCopy,
        model: models.ContrastiveModel,
        examples: Callable[[], tuple[tf.Tensor, tf.Tensor | None]],
    ) -> None:
        self._copy, self._model, self._examples = copy, model, examples

    @functools.cached_property
    def _batch(self) -> tuple[tf.Tensor, dict[str, np.ndarray]]:
        """The views [B * V, S, S, K] and their pairs."""
        views, labels = self._examples()
        needs_labels = self._model.contrastive_loss.needs_labels
        pairs = pairs_of_views(
            views.shape[:2], labels if needs_labels else None
        )
        with tf.device(DEVICE):
            return tf.reshape(views, [-1, *views.shape[2:]]), pairs

    def measure(self) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Returns (tag -> values of a histogram, tag -> scalar)."""
        views, all_pairs = self._batch
        self._copy.update(self._model)
        # Not a graph: tracing it takes longer than the few batches of a run.
        with tf.device(DEVICE):
            features = self._copy.encoder(views, training=False)
            projections = self._copy.head(features, training=False)
            if self._model.contrastive_loss.normalize:
                projections = tf.math.l2_normalize(projections, axis=-1)
            similarities = tf.matmul(projections, projections, transpose_b=True)
            histograms = {
                f"similarity/{name}": tf.gather_nd(similarities, pairs)
                for name, pairs in all_pairs.items()
                if len(pairs)
            }
            histograms["similarity/feature_norms"] = tf.norm(features, axis=-1)
            # Standard deviation, as in `contrastive_metrics.contrastive_task`.
            unit = tf.math.l2_normalize(features, axis=-1)
            centre = tf.reduce_mean(unit, axis=0)
            numbers = {
                scalars.FEATURE_STD: tf.sqrt(
                    tf.maximum(1.0 - tf.reduce_sum(centre**2), 0.0)
                ),
                scalars.FEATURE_RANK: contrastive_metrics.effective_rank(
                    features
                ),
            }
        return (
            {tag: values.numpy() for tag, values in histograms.items()},
            {tag: float(number) for tag, number in numbers.items()},
        )


def pairs_of_views(
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
            same |= (of_view[:, np.newaxis] == of_view) & (of_view >= 0)
    pairs = np.stack(np.triu_indices(len(of_image), 1), axis=1)
    positive = same[pairs[:, 0], pairs[:, 1]]
    return {
        name: part[:: max(math.ceil(len(part) / _MAX_PAIRS), 1)]
        for name, part in (
            ("positives", pairs[positive]),
            ("negatives", pairs[~positive]),
        )
    }


def views_of(run: Any) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Returns a small batch, not mixed: views [B, V, S, S, K], labels or None.

    `run` is a `train.PreparedRun`.
    """
    views, images = run.options.views, GRID_IMAGES
    if run.options.runtime.histograms_every_epochs:
        images = images_per_batch(views.side, views.views)
    buffer = run.options.data.shuffle_buffer
    few = run.with_options(
        augment_on="host",
        wire_dtype="float32",
        mixup_alpha=0.0,
        cutmix_alpha=0.0,
        small_views=0,
        batch_size=min(images, run.source.info.num_examples),
        sampler="shuffle",
        shuffle_buffer=min(buffer, _SHUFFLED_EXAMPLES),
        cache="none",
    )
    alone = dataclasses.replace(few, strategy=tf.distribute.get_strategy())
    first = next(iter(alone.batches()))
    return first if isinstance(first, tuple) else (first, None)


def originals_of(run: Any) -> tf.Tensor:
    """Returns the images of `views_of`, not augmented, [B, 1, S, S, K]."""
    plain = Views(policy=NoAugmentation(), views=1)
    side = run.options.views.side
    views = resolve_views(plain, run.source.info.name, side)
    options = dataclasses.replace(run.options, views=views)
    images, _ = views_of(dataclasses.replace(run, options=options))
    return images
