"""The protocol `transfer`: the encoder on other datasets.

Chen et al. 2020 (SimCLR), appendix B.8: logistic regression on the frozen
encoder, fine-tuning, and a random network, on 12 datasets, each with its own
metric. Feeney and Hughes 2024 (SINCERE), appendix J: six of them by top-1.
VOC2007, whose images show objects of several classes, is scored by the 11-point
mean average precision of one classifier per class.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_contrastive import classifiers, datasets
from tf_contrastive.base import errors
from tf_contrastive.config.transfer import SUITES, Target
from tf_contrastive.evaluation import (
    classification,
    finetune,
    logistic,
    statistics,
)
from tf_contrastive.evaluation.classification_metrics import (
    eleven_point_average_precision,
)
from tf_contrastive.evaluation.context import Data, EvaluationContext, holdout
from tf_contrastive.evaluation.report import Measurement, Part

# VOC's feature of the classes that an image shows.
_PRESENT = "labels"

# ---- The protocol ------------------------------------------------------------


def lacks_datasets(context: EvaluationContext) -> str | None:
    """Returns why `transfer` has no dataset to measure, or None."""
    if context.subject.channels != 3:
        return "it needs an encoder of three channels"
    chosen = SUITES[context.options.transfer.suite].targets
    if any(_opened(context, target, 0) for target in chosen.values()):
        return None
    return _absent(context, chosen)


def measure(
    context: EvaluationContext,
    *,
    suite: str,
    methods: Sequence[str],
    examples: int,
    batch_size: int,
    logistic_options: dict[str, Any],
    validation_fraction: float,
    seed: int,
    grid: dict[str, Any],
    scratch_grid: dict[str, Any],
) -> Iterator[tuple[str, Part]]:
    """Scores the encoder on each dataset that is prepared.

    Hyperparameters are those of `config.protocols.Transfer` and `Logistic`; the
    context's own dataset is not used. They are selected on validation; the
    final model is trained on train and validation, and test is scored once.
    Variants are "DATASET METHOD"; metrics include the dataset's own "metric"
    and "score".
    """
    subject, chosen = context.subject, SUITES[suite]
    skipped: dict[str, Target] = {}
    for name, target in chosen.targets.items():
        opened = _opened(context, target, examples)
        if opened is None:
            skipped[name] = target
            continue
        data, held_out = opened
        if held_out is None:
            labels = data.labels("train")
            _, held_out = holdout(labels, validation_fraction, seed)
        # Of the same encoder and data, each with its own preprocessing.
        frozen = context.on(data, chosen.linear_preprocessing)
        tuned = context.on(data, chosen.tuned_preprocessing)
        for method in methods:
            trained = method != "scratch"
            if method == "linear":
                task = _Task(frozen, target, held_out, seed)
                path = logistic.path_of(*logistic_options.values())
                part = functools.partial(_linear, task, path)
            elif not subject.has_new_encoder(trained):
                context.log(f"transfer: the encoder has no copy for {method}")
                continue
            else:
                task = _Task(tuned, target, held_out, seed)
                rates = grid if trained else scratch_grid
                part = functools.partial(
                    _finetune, task, rates, batch_size, trained=trained
                )
            yield f"{name} {method}", part
    if skipped:
        reason = errors.plain(_absent(context, skipped))
        context.log(f"transfer: left out: {reason}")


def _opened(
    context: EvaluationContext, target: Target, examples: int
) -> tuple[Data, np.ndarray | None] | None:
    """Opens the first examples of each split (0: all); None: not prepared.

    Returns:
      (the splits, of which train includes validation; rows of train that are
      validation, None: a part of it).
    """
    prepared = functools.partial(
        context.prepared,
        target.dataset,
        label_feature=_PRESENT if target.multi_label else None,
    )

    def first(split: str) -> datasets.Source | None:
        source = prepared(split)
        if source is None or not 0 < examples < source.info.num_examples:
            return source
        return prepared(f"{split}[:{examples}]")

    train, test, rows = first("train"), first(target.test), None
    if train is None or test is None:
        return None
    if target.validation:
        validation = first(target.validation)
        if validation is None:
            return None
        count = train.info.num_examples
        splits = f"{train.info.split}+{validation.info.split}"
        train = prepared(splits)
        assert train is not None
        rows = np.arange(count, train.info.num_examples)
    # In memory, which determines the order of training.
    train = train.loaded() if target.multi_label else train
    return Data(train, test), rows


def _absent(context: EvaluationContext, missing: Mapping[str, Target]) -> str:
    """Says which targets are not prepared."""
    names = ", ".join(target.dataset for target in missing.values())
    folder = context.data_dir or "TFDS's default folder"
    return f"not prepared in {folder} ({errors.arg('data_dir')}): {names}"


class _Task(NamedTuple):
    """A dataset to measure."""

    context: EvaluationContext  # On its splits.
    target: Target
    held_out: np.ndarray  # Rows of train, to select on.
    seed: int


def _linear(task: _Task, path: np.ndarray) -> Measurement:
    """Measures logistic regression on the frozen encoder."""
    other = task.context
    if task.target.multi_label:
        return _multi_label_linear(task, path)
    result = logistic.logistic_regression(
        *other.labelled_embeddings,
        path=path,
        validation=task.held_out,
        metric=task.target.metric,
        seed=task.seed,
        log=other.log,
    )
    scores = classifiers.Scores(result["scores"], result["classes"])
    return _measured(task, scores, {"penalty": result["penalty"]})


def _measured(
    task: _Task, scores: classifiers.Scores, metrics: Mapping[str, Any]
) -> Measurement:
    """Returns the measurement of scores of test, by the dataset's metric."""
    target, data = task.target, task.context.data
    part: Measurement
    own: dict[str, Any]
    if target.multi_label:
        labels, _ = sets = _label_sets(task, data.test)
        predictions = scores.scores.argmax(axis=1)
        correct = labels[np.arange(len(predictions)), predictions]
        # No image has a class of its own, by which accuracies could differ.
        part = {"arrays": {"predictions": predictions}, "correct": correct}
        part["top1"] = float(correct.mean())
        mean, precisions = mean_average_precision(scores.scores, *sets)
        own = {"score": mean, "precisions": precisions}
    else:
        labels = data.labels("test")
        part = classification.accuracies(scores, labels)
        metric = classification.METRICS[target.metric]
        by_class = labels if metric is classification.mean_per_class else None
        own = {
            "score": metric(part["predictions"], labels),
            "score_interval": statistics.interval(part["correct"], by_class),
        }
    return {
        **part,
        "dataset": target.dataset,
        "labels": labels,
        "metrics": {"metric": target.metric, **own, **metrics},
    }


