"""Prepared datasets of TFDS that a protocol uses besides the context's own."""

import dataclasses

import numpy as np
import tensorflow as tf

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.datasets.source import in_files
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

    A shuffled example can then be matched with `tfds_source.label_sets`. The
    source is of whole splits or slices of TFDS; each file occurs once.
    """
    files = source.files
    if files is None:
        raise ValueError(f"{source.info.name} is not read from files")
    names = tf.constant(list(files.names))
    # The row of each file's first record, if none were skipped.
    firsts = np.cumsum([0, *files.counts[:-1]]) - np.asarray(files.skips)
    firsts = tf.constant(firsts, tf.int64)

    def read(name: tf.Tensor) -> tf.data.Dataset:
        first = firsts[tf.argmax(tf.cast(names == name, tf.int32))]
        records = files.read(name).enumerate(first)
        return records.map(lambda row, record: record | {"label": row})

    info = dataclasses.replace(
        source.info, num_classes=source.info.num_examples, label_names=()
    )
    return in_files(dataclasses.replace(files, read=read), source.decode, info)
