"""Parts of other datasets: some of their classes, a share of their labels."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.dataset_names import (
    Cifar2,
    ImageNet100,
    Subset,
    dataset_family,
)
from tf_contrastive.datasets import classes, splits
from tf_contrastive.datasets.derived import Opener, note_of
from tf_contrastive.datasets.source import Info, Source

# Shares of imagenet2012 that are datasets of their own.
_IMAGENET_SUBSETS = {0.01: "1pct", 0.1: "10pct"}


def cifar2(
    name: str, options: Cifar2, split: str, open_inner: Opener
) -> Source:
    """CIFAR-10's cats and dogs."""
    del options
    return _of_classes(name, "cifar10", classes.CIFAR2, split, open_inner)


def imagenet100(
    name: str, options: ImageNet100, split: str, open_inner: Opener
) -> Source:
    """100 classes of ImageNet, whose labels are all read to find them."""
    del options
    wanted = classes.IMAGENET100
    return _of_classes(name, "imagenet2012", wanted, split, open_inner)


def subset(
    name: str, options: Subset, split: str, open_inner: Opener
) -> Source:
    """Some examples of each class of train; any other split whole."""
    share = _IMAGENET_SUBSETS.get(options.fraction)
    if share and dataset_family(options.of) == "imagenet2012":
        published = f"imagenet2012_subset/{share}"
        try:
            made = open_inner(published, split)
        except errors.AbsentDataError:
            pass
        else:
            info = dataclasses.replace(made.info, name=f"{name} ({published})")
            return dataclasses.replace(made, info=info)
    base = splits.parse(split)[0]
    if base != "train":
        made = open_inner(options.of, split)
        info = dataclasses.replace(made.info, name=name + note_of(made))
        return dataclasses.replace(made, info=info)
    inner = open_inner(options.of, base)
    rows = splits.balanced_rows(inner.labels(), options.fraction, options.seed)
    info = dataclasses.replace(inner.info, name=name + note_of(inner))
    return _sliced(inner, rows, split, info)


def _of_classes(
    name: str, of: str, names: Sequence[str], split: str, open_inner: Opener
) -> Source:
    """Examples of some classes, whose labels are their places in `names`."""
    inner = open_inner(of, splits.parse(split)[0])
    labels = inner.labels()
    known = inner.info.label_names
    if absent := [each for each in names if each not in known]:
        raise errors.UserError(
            f"dataset {name}: {inner.info.name} has no class {absent[0]!r}"
            f" among its {len(known)} names, and {len(absent) - 1} others are"
            " not there either: prepare it by TensorFlow Datasets"
        )
    table = np.full([inner.info.num_classes], -1, np.int64)
    table[[known.index(each) for each in names]] = np.arange(len(names))
    info = dataclasses.replace(
        inner.info,
        name=name,
        num_classes=len(names),
        label_names=tuple(names),
    )
    made = _sliced(inner, np.flatnonzero(table[labels] >= 0), split, info)
    with tf.device("CPU:0"):
        table = tf.convert_to_tensor(table)
    return made.relabelled(
        lambda record: tf.gather(table, record["label"]), made.info
    )


def _sliced(source: Source, rows: np.ndarray, split: str, info: Info) -> Source:
    """The examples at `rows` of a whole split, as far as `split` has them."""
    start, stop = splits.bounds(split, len(rows))
    chosen = source.select(rows[start:stop])
    info = dataclasses.replace(info, split=split, num_examples=stop - start)
    return dataclasses.replace(chosen, info=info)
