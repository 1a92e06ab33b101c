"""The plain step of contrastive learning (Chen et al. 2020, algorithm 1).

Whatever `ContrastiveModel` can do beyond it is a feature: a subclass of
`ContrastiveStep` in a module of its own, which knows no other feature. It
overrides methods and calls `super()`: those of the step, and those that say
what the feature brings to the constructor (`arguments`, `arguments_of_run`), to
`compile` (`further_optimizers`), to checkpoints (`checkpointed`) and to a
replica's memory (`images_at_once`).
"""

import contextlib
import functools
import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from tf_contrastive.base import callables, errors
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.distribution import do_not_convert_self
from tf_contrastive.distribution.batch_normalization import synchronize
from tf_contrastive.distribution.joined import in_order
from tf_contrastive.encoders import vit
from tf_contrastive.losses import contrastive_metrics, similarity
from tf_contrastive.losses import labels as label_checks
from tf_contrastive.losses import own as losses
from tf_contrastive.model.running_means import RunningMeans
from tf_contrastive.views.host_and_device import from_wire

Results = dict[str, tf.Tensor]
# Loss -> gradients of what it trains.
Gradients = dict[str, list[tf.Tensor]]
Schedule: TypeAlias = tf.keras.optimizers.schedules.LearningRateSchedule

# Metric of `losses.contrastive_metrics` -> its name in logs and TensorBoard.
_TASK_METRICS = {
    name: f"contrastive_{name}" if name in ("accuracy", "entropy") else name
    for name in contrastive_metrics.NAMES
}


# A view's pixels are in [0, 1]. Augmentation of one's own may leave that a bit,
# and others standardise them; 0..255 is always a mistake.
_LARGEST_PIXEL = 16.0
NO_GRADIENT = (
    "no gradient of the loss reaches the encoder: the loss, the head or the"
    " encoder has an operation without one, such as a cast to integers or NumPy"
)


class Batch(NamedTuple):
    """One replica's part of a batch."""

    views: tf.Tensor  # float32 [B, V, H, W, K] in [0, 1]; the large ones
    labels: tf.Tensor | None  # int [B], or multi-hot [B, C]
    # What losses compare with: the labels, or class fractions float32 [B, V, C]
    # of mixed views.
    targets: tf.Tensor | None
    # int32 [B, V, 2], for random operations in the step.
    seeds: tf.Tensor | None = None
    # Projections [B, 1, P] of further views by another encoder.
    keys: tf.Tensor | None = None
    small_views: tf.Tensor | None = None  # float32 [B, S, h, w, K]

    @property
    def images(self) -> tf.Tensor:
        """The number of images B, float32 []."""
        return tf.cast(tf.shape(self.views)[0], tf.float32)

    @property
    def num_small(self) -> int:
        """The number of small views of an image, S."""
        return 0 if self.small_views is None else self.small_views.shape[1]


class Trained(NamedTuple):
    """The variables that a loss trains, and its optimizer."""

    variables: list[tf.Variable]
    optimizer: Any


