"""The protocol `finetune`: the encoder trained on, with few labels.

SimCLR, appendix B.5: all of the network and a new linear layer learn from 1 %,
10 % or all of the labels, the same number of every class, and so does a network
of random weights. What is trained is always a copy (`Subject.fresh`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tf_contrastive import classifiers, errors
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.optimizer import REFERENCE_BATCH_SIZE
from tf_contrastive.config.protocols import FinetuneProtocol
from tf_contrastive.datasets.subsets import balanced_rows
from tf_contrastive.evaluation import arrays, prepared, scoring
from tf_contrastive.evaluation.subject import Subject
from tf_contrastive.evaluation.tuning import Recipe, train

# (scores of training examples, their rows int [h]) -> more for better ones.
Score = Callable[[classifiers.Scores, np.ndarray], float]

_HYPERPARAMETERS = FinetuneProtocol().hyperparameters()


def choose(
    subject: Subject,
    rows: np.ndarray,
    recipes: Sequence[Recipe],
    *,
    trained: bool,
    held: np.ndarray | None = None,
    share: float = Evaluation.validation_fraction,
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
        except errors.UserError as error:
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
        raise errors.UserError(
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
        return "nothing makes a copy of the encoder to train: give `workdir`"
    return None


def measure(
    subject: Subject,
    *,
    fractions: Sequence[float] = _HYPERPARAMETERS["fractions"],
    epochs: Sequence[int] = _HYPERPARAMETERS["epochs"],
    batch_size: int = FinetuneProtocol.batch_size,
    learning_rates: Sequence[float] = _HYPERPARAMETERS["learning_rates"],
    augmentation: str = FinetuneProtocol.augmentation,
    scratch: bool = FinetuneProtocol.scratch,
    validation_fraction: float = Evaluation.validation_fraction,
    seed: int = Evaluation.seed,
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
      validation_fraction: of the labels of a class, to choose learning rates
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
                learning_rate=rate * batch / REFERENCE_BATCH_SIZE,
                batch_size=batch,
                augmentation=augmentation,
                seed=seed,
            )
            for rate in learning_rates
        ]
        for suffix, trained in starts.items():
            name = f"{100 * fraction:g}%{suffix}"
            subject.say(f"fine-tuning, {name}: {len(rows):,} labels")
            parts[name] = _scored(
                subject, rows, recipes, trained, validation_fraction
            )
    return {"parts": parts}


def _scored(
    subject: Subject,
    rows: np.ndarray,
    recipes: Sequence[Recipe],
    trained: bool,
    share: float,
) -> dict[str, Any]:
    """A measurement of what the best of the recipes makes of some labels."""
    recipe, chosen = choose(
        subject, rows, recipes, trained=trained, share=share
    )
    model = train(subject, rows, recipe, trained=trained)
    scores = model.scores(subject, subject.images("test"))
    return arrays.accuracies(scores, subject.embeddings("test")[1]) | {
        "metrics": {
            "labels": len(rows),
            "learning_rate": recipe.learning_rate,
            "validation": chosen,
            "losses": model.losses,
        }
    }
