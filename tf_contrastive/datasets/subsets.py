"""Datasets made from others: some of their classes, some of their labels."""

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.dataset import OfClasses, Subset
from tf_contrastive.datasets import split_spec
from tf_contrastive.datasets.source import Access, Source


def balanced_rows(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Draws the same number of examples of every class: rows [m], increasing.

    With the same seed, the examples of a smaller fraction are among those of a
    larger one.

    Args:
      labels: int [n].
      fraction: fraction of all examples, in (0, 1]; at least one per class.
        Smaller classes contribute all of theirs. 1 takes all, balanced or not.
      seed: seed of the draw.
    """
    if fraction >= 1:
        return np.arange(len(labels))
    classes = np.unique(labels)
    count = max(round(fraction * len(labels) / len(classes)), 1)
    # The stream of RandomState never changes; Generator's may.
    random = np.random.RandomState(seed % 2**32)
    rows = [
        random.permutation(np.flatnonzero(labels == label))[:count]
        for label in classes
    ]
    return np.sort(np.concatenate(rows))


def subset(name: str, options: Subset, split: str, access: Access) -> Source:
    """A balanced fraction of train; other splits whole."""
    if split_spec.base(split) != "train":
        return access.open(options.of, split).described(name=name)
    inner = access.open(options.of, "train").labelled()
    labels = inner.labels()
    rows = balanced_rows(labels, options.fraction, options.seed)
    return _sliced(inner.described(name=name), labels, rows, split)


def of_classes(
    name: str, options: OfClasses, split: str, access: Access
) -> Source:
    """Examples of some classes; a label is its class's position in them."""
    names = options.classes
    inner = access.open(options.of, split_spec.parse(split)[0]).labelled()
    labels = inner.labels()
    known = inner.info.label_names
    if absent := [each for each in names if each not in known]:
        raise errors.UserError(
            f"dataset {name}: {inner.info.name} lacks {len(absent)} classes,"
            f" such as {absent[0]!r}, among its {len(known)} names: prepare it"
            " with TensorFlow Datasets"
        )
    numbers = np.full([len(known)], -1, np.int64)
    numbers[[known.index(each) for each in names]] = np.arange(len(names))
    inner = inner.described(
        name=name, num_classes=len(names), label_names=names
    )
    chosen = _sliced(inner, labels, np.flatnonzero(numbers[labels] >= 0), split)
    with tf.device("CPU:0"):
        table = tf.convert_to_tensor(numbers)
    return chosen.relabelled(
        lambda record: tf.gather(table, record["label"]), chosen.info
    )


def _sliced(
    source: Source, labels: np.ndarray, rows: np.ndarray, split: str
) -> Source:
    """The examples at `rows` of a whole split, limited to the slice `split`."""
    start, stop = split_spec.bounds(split, len(rows))
    labels = labels[rows]
    if (labels[:-1] <= labels[1:]).all():  # Those of folders: class by class.
        rows = rows[split_spec.random_order(map(str, rows))]
    rows = np.sort(rows[start:stop])
    return source.select(rows).described(split=split)
