"""Prepared datasets of TFDS that a protocol uses besides the context's own."""

import dataclasses

import numpy as np

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.datasets.source import in_memory
from tf_contrastive.evaluation.context import EvaluationContext


def data_dir(context: EvaluationContext) -> str | None:
    """Returns the folder of prepared datasets; None: TFDS's default."""
    folder = context.options.evaluation.data_dir
    if not folder and context.subject.run:
        folder = context.subject.run.data.data_dir
    return folder or None


def source(
    context: EvaluationContext, name: str, split: str
) -> datasets.Source | None:
    """Opens a split of a TFDS dataset; None if it is not prepared."""
    try:
        return datasets.source(name, split, data_dir=data_dir(context))
    # A dataset that TFDS does not know may be prepared under its name.
    except (errors.AbsentDataError, errors.UnknownDatasetError):
        return None


def with_row_labels(source: datasets.Source) -> datasets.Source:
    """Returns the same examples, each with its row number as its label.

    A shuffled example can then be matched with `tfds_source.label_sets`. Their
    encoded images are held in memory.
    """
    loaded = source.loaded()
    count = source.info.num_examples
    info = dataclasses.replace(source.info, num_classes=count, label_names=())
    return in_memory(
        {**(loaded.arrays or {}), "label": np.arange(count)},
        source.decode,
        info,
    )