class ContrastiveStep(tf.keras.Model):
    """Trains an encoder and its projection head; see `ContrastiveModel`."""

    # Of the constructor of a class, in addition to those of its bases.
    arguments: tuple[str, ...] = (
        "encoder",
        "projection_head",
        "seed",
        "unlabelled",
    )

    def __init__(
        self,
        encoder: tf.keras.Model,
        projection_head: tf.keras.layers.Layer,
        loss: Any,
        *,
        seed: int = 0,
        unlabelled: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check_networks(encoder, projection_head)
        self.encoder = encoder
        self.projection_head = projection_head
        self.contrastive_loss = losses.get(loss)
        self.seed = seed
        self.unlabelled = unlabelled or self.contrastive_loss.allows_unlabelled
        # All variables are created now, since a checkpoint restores by value.
        projections = projection_head(tf.keras.Input(encoder.output_shape[1:]))
        size = projections.shape[-1]
        self.loss_parts: Any = losses.parts(self.contrastive_loss, size)
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            for network in (encoder, projection_head, self.loss_parts):
                if network is not None:
                    synchronize(network)
        self.built = True
        # Of generators' batches, whose shapes Keras does not know: whether for
        # training -> input -> number. Keras does not look into a namespace.
        self._num_views = types.SimpleNamespace(of={True: {}, False: {}})
        # Steps do not call the model, from which Keras learns what it saves.
        self._set_save_spec(tf.TensorSpec(encoder.input_shape))
        refuse_regularizers(encoder, projection_head, self.loss_parts)
        self.means = RunningMeans("loss", *_TASK_METRICS.values())

    # ---- What features extend: arguments, optimizers, checkpoints, memory ----

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, serialized as Keras does."""
        values: dict[str, Any] = {"name": self.name}
        values["loss"] = self.contrastive_loss
        for kind in type(self).__mro__:
            names = vars(kind).get("arguments", ())
            values |= {name: getattr(self, name) for name in names}
        serialize = tf.keras.saving.serialize_keras_object
        # What the SavedModel format does not take.
        plain = bool | int | float | str | None
        return {
            name: value if isinstance(value, plain) else serialize(value)
            for name, value in values.items()
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "ContrastiveStep":
        """Creates a model with new weights from `get_config`'s result."""
        arguments = {
            name: tf.keras.saving.deserialize_keras_object(
                value, custom_objects=custom_objects
            )
            if isinstance(value, dict)
            else value
            for name, value in config.items()
        }
        return cls(**arguments)

    @classmethod
    def arguments_of_run(
        cls, run: Pretrain, num_classes: int | None
    ) -> dict[str, Any]:
        """The constructor's arguments after the loss, for a resolved run."""
        del num_classes
        return {
            "seed": run.runtime.seed,
            "unlabelled": run.reading.unlabelled == "own_views",
        }

    def further_optimizers(
        self, run: Pretrain, schedule: Callable[..., Schedule]
    ) -> dict[str, tuple[Schedule, Any]]:
        """Argument of `compile` -> (learning rate, optimizer), if further ones.

        `schedule` maps base_learning_rate= to a learning rate over the run.
        """
        del run, schedule
        return {}

    def checkpointed(self) -> dict[str, Any]:
        """What a checkpoint holds: layers and optimizers, by their names."""
        parts = {
            "encoder": self.encoder,
            "projection_head": self.projection_head,
            "optimizer": self.optimizer,
        }
        if self.loss_parts is not None:
            parts["loss"] = self.loss_parts
        return parts

    def images_at_once(self, images: int, views: int) -> int:
        """Number of views whose activations a training step holds at once."""
        return images * views

    def trained(self) -> dict[str, Trained]:
        """Loss in the results of a step -> what it trains."""
        return {"loss": Trained(self.pretrained_variables, self.optimizer)}

    # ---- The step ----

    def compile(self, optimizer: Any, **kwargs: Any) -> None:
        """Sets the optimizer; the rest is `tf.keras.Model.compile`'s."""
        for name in ("loss", "loss_weights", "metrics", "weighted_metrics"):
            if kwargs.get(name) is not None:
                raise ValueError(
                    f"compile({name}=...) is not used: the loss and the probe"
                    " are arguments of ContrastiveModel, which measures them"
                )
        kwargs.setdefault("jit_compile", False)
        super().compile(optimizer=optimizer, **kwargs)
        if self.loss_parts is None or self.loss_parts.complete:
            self.optimizer.build(self.pretrained_variables)
        vit.follow_steps(self, lambda: self.optimizer.iterations)

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Encodes images [N, H, W, K] in [0, 1] to features h [N, D]."""
        return self.encoder(images, training=training)

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains as `tf.keras.Model.fit`, on views [B, V, H, W, K]."""
        x = self._with_known_views(x, training=True)
        if (data := kwargs.get("validation_data")) is not None:
            data = self._with_known_views(data, training=False)
            kwargs["validation_data"] = data
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Measures as `tf.keras.Model.evaluate`, on what `fit` takes."""
        # Else the validation data of `fit`.
        if not kwargs.get("_use_cached_eval_dataset"):
            x = self._with_known_views(x, training=False)
        return super().evaluate(x, *args, **kwargs)

    def _with_known_views(self, data: Any, training: bool) -> Any:
        """Looks at a generator's first batch; returns the same data."""
        first: Any = ({},)
        if isinstance(data, tf.keras.utils.Sequence):
            first = data[0]
        elif isinstance(data, Iterator) and not isinstance(
            data, tf.data.Iterator
        ):
            if (first := next(data, None)) is None:
                raise ValueError("the generator has no batch: pass a new one")
            data = itertools.chain([first], data)
        inputs = tf.keras.utils.unpack_x_y_sample_weight(first)[0]
        if not isinstance(inputs, Mapping):
            inputs = {"views": tf.nest.flatten(inputs)[0]}
        numbers = {
            name: np.shape(x)[1] for name, x in inputs.items() if np.ndim(x) > 1
        }
        if numbers != self._num_views.of[training]:
            # A traced graph has the former number.
            self.train_function = self.test_function = None
            self._num_views.of[training] = numbers
        return data

    @do_not_convert_self
    def train_step(self, data: Any) -> Results:
        """Trains on (views [B, V, H, W, K], labels [B]), or on views alone."""
        return self.means.read(self.learn(self.batch(data, training=True)))

    @do_not_convert_self
    def test_step(self, data: Any) -> Results:
        """Measures losses and metrics, and updates nothing."""
        return self.means.read(self.score(self.batch(data, training=False)))

    def batch(self, data: Any, training: bool) -> Batch:
        """Unpacks the data of a step; views may be uint8, in 0..255."""
        views, labels, weights = tf.keras.utils.unpack_x_y_sample_weight(data)
        if weights is not None:
            raise ValueError(
                "sample_weight and class_weight have no meaning in a loss that"
                " compares images: pass (views, labels), or views"
            )
        views, seeds = views if isinstance(views, tuple) else (views, None)
        number = self._num_views.of[training].get("views")
        views = self.checked(views, (number, *self.encoder.input_shape[1:]))
        return Batch(views, labels, labels, seeds)

    def checked(self, views: tf.Tensor, taken: tuple) -> tf.Tensor:
        """Returns views as floats, of sizes that the graph knows.

        An image's views must have the shape `taken`, (V, H, W, K).
        """
        if not (views.dtype.is_floating or views.dtype == tf.uint8):
            raise ValueError(
                f"views of type {views.dtype.name}: must be floats in [0, 1],"
                " or uint8 in 0..255"
            )
        if views.shape.rank != 5:
            raise ValueError(
                f"views of shape {views.shape}: must be [B, V, H, W, K]"
                " (images, views per image, height, width, channels)"
            )
        if not views.shape[2:].is_compatible_with(taken[1:]):
            raise ValueError(
                f"views of shape {views.shape}: the encoder takes images of"
                f" shape {taken[1:]}"
            )
        views = tf.ensure_shape(views, [None, *taken])
        if views.shape[1] is None:
            raise ValueError(
                f"views of shape {views.shape}: the number of views must be"
                " known: map the dataset by tf.ensure_shape(views, [None, V,"
                " None, None, K])"
            )
        return from_wire(views)

    def learn(self, batch: Batch) -> list[str]:
        """One training step; returns the names of the means it adds to."""
        gradients, results, features = self.gradients(batch)
        # Ends a walk over the graph, see `distribution`.
        gradients = {
            name: [in_order(tf.stop_gradient(g)) for g in group]
            for name, group in gradients.items()
        }
        self.update(gradients, results)
        return self.record(results, batch, features)

    def score(self, batch: Batch) -> list[str]:
        """One test step; returns the names of the means it adds to."""
        features, projections = self.encode(batch, training=False)
        # Always with the draws of step 0, so that epochs compare.
        results = self.contrast(projections, batch, step=0, training=False)
        results |= self.classify(features, batch, training=False)
        return self.record(results, batch, None)

    def gradients(self, batch: Batch) -> tuple[Gradients, Results, tf.Tensor]:
        """Gradients of the trained variables, to be summed over replicas.

        And losses and metrics of this replica, and features [B, V, D].
        """
        with tf.GradientTape() as tape:
            features, projections = self.encode(batch, training=True)
            step = self.optimizer.iterations
            results = self.contrast(projections, batch, step)
            results |= self.classify(features, batch, training=True)
            objective = self.objective(results)
        return self.differentiate(tape, objective, results), results, features

    def differentiate(
        self, tape: tf.GradientTape, objective: tf.Tensor, losses: Results
    ) -> Gradients:
        """Gradients of what `losses` train, by their names.

        Variables that the views do not reach have zeros.
        """
        groups = {
            name: trained.variables
            for name, trained in self.trained().items()
            if name in losses
        }
        gradients = tape.gradient(objective, groups)
        encoder = gradients["loss"][: len(self.encoder.trainable_variables)]
        if encoder and all(gradient is None for gradient in encoder):
            raise ValueError(NO_GRADIENT)
        return {
            name: [
                tf.zeros_like(variable) if gradient is None else gradient
                for gradient, variable in zip(group, groups[name], strict=True)
            ]
            for name, group in gradients.items()
        }

    def without_gradient(
        self, network: Callable[..., tf.Tensor], x: tf.Tensor, training: bool
    ) -> tf.Tensor:
        """Applies a network to a batch [B, ...], without a gradient."""
        return network(x, training=training)

    def encode(
        self, batch: Batch, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """A batch to h [B, V, D] of its large and z [B, V + S, P] of all views.

        Small views have the last projections.
        """
        every = self.features(batch, training)  # [B, V + S, D]
        h = tf.reshape(every, [-1, every.shape[-1]])
        z = _apply(self.projection_head, h, training)
        z = tf.reshape(z, [-1, every.shape[1], z.shape[-1]])
        return every[:, : batch.views.shape[1]], z

    def features(self, batch: Batch, training: bool) -> tf.Tensor:
        """The features of all views, [B, V + S, D]."""
        return self.features_of(batch.views, training)

    def features_of(self, views: tf.Tensor, training: bool) -> tf.Tensor:
        """Views [B, V, H, W, K] of one size to h [B, V, D], in one pass."""
        views = tf.convert_to_tensor(views)
        sizes = similarity.shape(views)[2:]
        images = tf.reshape(views, [-1, *sizes])  # [B * V, H, W, K]
        h = _apply(self.encoder, images, training)
        return tf.reshape(h, [-1, views.shape[1], h.shape[-1]])

    def contrast(
        self,
        projections: tf.Tensor,
        batch: Batch,
        step: tf.Tensor | int,
        training: bool = True,
    ) -> Results:
        """The loss of projections [B, V, P], and metrics of its task.

        The random numbers of a loss follow from `step`.
        """
        seed = tf.stack([self.seed, tf.cast(step, tf.int32)])
        # Of one image, which costs nothing.
        largest = tf.reduce_max(tf.abs(batch.views[:1]))
        projections = label_checks.or_nan(
            projections,
            (largest <= _LARGEST_PIXEL) | tf.math.is_nan(largest),
            "views must be floats in [0, 1], or uint8 in 0..255, and are floats"
            " in 0..255",
        )
        loss_of: Callable[..., tf.Tensor] = self.contrastive_loss
        if self.loss_parts is not None:
            loss_of = functools.partial(
                self.loss_parts, loss_of, training=training
            )
        with similarity.share_gathered():
            with tf.GradientTape() as tape:
                more = self.loss_arguments(batch)
                loss = loss_of(projections, batch.targets, seed, **more)
            self._check_trained(tape.watched_variables())
            if batch.keys is not None:
                projections = tf.concat([projections, batch.keys], axis=1)
            task = contrastive_metrics.contrastive_task(
                projections,
                batch.labels if self.contrastive_loss.needs_labels else None,
                temperature=self.contrastive_loss.temperature,
                normalize=self.contrastive_loss.normalize,
                unlabelled=self.unlabelled,
                small_views=batch.num_small,
            )
        named = {_TASK_METRICS[name]: value for name, value in task.items()}
        return {"loss": loss, **named}

    def _check_trained(self, variables: Iterable[tf.Variable]) -> None:
        """Raises `ValueError` for variables of a loss that nothing trains."""
        # As Keras' optimizers tell variables, also those of several replicas.
        trained = {v._unique_id for v in self.pretrained_variables}
        for variable in variables:
            if variable._unique_id not in trained:
                raise ValueError(
                    f"the loss uses the variable {variable.name}, which would"
                    " not be trained: make it an attribute of the loss, a Keras"
                    " layer or an object of a class, or set trainable=False"
                )

    def loss_arguments(self, batch: Batch) -> dict[str, Any]:
        """What the loss takes in addition to projections, targets and seed."""
        return {"small_views": batch.num_small} if batch.num_small else {}

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

    def update(self, gradients: Gradients, results: Results) -> None:
        """Applies the gradients, each by the optimizer of its loss."""
        del results
        for name, (variables, optimizer) in self.trained().items():
            if name in gradients:
                optimizer.apply_gradients(
                    zip(gradients[name], variables, strict=True)
                )

    def record(
        self, results: Results, batch: Batch, features: tf.Tensor | None
    ) -> list[str]:
        """Adds results, float32 [], to the running means; returns the names.

        A smaller batch, such as the last one, counts by its images. The
        features are [B, V, D] of a training step; None: of a test step.
        """
        del features
        weights = {name: self.weight(name, batch) for name in results}
        return self.means.update(results, weights)

    def weight(self, name: str, batch: Batch) -> tf.Tensor:
        """How much a batch's result counts in its running mean, float32 []."""
        del name
        return batch.images

    @property
    def metrics(self) -> list[tf.keras.metrics.Metric]:
        """The running means, which `fit` resets at every epoch."""
        return self.means.metrics

    @property
    def pretrained_variables(self) -> list[tf.Variable]:
        """Trainable variables of encoder, projection head and loss."""
        return (
            self.encoder.trainable_variables
            + self.projection_head.trainable_variables
            + self.loss_variables
        )

    @property
    def loss_variables(self) -> list[tf.Variable]:
        """Trainable variables of a loss of the user's own."""
        return self.loss_parts.trainable_variables if self.loss_parts else []


def _apply(
    network: tf.keras.layers.Layer, x: tf.Tensor, training: bool
) -> tf.Tensor:
    """Returns a network's rows, of which there must be one for each of `x`."""
    rows = network(x, training=training)
    if not rows.shape[:1].is_compatible_with(x.shape[:1]):
        raise ValueError(
            f"{network.name} returns {rows.shape[0]} rows for {x.shape[0]}"
            " images: must be one for each"
        )
    return rows


def refuse_regularizers(*layers: tf.keras.layers.Layer | None) -> None:
    """Raises `ValueError` for layers with losses of their own."""
    for layer in layers:
        if layer is not None and layer.losses:
            raise ValueError(
                f"{layer.name} has regularizers, which this model does not"
                " train by: use the optimizer's weight_decay"
            )


def _check_networks(encoder: Any, projection_head: Any) -> None:
    """Raises `UserError` for what are no encoder and projection head."""
    shapes = []
    if isinstance(encoder, tf.keras.layers.Layer):
        # A model that was never called has none.
        with contextlib.suppress(AttributeError, RuntimeError):
            shapes = [encoder.input_shape, encoder.output_shape]
    if not all(isinstance(x, tuple) for x in shapes) or (
        [len(x) for x in shapes[1:]] != [2]
    ):
        found = f", and is {shapes[0]} -> {shapes[1]}" if shapes else ""
        raise errors.UserError(
            f"encoder {callables.name_of(encoder)} must be a Keras model of a"
            f" known shape, images [N, H, W, K] -> features [N, D]{found}: use"
            " encoders.build(encoder, image_shape=(H, W, K))"
        )
    if not isinstance(projection_head, tf.keras.layers.Layer):
        raise errors.UserError(
            f"projection_head {callables.name_of(projection_head)} must be a"
            " Keras layer: use heads.build(projection_head)"
        )
