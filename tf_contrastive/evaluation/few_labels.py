"""The labels that `finetune` learns from: published lists, or a draw.

Chen et al. 2020 (SimCLR), footnote 5, names the images of ImageNet whose labels
it uses: the datasets `imagenet2012_subset` of TFDS, made of lists in its code.
"""

import os
from typing import NamedTuple

import numpy as np

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.config.checks import read_numbers
from tf_contrastive.config.protocols import DRAWN
from tf_contrastive.datasets import subsets
from tf_contrastive.evaluation import other_datasets
from tf_contrastive.evaluation.context import Data, EvaluationContext


class Labels(NamedTuple):
    """A part of the training labels."""

    context: EvaluationContext  # Its train has them.
    rows: np.ndarray  # Int [m], increasing, of that train.
    subset: str  # What they are, for people.
    is_published: bool


def choose(context: EvaluationContext, fraction: float, seed: int) -> Labels:
    """Chooses a fraction of the training labels.

    Raises `UserError` if published ones are asked for, and not here.
    """
    train, lists = context.data.train, context.options.finetune.lists
    published = _published(context, fraction)
    if not published:
        labels = context.labels("train")
        rows = subsets.balanced_rows(labels, fraction, seed)
        subset = "all" if fraction == 1 else DRAWN
        return Labels(context, rows, subset, is_published=False)
    if lists:
        path = os.path.join(lists, published.file)
        folder = other_datasets.data_dir(context)
        rows = subsets.listed_rows(path, train, folder)
        return Labels(context, rows, published.file, is_published=True)
    source = other_datasets.source(context, published.dataset, "train")
    if source is None:
        raise errors.UserError(_absent(context, published))
    datasets.check_scorable(source.info, context.data.test.info)
    data = Data(source, context.data.test)
    part = context.on(data)
    rows = np.arange(source.info.num_examples)
    return Labels(part, rows, published.dataset, is_published=True)


def lacks(context: EvaluationContext) -> str | None:
    """Returns which published labels are not here, or None."""
    options = context.options.finetune
    for fraction in read_numbers(options.fractions):
        if published := _published(context, fraction):
            if options.lists:
                subsets.read_names(os.path.join(options.lists, published.file))
            elif not other_datasets.source(context, published.dataset, "train"):
                return _absent(context, published)
    return None


def _published(
    context: EvaluationContext, fraction: float
) -> subsets.Published | None:
    """Returns the published labels to use; None: they are drawn."""
    lists = context.options.finetune.lists
    is_imagenet = subsets.is_imagenet(context.data.train.info)
    if lists == DRAWN or not (lists or is_imagenet):
        return None
    return subsets.PUBLISHED.get(fraction)


def _absent(context: EvaluationContext, published: subsets.Published) -> str:
    folder = other_datasets.data_dir(context) or "TFDS's default folder"
    return (
        f"its labels of {context.data.train.info.name} are SimCLR's lists:"
        f" prepare {published.dataset} in {folder}"
        f" ({errors.arg('data_dir')}), or set"
        f" {errors.arg('finetune_lists', 'FOLDER')} to one with"
        f" {published.file} of github.com/google-research/simclr"
        f" (imagenet_subsets), or {errors.arg('finetune_lists', DRAWN)} to"
        " draw the same number of each class"
    )
