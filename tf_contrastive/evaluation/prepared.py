"""Datasets beside the subject's own that protocols use where they are there."""

import dataclasses

import numpy as np
import tensorflow as tf

from tf_contrastive import datasets, errors
from tf_contrastive.datasets import tfds_source
from tf_contrastive.datasets.source import in_files
from tf_contrastive.evaluation.subject import Subject


def needs_labels(subject: Subject) -> str | None:
    """What keeps a protocol of classes from the data, or None."""
    for source in (subject.train, subject.test):
        if not source.info.has_labels:
            return (
                f"{source.info.name} {source.info.split} has no labels to score"
                " against: give dataset=NAME of a labelled dataset"
            )
    return None


def data_dir(subject: Subject) -> str | None:
    """Where prepared datasets are looked for; None: TFDS's own place."""
    given = subject.options.evaluation.data_dir
    if not given and subject.run:
        given = subject.run.data.data_dir
    return given or None


def source(subject: Subject, name: str, split: str) -> datasets.Source | None:
    """Opens a split of a dataset of TFDS; None where it is not prepared."""
    try:
        return datasets.source(name, split, data_dir=data_dir(subject))
    except errors.UserError:
        return None


def label_sets(
    subject: Subject, name: str, split: str, feature: str
) -> np.ndarray:
    """Which classes each example of such a split has, bool [n, C]."""
    return tfds_source.label_sets(name, split, data_dir(subject), feature)


def numbered(source: datasets.Source) -> datasets.Source:
    """The same examples, each with its row as its label.

    So that what is learned from in any order finds what else is known of an
    example, such as its `label_sets`.

    Args:
      source: whole splits or slices of TFDS, each file of which comes once.
    """
    files = source.files
    names = tf.constant(list(files.names))
    # Of the first record in each file, were it not skipped.
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
