"""The protocol `finetune`: the encoder trained on, with few labels.

SimCLR, appendix B.5: all of the network and a new linear layer learn from 1 %,
10 % or all of the labels, the same number of every class, and so does a network
of random weights. What is trained is always a copy (`Subject.fresh`).
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers, config, optimizers, schedules
from tf_contrastive.datasets import balanced_rows
from tf_contrastive.evaluation import prepared, scoring
from tf_contrastive.evaluation.subject import Subject

# (scores of training examples, their rows int [h]) -> more for better ones.
Score = Callable[[classifiers.Scores, np.ndarray], float]

# Of a new linear layer's weights (SimCLR's own).
_HEAD_SCALE = 0.01
_KNOBS = config.FinetuneProtocol().knobs()


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
    augmentation: str = config.FinetuneProtocol.finetune_augmentation
    seed: int = config.Evaluation.seed


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
        raise config.UserError(
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
        variables = [*encoder.trainable_variables, kernel, bias]
        optimizer.build(variables)

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
        raise config.UserError(
            "the encoder has no weights that can be trained: give the --workdir"
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
        raise config.UserError(
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


def choose(
    subject: Subject,
    rows: np.ndarray,
    recipes: Sequence[Recipe],
    *,
    trained: bool,
    held: np.ndarray | None = None,
    share: float = config.Evaluation.validation_share,
    score: Score | None = None,
    sets: np.ndarray | None = None,
) -> tuple[Recipe, list[float | None]]:
    """Finds the recipe that does best on a held-out part of the labels.

    Args:
      subject: see `train`.
      rows: int [m], increasing: the training examples that there are.
      recipes: to choose from; of a single one nothing is trained.
      trained: see `train`.
      held: those of `rows` to select on; None: a share of each class.
      share: see `held`.
      score: by which is chosen; None: top-1.
      sets: see `train`.

    Returns:
      (the best one; of equal ones the first, score of each, None where it
      diverged).

    Raises:
      UserError: if all diverge, or there is nothing to select on.
    """
    if len(recipes) == 1:
        return recipes[0], []
    if held is None:
        labels = subject.embeddings("train")[1]
        _, places = subject.holdout(labels[rows], share)
        held = rows[places]
    score = score or score_of(subject, "top1")
    fit = np.setdiff1d(rows, held)
    images = subject.images("train", subject.train.select(held))
    scores: list[float | None] = []
    for recipe in recipes:
        try:
            model = train(subject, fit, recipe, trained=trained, sets=sets)
        except config.UserError as error:
            if "diverged" not in str(error):
                raise
            scores.append(None)
        else:
            scores.append(score(model.scores(subject, images), held))
        subject.say(
            f"learning rate {recipe.learning_rate:g}, weight decay"
            f" {recipe.weight_decay:g}: "
            + ("diverged" if scores[-1] is None else f"{scores[-1]:.4f}")
            + f" of {len(held):,} held-out examples"
        )
    best = max(
        range(len(scores)),
        key=lambda i: -1.0 if scores[i] is None else scores[i],
    )
    if scores[best] is None:
        raise config.UserError(
            "fine-tuning diverged at every learning rate: give lower ones"
        )
    return recipes[best], scores


def score_of(subject: Subject, metric: str) -> Score:
    """What `choose` takes, of a name of `scoring.METRICS`."""
    of = scoring.metric(metric)

    def score(scores: classifiers.Scores, rows: np.ndarray) -> float:
        return of(scores.top(1)[:, 0], subject.embeddings("train")[1][rows])

    return score


# ---- The protocol ------------------------------------------------------------


def needs(subject: Subject) -> str | None:
    """What is absent for this protocol; None: nothing."""
    if lacking := prepared.needs_labels(subject):
        return lacking
    if not subject.has_fresh():
        return "nothing makes a copy of the encoder to train: give --workdir"
    return None


def measure(
    subject: Subject,
    *,
    fractions: Sequence[float] = _KNOBS["fractions"],
    epochs: Sequence[int] = _KNOBS["epochs"],
    batch_size: int = config.FinetuneProtocol.finetune_batch_size,
    learning_rates: Sequence[float] = _KNOBS["learning_rates"],
    augmentation: str = config.FinetuneProtocol.finetune_augmentation,
    scratch: bool = config.FinetuneProtocol.finetune_scratch,
    validation_share: float = config.Evaluation.validation_share,
    seed: int = config.Evaluation.seed,
) -> dict[str, Any]:
    """Scores networks that were trained on with few labels.

    Args:
      subject: whose encoder is copied and trained.
      fractions: shares of the labels.
      epochs: of each share, or one number for all.
      batch_size: images per step, at most all.
      learning_rates: per 256 images of a batch; the best on a held-out part of
        the labels is taken, and trained again on all of them.
      augmentation: policy of the images learned from.
      scratch: whether to train a random network likewise. (An untrained
        subject is one itself.)
      validation_share: of the labels of a class that learning rates are chosen
        on.
      seed: of the subsets, orders and views.

    Returns:
      Measurements "1%", "1% scratch" and so on, see `protocols`.

    Raises:
      UserError: if there is no copy to train, or training diverges.
    """
    if len(epochs) == 1:
        epochs = list(epochs) * len(fractions)
    labels = subject.embeddings("train")[1]
    starts = {"": True}
    if scratch and subject.name != "untrained" and subject.has_fresh(False):
        starts[" scratch"] = False
    parts = {}
    for fraction, passes in zip(fractions, epochs, strict=True):
        rows = balanced_rows(labels, fraction, seed)
        batch = min(batch_size, len(rows))
        recipes = [
            Recipe(
                steps=passes * (len(rows) // batch),
                learning_rate=rate * batch / config.REFERENCE_BATCH_SIZE,
                batch_size=batch,
                augmentation=augmentation,
                seed=seed,
            )
            for rate in learning_rates
        ]
        for suffix, trained in starts.items():
            name = f"{100 * fraction:g}%{suffix}"
            subject.say(f"fine-tuning, {name}: {len(rows):,} labels")
            recipe, chosen = choose(
                subject, rows, recipes, trained=trained, share=validation_share
            )
            model = train(subject, rows, recipe, trained=trained)
            scores = model.scores(subject, subject.images("test"))
            parts[name] = report(scores, subject.embeddings("test")[1]) | {
                "metrics": {
                    "labels": len(rows),
                    "learning_rate": recipe.learning_rate,
                    "validation": chosen,
                    "losses": model.losses,
                }
            }
    return {"parts": parts}


def report(scores: classifiers.Scores, labels: np.ndarray) -> dict[str, Any]:
    """A measurement of scores: accuracies, predictions, and hits."""
    top = scores.top(5)
    hits = top == labels[:, np.newaxis]
    return {
        "top1": float(hits[:, 0].mean()),
        "top5": float(hits.any(axis=1).mean()),
        "predictions": top[:, 0],
        "correct": hits[:, 0],
        "correct5": hits.any(axis=1),
    }
