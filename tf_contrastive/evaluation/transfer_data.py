"""The data of `transfer`: prepared datasets, or images of the user's own."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.config.dataset import Prepared, read
from tf_contrastive.config.transfer import Target
from tf_contrastive.evaluation import other_datasets
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.data import Data


class TransferData(NamedTuple):
    """A target's images."""

    # Train includes validation. Its labels are row numbers if images have
    # several classes.
    data: Data
    validation: np.ndarray | None  # Rows of train; None: a part of it.
    seen: str  # What the encoder was trained on of test, or "".


class _Splits(NamedTuple):
    train: datasets.Source
    validation: datasets.Source | None
    test: datasets.Source
    both: datasets.Source  # Train and validation.


def opened(
    context: EvaluationContext, name: str, target: Target, examples: int
) -> TransferData | None:
    """Opens the first examples of each split (0: all); None: not prepared.

    Raises:
      UserError: if the user's dataset lacks labels or a split, or if test has
        images that train has, or whose labels the encoder was trained on.
    """
    is_own = target.is_given and not isinstance(read(target.dataset), Prepared)
    if is_own:
        splits = _own(context, target, examples)
    elif (prepared := _prepared(context, target, examples)) is not None:
        splits = prepared
    elif target.is_given:
        raise errors.UserError(absent(context, {name: target}))
    else:
        return None
    train, validation = splits.train, None
    if splits.validation is not None:
        validation = np.arange(
            train.info.num_examples, splits.both.info.num_examples
        )
        train = splits.both
    if target.multi_label:
        train = other_datasets.with_row_labels(train)
    seen = _seen(context, target, splits.test)
    return TransferData(Data(train, splits.test), validation, seen)


def absent(context: EvaluationContext, missing: Mapping[str, Target]) -> str:
    """Says which targets are not prepared, and what to do."""
    names = ", ".join(target.dataset for target in missing.values())
    folder = other_datasets.data_dir(context) or "TFDS's default folder"
    text = f"not prepared in {folder} ({errors.arg('data_dir')}): {names}"
    own = [
        f"{name}=folder:PATH"
        for name, target in missing.items()
        if not target.in_tfds
    ]
    if own:
        text += (
            "; TensorFlow Datasets does not have all of them: set"
            f" {errors.arg('transfer_datasets', ','.join(own))}"
        )
    return text


# ---- Prepared datasets -------------------------------------------------------


def _prepared(
    context: EvaluationContext, target: Target, examples: int
) -> _Splits | None:
    """Opens a prepared dataset by its official splits; None: not prepared."""
    name = target.dataset

    def source(split: str) -> datasets.Source | None:
        whole = other_datasets.source(context, name, split)
        if whole is None or not 0 < examples < whole.info.num_examples:
            return whole
        return other_datasets.source(context, name, f"{split}[:{examples}]")

    train, test = source("train"), source(target.test)
    if train is None or test is None:
        return None
    if not target.validation:
        return _Splits(train, None, test, train)
    validation = source(target.validation)
    if validation is None:
        return None
    both = other_datasets.source(
        context, name, f"{train.info.split}+{validation.info.split}"
    )
    return _Splits(train, validation, test, both) if both else None


# ---- Images of the user's own ------------------------------------------------


def _own(context: EvaluationContext, target: Target, examples: int) -> _Splits:
    """Opens images in folders or lists, each with one class."""
    name = target.dataset
    # The option is of the run's own data.
    reading = dataclasses.replace(context.options.reading, test_fraction=0.0)

    def source(split: str) -> datasets.Source:
        whole = datasets.source(name, split, reading=reading)
        if not whole.info.has_labels:
            raise errors.UserError(
                f"{errors.arg('transfer_datasets', name)}: {split} has no"
                " labels: use a folder for each class, or a list with labels"
            )
        if not 0 < examples < whole.info.num_examples:
            return whole
        return datasets.source(name, f"{split}[:{examples}]", reading=reading)

    train, test = source("train"), source("test")
    validation = None
    try:
        validation = source("validation")
    except errors.AbsentSplitError:
        context.log(
            f"transfer: {name} has no split validation: hyperparameters are"
            " chosen on a part of train"
        )
    parts = [train, test] if validation is None else [train, validation, test]
    info = datasets.check_scorable(train.info, test.info)
    for position, learnt in enumerate(parts[:-1]):
        for scored in parts[position + 1 :]:
            # Names of no options: the splits are those of the folder.
            warning = datasets.check_disjoint(learnt, scored, "split", "split")
            if warning:
                context.log(f"warning: {warning}")
    return _Splits(
        train,
        validation,
        dataclasses.replace(test, info=info),
        train if validation is None else train.joined(validation),
    )


# ---- Images that were trained on ---------------------------------------------


def _seen(
    context: EvaluationContext, target: Target, test: datasets.Source
) -> str:
    """Says what the encoder was trained on of a target's images."""

    def find() -> str:
        text = ""
        for run, trained in context.trainings:
            labelled = run.loss.needs_labels
            seen = datasets.find_seen(trained, test, labelled)
            if seen.are_known:
                raise errors.UserError(
                    f"transfer to {target.dataset}: {seen.text}: repeat"
                    " pretrain without them"
                )
            text = text or seen.text
        if text:
            context.log(f"warning: transfer to {target.dataset}: {text}")
        return text

    return context.cached(("seen", target.dataset), find)
