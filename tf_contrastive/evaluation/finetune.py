"""The protocol `finetune`: training a copy of the encoder with few labels.

Chen et al. 2020 (SimCLR), appendix B.5: the whole network and a new linear
layer are trained on 1 %, 10 % or all of the labels, class-balanced; for
comparison, so is a network with random weights. The labels of ImageNet are
those of the published lists (footnote 5), the datasets `imagenet2012_subset` of
TFDS. Vision transformers are trained as in MoCo v3. `transfer` trains by the
same functions.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import (
    classifiers,
    datasets,
    embedding,
    optimizers,
    schedules,
)
from tf_contrastive.base import errors
from tf_contrastive.config.dataset import dataset_family
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.optimizer import REFERENCE_BATCH_SIZE
from tf_contrastive.config.protocols import FINE_TUNING, Finetune, Transfer
from tf_contrastive.datasets import subsets
from tf_contrastive.distribution import all_finite
from tf_contrastive.encoders import vit
from tf_contrastive.evaluation import classification
from tf_contrastive.evaluation.context import Data, EvaluationContext
from tf_contrastive.evaluation.report import Measurement, Part
from tf_contrastive.evaluation.subject import Batches

# (scores of training examples, their rows int [h]) -> larger is better.
Score = Callable[[classifiers.Scores, np.ndarray], float]

# Fraction of ImageNet's labels -> the dataset that has SimCLR's choice of them.
_PUBLISHED = {
    0.01: "imagenet2012_subset/1pct",
    0.1: "imagenet2012_subset/10pct",
}
# Standard deviation of a new linear layer's weights (SimCLR's code).
_HEAD_STDDEV = 0.01


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Hyperparameters, by default of SGD with Nesterov momentum 0.9.

    After a warm-up the learning rate falls to zero over the steps by a cosine
    (the papers state no schedule). Weight decay applies to weights of rank 2
    and more, times the learning rate. `drop_path` is the stochastic depth of a
    vision transformer. `batch_norm_momentum` is that of moving statistics;
    None: the encoder's. The seed determines the order of images, the views, and
    the initial linear layer. `tuned_by` is the option of the learning rate.
    """

    steps: int
    learning_rate: float
    weight_decay: float = 0.0
    batch_size: int = Transfer.batch_size
    batch_norm_momentum: float | None = None
    augmentation: str = Finetune.augmentation
    seed: int = Evaluation.seed
    optimizer: str = "sgd"
    warmup_steps: int = 0
    drop_path: float = 0.0
    tuned_by: str = "finetune_learning_rate"


class FinetunedClassifier(NamedTuple):
    """A fine-tuned encoder (images -> h) and its linear layer."""

    encoder: Callable[..., tf.Tensor]
    head: classifiers.Linear
    losses: list[float]  # Mean of each tenth of the training, in nats.

    def scores(
        self, context: EvaluationContext, batches: Batches
    ) -> classifiers.Scores:
        """Returns the logits of the images of batches, in order."""
        with context.subject.strategy.scope():
            h, _ = embedding.embed(self.encoder, batches)
        return self.head.scores(h)


# ---- Training ----------------------------------------------------------------


def train(
    context: EvaluationContext,
    rows: np.ndarray,
    recipe: Recipe,
    *,
    trained: bool,
) -> FinetunedClassifier:
    """Trains a copy of the encoder, and a linear layer, on rows of train.

    By softmax regression of the labels; for multi-label datasets by a logistic
    regression of each class.

    Args:
      context: the encoder, which does not change, and its data.
      rows: int [m], increasing: the training examples.
      recipe: how to train.
      trained: whether the copy starts from the encoder's weights.

    Raises:
      UserError: if there are no weights to train, or too few labels.
      DivergedError: if the loss or a weight is not finite.
    """
    strategy = context.subject.strategy
    encoder = _new_encoder(context, trained, recipe.batch_norm_momentum)
    replicas = strategy.num_replicas_in_sync
    batch_size = min(recipe.batch_size, len(rows)) // replicas * replicas
    if not batch_size:
        raise errors.UserError(
            f"{len(rows)} labels are fewer than the {replicas} replicas that"
            " share a step: use a larger part of the labels"
        )
    classes = np.arange(context.data.test.info.num_classes or 0)
    shape = [context.subject.width, len(classes)]
    with strategy.scope():
        initial = tf.random.stateless_normal(
            shape, [recipe.seed, 1], stddev=_HEAD_STDDEV
        )
        kernel = tf.Variable(initial)
        bias = tf.Variable(tf.zeros(shape[1:]))
        optimizer = _optimizer(recipe, encoder)
        optimizer.build([*encoder.trainable_variables, kernel, bias])
    vit.set_drop_path(encoder, recipe.drop_path, lambda: optimizer.iterations)
    step = _step_function(strategy, encoder, kernel, bias, optimizer)
    batches = context.training_images(
        context.data.train,
        recipe.augmentation,
        batch_size=batch_size,
        rows=rows,
        seed=recipe.seed,
    )
    losses = [
        step(images, labels)
        for images, labels in itertools.islice(
            batches.on(strategy), recipe.steps
        )
    ]
    values = np.array([float(loss) for loss in losses])
    # Statistics included, and the weights after the last step.
    weights = [*getattr(encoder, "variables", ()), kernel, bias]
    if not (np.isfinite(values).all() and all_finite(weights)):
        raise errors.DivergedError(
            f"diverged: lower {errors.arg(recipe.tuned_by)}"
        )
    return FinetunedClassifier(
        encoder,
        classifiers.Linear(kernel.numpy(), bias.numpy(), classes),
        [float(p.mean()) for p in np.array_split(values, 10) if len(p)],
    )


