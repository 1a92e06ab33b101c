"""The plain step of contrastive learning (Chen et al. 2020, algorithm 1).

Whatever `ContrastiveModel` can do beyond it is a class in a module of its own,
which overrides methods of `ContrastiveStep`.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive.distribution import do_not_convert_self
from tf_contrastive.losses import metrics, similarity
from tf_contrastive.model.running_means import RunningMeans
from tf_contrastive.views.wire import from_wire

Results = dict[str, tf.Tensor]

# Metric of `losses.metrics` -> its name in logs and TensorBoard.
_TASK_METRICS = {
    name: f"contrastive_{name}" if name in ("accuracy", "entropy") else name
    for name in metrics.NAMES
}


class Batch(NamedTuple):
    """One replica's part of a batch."""

    views: tf.Tensor  # float32 [B, V, H, W, K] in [0, 1]
    labels: tf.Tensor | None  # int [B], or multi-hot [B, C]
    # What losses compare with: the labels, or class fractions float32 [B, V, C]
    # of mixed views.
    targets: tf.Tensor | None
    # int32 [B, V, 2], for random operations in the step.
    seeds: tf.Tensor | None = None
    # Projections [B, 1, P] of further views by another encoder.
    keys: tf.Tensor | None = None


class ContrastiveStep(tf.keras.Model):
    """Trains an encoder and its projection head; see `ContrastiveModel`."""

    def __init__(
        self,
        encoder: tf.keras.Model,
        projection_head: tf.keras.layers.Layer,
        loss: Any,
        *,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.encoder = encoder
        self.projection_head = projection_head
        self.contrastive_loss = loss
        self.seed = seed
        # All variables are created now, since a checkpoint restores by value.
        projection_head(tf.keras.Input(encoder.output_shape[1:]))
        self.built = True
        if encoder.losses or projection_head.losses:
            raise ValueError(
                "the encoder or the projection head has regularizers, which"
                " this model does not train by: use the optimizer's"
                " weight_decay"
            )
        self.means = RunningMeans("loss", *_TASK_METRICS.values())

    def compile(self, optimizer: Any, **kwargs: Any) -> None:
        """Sets the optimizer; the rest is `tf.keras.Model.compile`'s."""
        kwargs.setdefault("jit_compile", False)
        super().compile(optimizer=optimizer, **kwargs)
        self.optimizer.build(self.pretrained_variables)

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Encodes images [N, H, W, K] in [0, 1] to features h [N, D]."""
        return self.encoder(images, training=training)

    @do_not_convert_self
    def train_step(self, data: Any) -> Results:
        """Trains on (views [B, V, H, W, K], labels [B]), or on views alone."""
        return self.means.read(self.learn(self.batch(data, training=True)))

    @do_not_convert_self
    def test_step(self, data: Any) -> Results:
        """Measures losses and metrics, and updates nothing."""
        return self.means.read(self.score(self.batch(data, training=False)))

    def batch(self, data: Any, training: bool) -> Batch:
        """Unpacks the data of a step; views may be uint8, in 0..255.

        Raises:
          ValueError: for views of another rank than 5, or sample weights.
        """
        del training
        views, labels, weights = tf.keras.utils.unpack_x_y_sample_weight(data)
        if weights is not None:
            raise ValueError(
                "sample_weight and class_weight have no meaning in a loss that"
                " compares images: pass (views, labels), or views"
            )
        views, seeds = views if isinstance(views, tuple) else (views, None)
        if views.shape.rank != 5:
            raise ValueError(
                f"views of shape {views.shape}: must be [B, V, H, W, K]"
                " (images, views per image, height, width, channels)"
            )
        return Batch(from_wire(views), labels, labels, seeds)

    def learn(self, batch: Batch) -> list[str]:
        """One training step; returns the names of the means it adds to."""
        gradients, results, features = self.gradients(batch)
        # Ends a walk over the graph, see `distribution`.
        gradients = [tf.stop_gradient(g) for g in gradients]
        self.update(gradients, results)
        return self.record(results, batch, features)

    def score(self, batch: Batch) -> list[str]:
        """One test step; returns the names of the means it adds to."""
        features, projections = self.encode(batch.views, training=False)
        # Always with the draws of step 0, so that epochs compare.
        results = self.contrast(projections, batch, step=0)
        results |= self.classify(features, batch, training=False)
        return self.record(results, batch, None)

    def gradients(
        self, batch: Batch
    ) -> tuple[list[tf.Tensor], Results, tf.Tensor]:
        """Gradients of `trained_variables`, to be summed over replicas.

        And losses and metrics of this replica, and features [B, V, D].
        """
        with tf.GradientTape() as tape:
            features, projections = self.encode(batch.views, training=True)
            step = self.optimizer.iterations
            results = self.contrast(projections, batch, step)
            results |= self.classify(features, batch, training=True)
            objective = self.objective(results)
        variables = self.trained_variables(batch)
        gradients = tape.gradient(
            objective,
            variables,
            # Of variables that the views do not reach.
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return gradients, results, features

    def encode(
        self, views: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Views [B, V, H, W, K] to h [B, V, D] and z [B, V, P]."""
        count = views.shape[1]
        images = tf.reshape(views, [-1, *views.shape[2:]])  # [B * V, H, W, K]
        h = self.encoder(images, training=training)  # [B * V, D]
        z = self.projection_head(h, training=training)  # [B * V, P]
        return (
            tf.reshape(h, [-1, count, h.shape[-1]]),
            tf.reshape(z, [-1, count, z.shape[-1]]),
        )

    def contrast(
        self, projections: tf.Tensor, batch: Batch, step: tf.Tensor | int
    ) -> Results:
        """The loss of projections [B, V, P], and metrics of its task.

        The random numbers of a loss follow from `step`.
        """
        seed = tf.stack([self.seed, tf.cast(step, tf.int32)])
        with similarity.share_gathered():
            loss = self.contrastive_loss(
                projections, batch.targets, seed, **self.loss_arguments(batch)
            )
            if batch.keys is not None:
                projections = tf.concat([projections, batch.keys], axis=1)
            task = metrics.contrastive_task(
                projections,
                batch.labels if self.contrastive_loss.needs_labels else None,
                temperature=self.contrastive_loss.temperature,
                normalize=self.contrastive_loss.normalize,
            )
        named = {_TASK_METRICS[name]: value for name, value in task.items()}
        return {"loss": loss, **named}

    def loss_arguments(self, batch: Batch) -> dict[str, tf.Tensor]:
        """What the loss takes in addition to projections, targets and seed."""
        del batch
        return {}

    def classify(
        self, features: tf.Tensor, batch: Batch, training: bool
    ) -> Results:
        """Losses and metrics of classifiers on features [B, V, D]."""
        del features, batch, training
        return {}

    def objective(self, results: Results) -> tf.Tensor:
        """The sum of the losses in `results`, which is differentiated.

        The global loss is the mean of the replicas' losses, and gradients are
        summed over replicas.
        """
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        losses = [x for name, x in results.items() if name.endswith("loss")]
        return tf.add_n([loss / replicas for loss in losses])

    def update(self, gradients: list[tf.Tensor], results: Results) -> None:
        """Applies the gradients of `trained_variables`."""
        del results
        variables = self.pretrained_variables
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def record(
        self, results: Results, batch: Batch, features: tf.Tensor | None
    ) -> list[str]:
        """Adds results, float32 [], to the running means; returns the names.

        The features are [B, V, D] of a training step; None: of a test step.
        """
        del batch, features
        return self.means.update(results)

    @property
    def metrics(self) -> list[tf.keras.metrics.Metric]:
        """The running means, which `fit` resets at every epoch."""
        return self.means.metrics

    @property
    def pretrained_variables(self) -> list[tf.Variable]:
        """Trainable variables of the encoder, then of the projection head."""
        return (
            self.encoder.trainable_variables
            + self.projection_head.trainable_variables
        )

    def trained_variables(self, batch: Batch) -> list[tf.Variable]:
        """Variables that a step on this batch trains."""
        del batch
        return self.pretrained_variables
