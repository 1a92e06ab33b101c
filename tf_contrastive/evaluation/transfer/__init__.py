"""The protocol `transfer`: the encoder on other datasets.

SimCLR, appendix B.8: logistic regression on the frozen encoder, fine-tuning,
and a random network, on 12 datasets, each by its own metric; what must be
chosen is chosen on validation, then all of train and validation is learned
from, and test is scored once. SINCERE, appendix J: six of them by top-1, at 32
pixels. VOC2007, whose images have several labels, is scored by the 11-point
mean average precision of one classifier per class, a sigmoid each where the
network is fine-tuned.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_contrastive import classifiers, errors
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.protocols import TRANSFER_METHODS, TransferProtocol
from tf_contrastive.evaluation import (
    arrays,
    finetune,
    logistic,
    prepared,
    scoring,
    statistics,
    tuning,
)
from tf_contrastive.evaluation.subject import Subject
from tf_contrastive.evaluation.transfer import several
from tf_contrastive.evaluation.transfer.suites import Target, targets

_SIDE_OF_SINCERE = 32


def needs(subject: Subject) -> str | None:
    """What is absent for this protocol; None: nothing."""
    if subject.channels != 3:
        return "an encoder of three channels: other datasets have no others"
    chosen = targets(subject.options.transfer.suite)
    if any(_opened(subject, target, 0) for target in chosen.values()):
        return None
    names = ", ".join(target.dataset for target in chosen.values())
    place = prepared.data_dir(subject) or "TFDS's own folder"
    return f"none of its datasets is prepared in {place}: {names}"


def measure(
    subject: Subject,
    *,
    suite: str = TransferProtocol.suite,
    methods: Sequence[str] = TRANSFER_METHODS,
    examples: int = TransferProtocol.examples,
    batch_size: int = TransferProtocol.batch_size,
    grid: dict[str, Any] | None = None,
    scratch_grid: dict[str, Any] | None = None,
    validation_fraction: float = Evaluation.validation_fraction,
    seed: int = Evaluation.seed,
) -> dict[str, Any]:
    """Scores the encoder on each dataset that is prepared.

    Args:
      subject: whose encoder it is; its own dataset plays no part.
      suite: "simclr" or "sincere".
      methods: "linear", "finetune", "scratch".
      examples: of each split, from its start; 0: all.
      batch_size: images per step of fine-tuning.
      grid: {"steps", "learning_rates", "weight_decays"} of fine-tuning; None:
        the papers'.
      scratch_grid: likewise of a random network.
      validation_fraction: held out where a dataset has no validation split.
      seed: of what is held out, of orders and views.

    Returns:
      Measurements "DATASET METHOD", see `protocols`. "metrics" holds the
      dataset's own "metric" and "score".

    Raises:
      UserError: for an unknown name, or if no dataset is prepared.
    """
    for method in methods:
        if method not in TRANSFER_METHODS:
            raise errors.unknown("method", method, TRANSFER_METHODS)
    hyperparameters = TransferProtocol().hyperparameters()
    grids = {
        "finetune": grid or hyperparameters["grid"],
        "scratch": scratch_grid or hyperparameters["scratch_grid"],
    }
    chosen = targets(suite)
    _tell(subject, suite, methods)
    absent, parts = [], {}
    for name, target in chosen.items():
        opened = _opened(subject, target, examples)
        if opened is None:
            absent.append(target.dataset)
            continue
        other, held = opened
        held = held if held is not None else _held(other, validation_fraction)
        for method in methods:
            subject.say(f"transfer: {name}, {method}")
            part = _by_method(
                other, target, held, method, grids, batch_size, seed
            )
            if part is None:
                subject.say(f"transfer: nothing makes a {method} encoder")
            else:
                parts[f"{name} {method}"] = part | {"dataset": target.dataset}
    if absent:
        place = prepared.data_dir(subject) or "the TFDS folder"
        names = ", ".join(absent)
        subject.say(f"transfer: left out, not prepared in {place}: {names}")
    if not parts:
        raise errors.UserError(
            "transfer: no dataset is prepared: prepare one of"
            f" {', '.join(t.dataset for t in chosen.values())}, or give the"
            " `data_dir` that has it"
        )
    return {"parts": parts}


def _tell(subject: Subject, suite: str, methods: Sequence[str]) -> None:
    """Says where what is measured is not what the papers measure."""
    if suite == "sincere" and subject.side != _SIDE_OF_SINCERE:
        subject.say(
            f"transfer: SINCERE's images have {_SIDE_OF_SINCERE} pixels a side,"
            f" and this encoder takes {subject.side}"
        )
    if subject.run is None and "finetune" in methods and subject.has_fresh():
        subject.say(
            "transfer: in an export BatchNormalization has a fixed momentum;"
            " give the `workdir` of its run for the papers'"
        )


def _opened(
    subject: Subject, target: Target, examples: int
) -> tuple[Subject, np.ndarray | None] | None:
    """The encoder with a dataset, train and validation in one, and the rows
    that are validation (None: to be held out); None: it is not prepared.

    Where images have several labels, those of train are its rows instead.
    """
    first = _source(subject, target.dataset, "train", examples)
    test = _source(subject, target.dataset, target.test, examples)
    if first is None or test is None:
        return None
    held = None
    if target.validation:
        last = _source(subject, target.dataset, target.validation, examples)
        if last is None:
            return None
        both = f"{first.info.split}+{last.info.split}"
        whole = prepared.source(subject, target.dataset, both)
        held = np.arange(first.info.num_examples, whole.info.num_examples)
        first = whole
    if target.multi_label:
        first = prepared.numbered(first)
    made = Subject(
        subject.encoder,
        first,
        test,
        subject.options,
        name=subject.name,
        run=subject.run,
        fresh=subject.fresh if subject.has_fresh() else None,
        strategy=subject.strategy,
        heed=subject.heed,
        say=subject.say,
    )
    return made, held


def _source(subject: Subject, name: str, split: str, examples: int):
    """Opens a split, or its first examples."""
    found = prepared.source(subject, name, split)
    if found is None or not 0 < examples < found.info.num_examples:
        return found
    return prepared.source(subject, name, f"{split}[:{examples}]")


def _held(other: Subject, share: float) -> np.ndarray:
    return other.holdout(other.embeddings("train")[1], share)[1]


def _by_method(
    other: Subject,
    target: Target,
    held: np.ndarray,
    method: str,
    grids: dict[str, dict[str, Any]],
    batch_size: int,
    seed: int,
) -> dict[str, Any] | None:
    """A measurement of a dataset; None where nothing makes its encoder."""
    if method == "linear":
        if target.multi_label:
            return several.linear(other, target, held)
        return _linear(other, target, held, seed)
    trained = method == "finetune"
    if not other.has_fresh(trained):
        return None
    recipes = _recipes(other, grids[method], batch_size, seed)
    return _trained(other, target, held, recipes, trained)


def _linear(
    other: Subject, target: Target, held: np.ndarray, seed: int
) -> dict[str, Any]:
    """Logistic regression on the frozen encoder."""
    options = other.options.logistic.hyperparameters()
    found = logistic.logistic_regression(
        *other.arrays(),
        path=logistic.path_of(*options.values()),
        validation=held,
        metric=target.metric,
        seed=seed,
        say=other.say,
    )
    part = {key: found[key] for key in ("top1", "top5", "predictions")}
    part["correct"] = found["predictions"] == other.embeddings("test")[1]
    part["correct5"] = found["correct5"]
    return _scored(other, target, part, penalty=found["penalty"])


def _scored(
    other: Subject, target: Target, part: dict[str, Any], **metrics: Any
) -> dict[str, Any]:
    """A measurement of predictions, with the dataset's own score."""
    labels = other.embeddings("test")[1]
    score = scoring.metric(target.metric)(part["predictions"], labels)
    by_class = labels if target.metric == "mean_per_class" else None
    return part | {
        "labels": labels,
        "metrics": {
            "metric": target.metric,
            "score": score,
            "score_interval": statistics.interval(part["correct"], by_class),
            **metrics,
        },
    }