def _new_encoder(
    context: EvaluationContext, trained: bool, momentum: float | None
) -> Any:
    """Makes an encoder to train, with this momentum of its statistics."""
    encoder = context.subject.new_encoder(trained)
    if not list(encoder.trainable_variables):
        raise errors.UserError(
            f"the encoder has no trainable weights: set {errors.arg('workdir')}"
            f" to a run, or {errors.arg('saved_model')} to an export of this"
            " package"
        )
    if momentum is not None:
        # An export has no layers: its momentum is part of the graph.
        for layer in getattr(encoder, "submodules", ()):
            if isinstance(layer, tf.keras.layers.BatchNormalization):
                layer.momentum = momentum
    return encoder


def _optimizer(recipe: Recipe, encoder: Any) -> tf.keras.optimizers.Optimizer:
    # Without layers, as in an export, only variables of rank 1 are exempt.
    layers = [encoder] if isinstance(encoder, tf.Module) else []
    momentum = {"momentum": 0.9, "nesterov": True}
    return optimizers.build(
        recipe.optimizer,
        learning_rate=schedules.build(
            "cosine",
            base_learning_rate=recipe.learning_rate,
            batch_size=1,
            steps_per_epoch=1,
            epochs=recipe.steps,
            warmup_epochs=recipe.warmup_steps,
            scaling="none",
        ),
        weight_decay=recipe.weight_decay,
        exempt=optimizers.biases_and_scales(*layers),
        **momentum if recipe.optimizer == "sgd" else {},
    )


def _step_function(
    strategy: tf.distribute.Strategy,
    encoder: Any,
    kernel: tf.Variable,
    bias: tf.Variable,
    optimizer: tf.keras.optimizers.Optimizer,
) -> Callable[[Any, Any], tf.Tensor]:
    """Returns (images, labels) of each replica -> mean loss, one step."""
    variables = [*encoder.trainable_variables, kernel, bias]
    replicas = strategy.num_replicas_in_sync

    def losses_of(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if labels.shape.rank == 1:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, logits
            )
        # Summed over classes: like a softmax's, the gradient of a logit is the
        # error of its probability, and learning rates are comparable.
        targets = tf.cast(labels, tf.float32)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)
        return tf.reduce_sum(losses, axis=1)

    def replica_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            h = tf.cast(encoder(images, training=True), tf.float32)
            losses = losses_of(h @ kernel + bias, labels)
            # Gradients are summed over the replicas.
            loss = tf.reduce_mean(losses) / replicas
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    @tf.function
    def step(images: Any, labels: Any) -> tf.Tensor:
        losses = strategy.run(replica_step, args=(images, labels))
        return strategy.reduce("sum", losses, axis=None)

    return step


# ---- Selection ---------------------------------------------------------------


def select_recipe(
    context: EvaluationContext,
    held_out: np.ndarray,
    recipes: Sequence[Recipe],
    *,
    trained: bool,
    score: Score,
) -> tuple[Recipe, list[float | None]]:
    """Selects the recipe with the best score on a held-out part of train.

    `held_out` are its rows; other arguments: see `train`. A single recipe is
    returned without training. Returns (the best one, of equal ones the first;
    the score of each, None where the training diverged). Raises `DivergedError`
    if all of them diverge.
    """
    if len(recipes) == 1:
        return recipes[0], []
    rows = np.arange(context.data.train.info.num_examples)
    fit_rows = np.setdiff1d(rows, held_out)
    images = context.images(context.data.train.select(held_out))
    scores: list[float | None] = []
    for recipe in recipes:
        try:
            model = train(context, fit_rows, recipe, trained=trained)
            value = score(model.scores(context, images), held_out)
        except errors.DivergedError:
            value = None
        scores.append(value)
        context.log(
            f"learning rate {recipe.learning_rate:g}, weight decay"
            f" {recipe.weight_decay:g}: "
            + ("diverged" if value is None else f"{value:.4f}")
            + f" of {len(held_out):,} held-out examples"
        )
    best = int(np.argmax([-1.0 if s is None else s for s in scores]))
    if scores[best] is None:
        option = errors.arg(recipes[best].tuned_by)
        raise errors.DivergedError(
            f"diverged at every learning rate: lower {option}"
        )
    return recipes[best], scores


