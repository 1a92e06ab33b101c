"""The protocol `transfer`: the encoder on other datasets.

SimCLR, appendix B.8: logistic regression on the frozen encoder, fine-tuning,
and a random network, on 12 datasets, each by its own metric; what must be
chosen is chosen on validation, then all of train and validation is learned
from, and test is scored once. SINCERE, appendix J: six of them by top-1, at 32
pixels. VOC2007, whose images have several labels, is scored by the 11-point
mean average precision of one classifier per class, a sigmoid each where the
network is fine-tuned.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_contrastive import classifiers, config
from tf_contrastive.evaluation import (
    calibration,
    finetune,
    logistic,
    prepared,
    scoring,
    statistics,
)
from tf_contrastive.evaluation.subject import Subject

_SIDE_OF_SINCERE = 32
_MEAN_AVERAGE_PRECISION = "mean_average_precision"


@dataclasses.dataclass(frozen=True)
class Target:
    """A dataset, and how it is scored.

    Attributes:
      dataset: its name in TensorFlow Datasets, or of what is prepared under
        that name in the same folder.
      metric: of `scoring.METRICS`; or that of several labels an image.
      validation: its official validation split; None: a part of train is held
        out.
      test: the split that is scored.
    """

    dataset: str
    metric: str
    validation: str | None = None
    test: str = "test"

    @property
    def several_labels(self) -> bool:
        """Whether an image may show objects of several classes."""
        return self.metric == _MEAN_AVERAGE_PRECISION


# P5.4. Of the datasets that come in several train/test splits the first one is
# taken: SUN397's, and DTD's, which is the only one of TensorFlow Datasets. Its
# Caltech-101 has 30 random images a class for training, the rest for test.
TARGETS = {
    "food101": Target("food101", "top1", test="validation"),
    "cifar10": Target("cifar10", "top1"),
    "cifar100": Target("cifar100", "top1"),
    "birdsnap": Target("birdsnap", "top1"),
    "sun397": Target("sun397/standard-part1-120k", "top1"),
    "cars": Target("cars196", "top1"),
    "aircraft": Target("fgvc_aircraft", "mean_per_class", "validation"),
    "dtd": Target("dtd", "top1", "validation"),
    "pets": Target("oxford_iiit_pet", "mean_per_class"),
    "caltech101": Target("caltech101", "mean_per_class"),
    "voc2007": Target("voc/2007", _MEAN_AVERAGE_PRECISION, "validation"),
    "flowers": Target("oxford_flowers102", "mean_per_class", "validation"),
}
_SINCERE = ("pets", "dtd", "aircraft", "food101", "flowers", "cars")


def targets(suite: str) -> dict[str, Target]:
    """The datasets of a suite by name.

    Raises:
      UserError: for an unknown suite.
    """
    if suite not in config.TRANSFER_SUITES:
        raise config.unknown("suite", suite, config.TRANSFER_SUITES)
    if suite == "simclr":
        return TARGETS
    return {
        name: dataclasses.replace(TARGETS[name], metric="top1")
        for name in _SINCERE
    }


def needs(subject: Subject) -> str | None:
    """What is absent for this protocol; None: nothing."""
    if subject.channels != 3:
        return "an encoder of three channels: other datasets have no others"
    chosen = targets(subject.options.transfer.transfer_suite)
    if any(_opened(subject, target, 0) for target in chosen.values()):
        return None
    names = ", ".join(target.dataset for target in chosen.values())
    place = prepared.data_dir(subject) or "TFDS's own folder"
    return f"none of its datasets is prepared in {place}: {names}"


def measure(
    subject: Subject,
    *,
    suite: str = config.TransferProtocol.transfer_suite,
    methods: Sequence[str] = config.TRANSFER_METHODS,
    examples: int = config.TransferProtocol.transfer_examples,
    batch_size: int = config.TransferProtocol.transfer_batch_size,
    grid: dict[str, Any] | None = None,
    scratch_grid: dict[str, Any] | None = None,
    validation_share: float = config.Evaluation.validation_share,
    seed: int = config.Evaluation.seed,
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
      validation_share: held out where a dataset has no validation split.
      seed: of what is held out, of orders and views.

    Returns:
      Measurements "DATASET METHOD", see `protocols`. "metrics" holds the
      dataset's own "metric" and "score".

    Raises:
      UserError: for an unknown name, or if no dataset is prepared.
    """
    for method in methods:
        if method not in config.TRANSFER_METHODS:
            raise config.unknown("method", method, config.TRANSFER_METHODS)
    knobs = config.TransferProtocol().knobs()
    grids = {
        "finetune": grid or knobs["grid"],
        "scratch": scratch_grid or knobs["scratch_grid"],
    }
    chosen = targets(suite)
    if suite == "sincere" and subject.side != _SIDE_OF_SINCERE:
        subject.say(
            f"transfer: SINCERE's images have {_SIDE_OF_SINCERE} pixels a side,"
            f" and this encoder takes {subject.side}"
        )
    if subject.run is None and "finetune" in methods and subject.has_fresh():
        subject.say(
            "transfer: in an export BatchNormalization has a fixed momentum;"
            " give the --workdir of its run for the papers'"
        )
    absent, parts = [], {}
    for name, target in chosen.items():
        opened = _opened(subject, target, examples)
        if opened is None:
            absent.append(target.dataset)
            continue
        other, held = opened
        held = held if held is not None else _held(other, validation_share)
        for method in methods:
            subject.say(f"transfer: {name}, {method}")
            trained = method == "finetune"
            if method == "linear":
                of = _several_linear if target.several_labels else _linear
                part = of(other, target, held, seed)
            elif subject.has_fresh(trained):
                recipes = _recipes(other, grids[method], batch_size, seed)
                part = _trained(other, target, held, recipes, trained)
            else:
                subject.say(f"transfer: nothing makes a {method} encoder")
                continue
            parts[f"{name} {method}"] = part | {"dataset": target.dataset}
    if absent:
        place = prepared.data_dir(subject) or "the TFDS folder"
        names = ", ".join(absent)
        subject.say(f"transfer: left out, not prepared in {place}: {names}")
    if not parts:
        raise config.UserError(
            "transfer: no dataset is prepared: prepare one of"
            f" {', '.join(t.dataset for t in chosen.values())}, or give the"
            " --data_dir that has it"
        )
    return {"parts": parts}


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
    if target.several_labels:
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