def _finetune(
    task: _Task, grid: dict[str, Any], batch_size: int, *, trained: bool
) -> Measurement:
    """Measures the fine-tuned network, by the best recipe on validation."""
    other, target = task.context, task.target
    rows = np.arange(other.data.train.info.num_examples)
    batch_size = min(batch_size, len(rows))
    steps_per_epoch = max(len(rows) / batch_size, 1)
    recipes = [
        finetune.Recipe(
            steps=grid["steps"],
            learning_rate=rate,
            weight_decay=decay / rate,
            batch_size=batch_size,
            batch_norm_momentum=max(1 - 10 / steps_per_epoch, 0.9),
            seed=task.seed,
            tuned_by=f"transfer_{'' if trained else 'scratch_'}learning_rates",
        )
        for rate in grid["learning_rates"]
        for decay in grid["weight_decays"]
    ]
    if target.multi_label:
        present, counted = _label_sets(task, other.data.train)

    def score(scores: classifiers.Scores, rows: np.ndarray) -> float:
        if target.multi_label:
            sets = present[rows], counted[rows]
            return mean_average_precision(scores.scores, *sets)[0]
        labels = other.data.labels("train")[rows]
        metric = classification.METRICS[target.metric]
        return metric(scores.top(1)[:, 0], labels)

    recipe, validation = finetune.select_recipe(
        other, task.held_out, recipes, trained=trained, score=score
    )
    model = finetune.train(other, rows, recipe, trained=trained)
    scores = model.scores(other, other.images(other.data.test))
    metrics = {
        "learning_rate": recipe.learning_rate,
        "weight_decay": recipe.weight_decay,
        "validation": validation,
        "losses": model.losses,
    }
    return _measured(task, scores, metrics)


# ---- Several classes per image -----------------------------------------------


def _label_sets(
    task: _Task, source: datasets.Source
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (classes present, classes that count), bool [n, C].

    As in VOC's evaluation, a difficult object is neither right nor wrong.
    """
    plain = task.context.prepared(
        task.target.dataset, source.info.split, "labels_no_difficult"
    )
    assert plain is not None
    present = source.label_rows() > 0
    return present, (plain.label_rows() > 0) | ~present


def _multi_label_linear(task: _Task, path: np.ndarray) -> Measurement:
    """Measures one classifier per class, at the penalty of the best mean AP."""
    other, held_out = task.context, task.held_out
    train, test = (other.embeddings(split)[0] for split in ("train", "test"))
    present, counted = _label_sets(task, other.data.train)
    fit_rows = np.setdiff1d(np.arange(len(train)), held_out)
    means = [
        mean_average_precision(at, present[held_out], counted[held_out])[0]
        for at in _scores_along_path(
            train[fit_rows], present[fit_rows], path, train[held_out]
        )
    ]
    best = int(np.argmax(means))  # Of equal ones the highest penalty.
    # The whole path again, since each solution starts from the previous one.
    final = _scores_along_path(train, present, path[: best + 1], test)[-1]
    metrics = {"penalty": float(path[best]), "validation": means}
    scores = classifiers.Scores(final, np.arange(final.shape[1]))
    return _measured(task, scores, metrics)


def _scores_along_path(
    train: np.ndarray, present: np.ndarray, path: np.ndarray, test: np.ndarray
) -> np.ndarray:
    """Returns log odds [path, n, C] of each class of test at each penalty."""
    problem = logistic.Problem(train, np.zeros(len(train), np.int64), 2)
    scores = np.zeros([len(path), len(test), present.shape[1]])
    for column, labels in enumerate(present.T):
        problem.label(labels.astype(np.int64), 2)
        # A softmax of two classes has half of a sigmoid's weights in each:
        # twice the penalty on them is equivalent.
        for row, fit in enumerate(logistic.fit_path(problem, 2 * path)):
            logits = fit.logits(test)
            scores[row, :, column] = logits[:, 1] - logits[:, 0]
    return scores


def mean_average_precision(
    scores: np.ndarray, present: np.ndarray, counted: np.ndarray
) -> tuple[float, list[float | None]]:
    """Returns the mean AP over the classes shown, and each class's AP or None.

    Scores are float [n, C]; `present` bool [n, C] says whether an image shows a
    class, and `counted` bool [n, C] whether it counts for the class.
    """
    precisions = [
        eleven_point_average_precision(
            scores[counts, column], present[counts, column].astype(np.int64)
        )
        if (present[:, column] & counts).any()
        else None
        for column, counts in enumerate(counted.T)
    ]
    known = [p for p in precisions if p is not None]
    return float(np.mean(known)) if known else 0.0, precisions