def _recipes(
    other: Subject, grid: dict[str, Any], batch_size: int, seed: int
) -> list[tuning.Recipe]:
    """The points of a grid."""
    examples = other.train.info.num_examples
    batch = min(batch_size, examples)
    steps_per_epoch = max(examples / batch, 1)
    return [
        tuning.Recipe(
            steps=grid["steps"],
            learning_rate=rate,
            weight_decay=decay / rate,
            batch_size=batch,
            batch_norm_momentum=max(1 - 10 / steps_per_epoch, 0.9),
            seed=seed,
        )
        for rate in grid["learning_rates"]
        for decay in grid["weight_decays"]
    ]


def _trained(
    other: Subject,
    target: Target,
    held: np.ndarray,
    recipes: Sequence[tuning.Recipe],
    trained: bool,
) -> dict[str, Any]:
    """The whole network, by the recipe that does best on validation."""
    rows = np.arange(other.train.info.num_examples)
    sets = None
    if target.multi_label:
        sets, counted = several.objects(other, target, other.train.info.split)

        def score(scores: classifiers.Scores, rows: np.ndarray) -> float:
            return several.mean_precision(
                scores.scores, sets[rows], counted[rows]
            )[0]

    else:
        score = finetune.score_of(other, target.metric)
    recipe, chosen = finetune.choose(
        other, rows, recipes, trained=trained, held=held, score=score, sets=sets
    )
    model = tuning.train(other, rows, recipe, trained=trained, sets=sets)
    scores = model.scores(other, other.images("test"))
    metrics = {
        "learning_rate": recipe.learning_rate,
        "weight_decay": recipe.weight_decay,
        "validation": chosen,
        "losses": model.losses,
    }
    if target.multi_label:
        return several.scored(other, target, scores.scores, **metrics)
    part = arrays.accuracies(scores, other.embeddings("test")[1])
    return _scored(other, target, part, **metrics)