def _linear(
    other: Subject, target: Target, held: np.ndarray, seed: int
) -> dict[str, Any]:
    """Logistic regression on the frozen encoder."""
    options = other.options.logistic.knobs()
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


def _several_linear(
    other: Subject, target: Target, held: np.ndarray, seed: int
) -> dict[str, Any]:
    """One classifier per class, all of the penalty of the best mean AP."""
    del seed  # Nothing is drawn.
    train, test = (other.embeddings(split)[0] for split in ("train", "test"))
    wanted, scored = _objects(other, target, other.train.info.split)
    fitted = np.setdiff1d(np.arange(len(train)), held)
    options = other.options.logistic.knobs()
    path = logistic.path_of(*options.values())
    scores = _scores_of_classes(
        train[fitted], wanted[fitted], path, train[held]
    )
    means = [
        _mean_precision(at, wanted[held], scored[held])[0] for at in scores
    ]
    best = int(np.argmax(means))  # Of equal ones the highest.
    # Warm-started down to the penalty that was chosen.
    *_, found = _scores_of_classes(train, wanted, path[: best + 1], test)
    return _several_scored(
        other, target, found, penalty=float(path[best]), validation=means
    )


def _several_scored(
    other: Subject, target: Target, scores: np.ndarray, **metrics: Any
) -> dict[str, Any]:
    """A measurement of each class's scores [n, C] of test.

    An object that is difficult to see is neither right nor wrong to find, as in
    VOC's own evaluation.
    """
    wanted, scored = _objects(other, target, other.test.info.split)
    mean, precisions = _mean_precision(scores, wanted, scored)
    first = scores.argmax(axis=1)
    correct = wanted[np.arange(len(first)), first]
    return {
        "top1": float(correct.mean()),
        "predictions": first,
        "correct": correct,
        "labels": wanted.argmax(axis=1),
        "metrics": {
            "metric": target.metric,
            "score": mean,
            "precisions": precisions,
            **metrics,
        },
    }


def _objects(
    other: Subject, target: Target, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """(classes that each image shows, those that count): bool [n, C]."""
    shown, plain = (
        prepared.label_sets(other, target.dataset, split, feature)
        for feature in ("labels", "labels_no_difficult")
    )
    return shown, plain | ~shown


def _scores_of_classes(
    train: np.ndarray, wanted: np.ndarray, path: np.ndarray, test: np.ndarray
) -> list[np.ndarray]:
    """Log odds of each class at each penalty: [n, C] of test."""
    zeros = np.zeros(len(train), np.int64)
    shared = logistic.Problem(train, zeros, 2)
    scores = np.zeros([len(path), len(test), wanted.shape[1]])
    for column, present in enumerate(wanted.T):
        problem = shared.relabelled(present.astype(np.int64), 2)
        # A softmax of two classes has half the weights of a sigmoid in each:
        # twice the penalty on them is the same.
        for row, fit in enumerate(logistic.fit_path(problem, 2 * path)):
            logits = fit.logits(test)
            scores[row, :, column] = logits[:, 1] - logits[:, 0]
    return list(scores)


def _mean_precision(
    scores: np.ndarray, wanted: np.ndarray, scored: np.ndarray
) -> tuple[float, list[float | None]]:
    """Mean over the classes that are shown, and each; None: it is not."""
    precisions = [
        calibration.eleven_point_average_precision(
            scores[counts, column], wanted[counts, column].astype(np.int64)
        )
        if (wanted[:, column] & counts).any()
        else None
        for column, counts in enumerate(scored.T)
    ]
    found = [p for p in precisions if p is not None]
    return float(np.mean(found)) if found else 0.0, precisions


def _recipes(
    other: Subject, grid: dict[str, Any], batch_size: int, seed: int
) -> list[finetune.Recipe]:
    """The points of a grid."""
    examples = other.train.info.num_examples
    batch = min(batch_size, examples)
    steps_per_epoch = max(examples / batch, 1)
    return [
        finetune.Recipe(
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
    recipes: Sequence[finetune.Recipe],
    trained: bool,
) -> dict[str, Any]:
    """The whole network, by the recipe that does best on validation."""
    rows = np.arange(other.train.info.num_examples)
    sets = None
    if target.several_labels:
        sets, counted = _objects(other, target, other.train.info.split)

        def score(scores: classifiers.Scores, rows: np.ndarray) -> float:
            return _mean_precision(scores.scores, sets[rows], counted[rows])[0]

    else:
        score = finetune.score_of(other, target.metric)
    recipe, chosen = finetune.choose(
        other, rows, recipes, trained=trained, held=held, score=score, sets=sets
    )
    model = finetune.train(other, rows, recipe, trained=trained, sets=sets)
    scores = model.scores(other, other.images("test"))
    metrics = {
        "learning_rate": recipe.learning_rate,
        "weight_decay": recipe.weight_decay,
        "validation": chosen,
        "losses": model.losses,
    }
    if target.several_labels:
        return _several_scored(other, target, scores.scores, **metrics)
    part = finetune.report(scores, other.embeddings("test")[1])
    return _scored(other, target, part, **metrics)