# ---- The protocol ------------------------------------------------------------


class _Labels(NamedTuple):
    """A part of the training labels."""

    context: EvaluationContext  # Its train has them.
    rows: np.ndarray  # Int [m], increasing, of that train.
    subset: str  # "all", "drawn", or the dataset of published ones.


def _published(context: EvaluationContext, fraction: float) -> str | None:
    """Returns the dataset of the published labels; None: they are drawn."""
    info = context.data.train.info
    is_imagenet = dataset_family(info.name) == "imagenet2012"
    is_imagenet = is_imagenet and info.split == "train"
    return _PUBLISHED.get(fraction) if is_imagenet else None


def _few_labels(
    context: EvaluationContext, fraction: float, seed: int
) -> _Labels:
    """Chooses a fraction of the training labels."""
    published = _published(context, fraction)
    if not published:
        labels = context.data.labels("train")
        rows = subsets.balanced_rows(labels, fraction, seed)
        return _Labels(context, rows, "all" if fraction == 1 else "drawn")
    source = context.prepared(published, "train")
    assert source is not None  # See `lacks_copy_or_labels`.
    datasets.check_scorable(source.info, context.data.test.info)
    part = context.on(Data(source, context.data.test))
    return _Labels(part, np.arange(source.info.num_examples), published)


def lacks_copy_or_labels(context: EvaluationContext) -> str | None:
    """Returns which network or labels `finetune` lacks, or None."""
    if not context.subject.has_new_encoder():
        return (
            f"the encoder has no trainable copy: set {errors.arg('workdir')} to"
            " a run"
        )
    for fraction in context.options.finetune.fractions:
        published = _published(context, fraction)
        if published and not context.prepared(published, "train"):
            folder = context.data_dir or "TFDS's default folder"
            return (
                f"its labels of {context.data.train.info.name} are SimCLR's"
                f" lists: prepare {published} in {folder}"
                f" ({errors.arg('data_dir')}), or set other"
                f" {errors.arg('finetune_fractions')}"
            )
    return None


def measure(
    context: EvaluationContext,
    *,
    fractions: Sequence[float],
    epochs: Sequence[int],
    batch_size: int,
    learning_rate: float | None,
    augmentation: str,
    scratch: bool,
    seed: int,
) -> Iterator[tuple[str, Part]]:
    """Scores networks that are fine-tuned with few labels.

    Hyperparameters are those of `config.protocols.Finetune`. A random network
    is not trained if the encoder is untrained itself. Variants are such as "1%"
    and "1% scratch".
    """
    if len(epochs) == 1:
        epochs = list(epochs) * len(fractions)
    run = context.subject.run
    adapts = run and run.encoder.adaptive_peak is not None
    optimizer = "adamw" if adapts else "sgd"
    tuning = FINE_TUNING[optimizer]
    starts = {"": True}
    has_random = context.subject.has_new_encoder(trained=False)
    if scratch and has_random and context.subject.name != "untrained":
        starts[" scratch"] = False
    for fraction, passes in zip(fractions, epochs, strict=True):
        labels = _few_labels(context, fraction, seed)
        batch = min(batch_size, len(labels.rows))
        steps_per_epoch = len(labels.rows) // batch
        rate = learning_rate or tuning.learning_rate
        recipe = Recipe(
            steps=passes * steps_per_epoch,
            learning_rate=rate * batch / REFERENCE_BATCH_SIZE,
            batch_size=batch,
            augmentation=augmentation,
            seed=seed,
            optimizer=optimizer,
            weight_decay=tuning.weight_decay,
            warmup_steps=round(
                min(tuning.warmup_epochs, passes / 10) * steps_per_epoch
            ),
            drop_path=tuning.drop_path,
        )
        for suffix, trained in starts.items():
            part = functools.partial(_measure, context, labels, recipe, trained)
            yield f"{100 * fraction:g}%{suffix}", part


def _measure(
    context: EvaluationContext, labels: _Labels, recipe: Recipe, trained: bool
) -> Measurement:
    """Scores a network that is fine-tuned with some labels."""
    rows, subset = labels.rows, labels.subset
    context.log(f"fine-tuning with {len(rows):,} labels, {subset}")
    model = train(labels.context, rows, recipe, trained=trained)
    scores = model.scores(context, context.images(context.data.test))
    is_published = subset in _PUBLISHED.values()
    return {
        **classification.accuracies(scores, context.data.labels("test")),
        "resolved": {
            "optimizer": recipe.optimizer,
            "subset": "published" if is_published else "drawn",
        },
        "metrics": {
            "labels": len(rows),
            "subset": subset,
            "learning_rate": recipe.learning_rate,
            "losses": model.losses,
        },
    }
