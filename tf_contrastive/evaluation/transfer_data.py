"""The data of `transfer`: prepared datasets, or images of the user's own."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.config.dataset import Prepared, read
from tf_contrastive.config.transfer import Target
from tf_contrastive.evaluation import other_datasets, seen_images
from tf_contrastive.evaluation.context import Data, EvaluationContext


class TransferData(NamedTuple):
    """A target's images."""

    # Train includes validation. Its labels are row numbers if images have
    # several classes.
    data: Data
    validation: np.ndarray | None  # Rows of train; None: a part of it.
    seen: str  # What the encoder was trained on of test, or "".


def opened(
    context: EvaluationContext, name: str, target: Target, examples: int
) -> TransferData | None:
    """Opens the first examples of each split (0: all); None: not prepared.

    Raises:
      UserError: if the user's dataset lacks labels or a split, or if test has
        images that train has, or whose labels the encoder was trained on.
    """
    is_own = target.is_given and not isinstance(read(target.dataset), Prepared)

    def whole(split: str) -> datasets.Source | None:
        if is_own:
            return _own(context, target.dataset, split)
        return other_datasets.source(context, target.dataset, split)

    def first(split: str) -> datasets.Source | None:
        source = whole(split)
        if source is None or not 0 < examples < source.info.num_examples:
            return source
        return whole(f"{split}[:{examples}]")

    train, validation = first("train"), None
    test = first("test" if is_own else target.test)
    if is_own:
        # Without one, a part of train is used.
        with contextlib.suppress(errors.AbsentSplitError):
            validation = first("validation")
    elif target.validation:
        validation = first(target.validation)
    is_whole = is_own or bool(validation) == bool(target.validation)
    if train is None or test is None or not is_whole:
        if target.is_given:
            raise errors.UserError(absent(context, {name: target}))
        return None
    if is_own:
        test = _checked(context, train, validation, test)
    rows = None
    if validation is not None:
        count = train.info.num_examples
        both = (
            train.joined(validation)
            if is_own
            else whole(f"{train.info.split}+{validation.info.split}")
        )
        assert both is not None
        train, rows = both, np.arange(count, both.info.num_examples)
    if target.multi_label:
        train = other_datasets.with_row_labels(train)
    return TransferData(Data(train, test), rows, _seen(context, target, test))


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


def _own(context: EvaluationContext, name: str, split: str) -> datasets.Source:
    """Opens a split of images in folders or lists, each with one class."""
    # The option is of the run's own data.
    reading = dataclasses.replace(context.options.reading, test_fraction=0.0)
    source = datasets.source(name, split, reading=reading)
    if not source.info.has_labels:
        raise errors.UserError(
            f"{errors.arg('transfer_datasets', name)}: {split} has no labels:"
            " use a folder for each class, or a list with labels"
        )
    return source


def _checked(
    context: EvaluationContext,
    train: datasets.Source,
    validation: datasets.Source | None,
    test: datasets.Source,
) -> datasets.Source:
    """Returns test with train's classes, if no image is in several splits."""
    info = datasets.check_scorable(train.info, test.info)
    parts = [train, test] if validation is None else [train, validation, test]
    for position, learnt in enumerate(parts[:-1]):
        for scored in parts[position + 1 :]:
            # Names of no options: the splits are those of the folder.
            warning = datasets.check_disjoint(learnt, scored, "split", "split")
            if warning:
                context.log(f"warning: {warning}")
    return dataclasses.replace(test, info=info)


def _seen(
    context: EvaluationContext, target: Target, test: datasets.Source
) -> str:
    """Says what the encoder was trained on of a target's images; cached."""

    def find() -> str:
        found = [
            seen_images.check(run, trained, test, refuse=True)
            for run, trained in context.trainings
        ]
        text = next(filter(None, found), "")
        if text:
            context.log(f"warning: transfer to {target.dataset}: {text}")
        return text

    return context.cached(("seen", target.dataset), find)
