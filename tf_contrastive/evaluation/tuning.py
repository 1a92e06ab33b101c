"""Training a whole network: a copy of an encoder, and a linear layer on it."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers, errors, optimizers, schedules
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.protocols import FinetuneProtocol
from tf_contrastive.evaluation.subject import Subject

# Of a new linear layer's weights (SimCLR's own).
_HEAD_SCALE = 0.01


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
      steps: of the optimizer; the learning rate falls to zero over them, as a
        cosine (the papers state no schedule), without warm-up.
      learning_rate: its peak.
      weight_decay: of weights of rank 2 and more, times the learning rate.
      batch_size: images per step.
      batch_norm_momentum: of the moving statistics; None: the encoder's own.
      augmentation: policy of the images.
      seed: of their order, views, and the new layer.
    """

    steps: int
    learning_rate: float
    weight_decay: float = 0.0
    batch_size: int = 256
    batch_norm_momentum: float | None = None
    augmentation: str = FinetuneProtocol.augmentation
    seed: int = Evaluation.seed


@dataclasses.dataclass(frozen=True)
class Classifier:
    """An encoder that was trained on, and its linear layer."""

    encoder: Callable
    head: classifiers.Linear
    losses: list[float]  # Mean of each tenth of the training, in nats.

    def scores(self, subject: Subject, batches: Iterable) -> classifiers.Scores:
        """Logits of the images of batches, in their order."""
        h, _ = subject.embed(batches, encoder=self.encoder)
        return self.head.scores(h)


def train(
    subject: Subject,
    rows: np.ndarray,
    recipe: Recipe,
    *,
    trained: bool,
    sets: np.ndarray | None = None,
) -> Classifier:
    """Trains a copy of the encoder, and a linear layer, on some of train.

    Args:
      subject: whose copy; it does not change itself.
      rows: int [m], increasing: the training examples.
      recipe: how.
      trained: whether the copy starts from the encoder's weights; False: from
        random ones.
      sets: bool [n, C], which classes each training example shows, where the
        subject's training labels are its rows (`prepared.numbered`): one
        logistic regression per class is learned. None: softmax regression, of
        the labels.

    Raises:
      UserError: if there is no copy to train, or the loss diverges.
    """
    strategy = subject.strategy
    replicas = strategy.num_replicas_in_sync
    encoder = _copy(subject, recipe, trained)
    batch = min(recipe.batch_size, len(rows)) // replicas * replicas
    if not batch:
        raise errors.UserError(
            f"{len(rows)} labels are fewer than the {replicas} replicas that"
            " share a step: give a larger part of the labels"
        )
    # As they come from the source, so that labels of any ids have a column.
    classes = np.arange(subject.num_classes if sets is None else sets.shape[1])
    shape = [subject.embeddings("test")[0].shape[1], len(classes)]
    with strategy.scope():
        initial = tf.random.stateless_normal(
            shape, [recipe.seed, 1], stddev=_HEAD_SCALE
        )
        kernel = tf.Variable(initial)
        bias = tf.Variable(tf.zeros(shape[1:]))
        optimizer = _optimizer(recipe, batch, encoder)
        optimizer.build([*encoder.trainable_variables, kernel, bias])
    step = _step(strategy, encoder, kernel, bias, optimizer, sets)
    stream = subject.stream(
        recipe.augmentation, batch_size=batch, rows=rows, seed=recipe.seed
    )
    losses = [
        step(_parts(strategy, images), _parts(strategy, labels))
        for images, labels in _take(stream, recipe.steps)
    ]
    head = classifiers.Linear(kernel.numpy(), bias.numpy(), classes)
    return Classifier(encoder, head, _tenths(losses, recipe))


def _copy(subject: Subject, recipe: Recipe, trained: bool) -> Callable:
    """An encoder that may be changed, as the recipe wants it."""
    encoder = subject.fresh(trained)
    if not list(encoder.trainable_variables):
        raise errors.UserError(
            "the encoder has no weights that can be trained: give the `workdir`"
            " of a run, or an export of this package"
        )
    if recipe.batch_norm_momentum is not None:
        _set_momentum(encoder, recipe.batch_norm_momentum)
    return encoder


def _optimizer(
    recipe: Recipe, batch: int, encoder: Callable
) -> tf.keras.optimizers.Optimizer:
    # An export has no layers that would say which variable is what: only those
    # of rank 1 are exempt in it.
    layers = [encoder] if isinstance(encoder, tf.Module) else []
    return optimizers.build(
        "sgd",
        learning_rate=schedules.build(
            "cosine",
            base_learning_rate=recipe.learning_rate,
            batch_size=batch,
            steps_per_epoch=1,
            epochs=recipe.steps,
            scaling="none",
        ),
        momentum=0.9,
        nesterov=True,
        weight_decay=recipe.weight_decay,
        exempt=optimizers.biases_and_scales(*layers),
    )


def _step(
    strategy: tf.distribute.Strategy,
    encoder: Callable,
    kernel: tf.Variable,
    bias: tf.Variable,
    optimizer: tf.keras.optimizers.Optimizer,
    sets: np.ndarray | None,
) -> Callable[[Any, Any], tf.Tensor]:
    """Makes one step: (images, labels) of each replica -> their mean loss."""
    variables = [*encoder.trainable_variables, kernel, bias]
    replicas = strategy.num_replicas_in_sync

    def step_of_replica(images, labels):
        with tf.GradientTape() as tape:
            h = tf.cast(encoder(images, training=True), tf.float32)
            losses = _losses(h @ kernel + bias, labels, sets)
            # Gradients are summed over the replicas.
            loss = tf.reduce_mean(losses) / replicas
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    @tf.function
    def step(images, labels):
        losses = strategy.run(step_of_replica, args=(images, labels))
        return strategy.reduce("sum", losses, axis=None)

    return step


def _losses(
    logits: tf.Tensor, labels: tf.Tensor, sets: np.ndarray | None
) -> tf.Tensor:
    """Cross entropies [b] in nats; of several labels the sum over classes.

    A logit's gradient is then, as that of a softmax, its probability's error,
    and learning rates mean the same.
    """
    if sets is None:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    wanted = tf.gather(tf.constant(sets, tf.float32), labels)
    each = tf.nn.sigmoid_cross_entropy_with_logits(wanted, logits)
    return tf.reduce_sum(each, axis=1)


def _tenths(losses: Sequence[tf.Tensor], recipe: Recipe) -> list[float]:
    """Means of each tenth of the losses; raises `UserError` if they diverge."""
    values = np.array([float(loss) for loss in losses])
    if not np.isfinite(values).all():
        raise errors.UserError(
            f"fine-tuning diverged at learning rate {recipe.learning_rate:g}:"
            " give a lower one"
        )
    return [float(p.mean()) for p in np.array_split(values, 10) if len(p)]


def _set_momentum(encoder: Callable, momentum: float) -> None:
    """Of all BatchNormalization; in an export it is part of the graph."""
    for layer in getattr(encoder, "submodules", ()):
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            layer.momentum = momentum


def _take(batches: Iterable[tuple], count: int) -> Iterator[tuple]:
    """The first so many of batches without end."""
    for _, batch in zip(range(count), batches, strict=False):
        yield batch


def _parts(strategy: tf.distribute.Strategy, rows: tf.Tensor) -> Any:
    """Each replica's equal share of the rows."""
    share = len(rows) // strategy.num_replicas_in_sync

    def part(context):
        start = context.replica_id_in_sync_group * share
        return rows[start : start + share]

    return strategy.experimental_distribute_values_from_function(part)
