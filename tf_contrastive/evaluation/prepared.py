"""Datasets beside the subject's own that protocols use where they are there."""

import numpy as np

from tf_contrastive import config, datasets
from tf_contrastive.evaluation.subject import Subject


def needs_labels(subject: Subject) -> str | None:
    """What keeps a protocol of classes from the data, or None."""
    for source in (subject.train, subject.test):
        if not source.info.has_labels:
            return (
                f"{source.info.name} {source.info.split} has no labels to score"
                " against: give --dataset=NAME of a labelled dataset"
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
    except config.UserError:
        return None


def label_sets(
    subject: Subject, name: str, split: str, feature: str
) -> np.ndarray:
    """Which classes each example of such a split has, bool [n, C]."""
    return datasets.label_sets(name, split, data_dir(subject), feature)
