"""The labels that `finetune` learns from: published ones, or a draw.

Chen et al. 2020 (SimCLR), footnote 5, names the images of ImageNet whose labels
it uses: the datasets `imagenet2012_subset` of TFDS.
"""

from typing import NamedTuple

import numpy as np

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.config.dataset import dataset_family
from tf_contrastive.datasets import subsets
from tf_contrastive.evaluation import other_datasets
from tf_contrastive.evaluation.context import Data, EvaluationContext

# Of labels that no list names.
DRAWN = "drawn"
# Fraction of ImageNet's labels -> the dataset that has SimCLR's choice of them.
_PUBLISHED = {
    0.01: "imagenet2012_subset/1pct",
    0.1: "imagenet2012_subset/10pct",
}


class Labels(NamedTuple):
    """A part of the training labels."""

    context: EvaluationContext  # Its train has them.
    rows: np.ndarray  # Int [m], increasing, of that train.
    subset: str  # What they are, for people.
    is_published: bool


def choose(context: EvaluationContext, fraction: float, seed: int) -> Labels:
    """Chooses a fraction of the training labels.

    Raises `UserError` if published ones are asked for, and not prepared.
    """
    published = _published(context, fraction)
    if not published:
        labels = context.labels("train")
        rows = subsets.balanced_rows(labels, fraction, seed)
        subset = "all" if fraction == 1 else DRAWN
        return Labels(context, rows, subset, is_published=False)
    source = other_datasets.source(context, published, "train")
    if source is None:
        raise errors.UserError(_absent(context, published))
    datasets.check_scorable(source.info, context.data.test.info)
    part = context.on(Data(source, context.data.test))
    rows = np.arange(source.info.num_examples)
    return Labels(part, rows, published, is_published=True)


def lacks(context: EvaluationContext) -> str | None:
    """Returns which published labels are not here, or None."""
    options = context.options.finetune
    for fraction in options.fractions:
        published = _published(context, fraction)
        if published and not other_datasets.source(context, published, "train"):
            return _absent(context, published)
    return None


def _published(context: EvaluationContext, fraction: float) -> str | None:
    """Returns the dataset of the published labels; None: they are drawn."""
    info = context.data.train.info
    is_imagenet = dataset_family(info.name) == "imagenet2012"
    is_imagenet = is_imagenet and info.split == "train"
    return _PUBLISHED.get(fraction) if is_imagenet else None


def _absent(context: EvaluationContext, published: str) -> str:
    folder = other_datasets.data_dir(context) or "TFDS's default folder"
    return (
        f"its labels of {context.data.train.info.name} are SimCLR's lists:"
        f" prepare {published} in {folder} ({errors.arg('data_dir')}), or"
        f" set other {errors.arg('finetune_fractions')}"
    )
