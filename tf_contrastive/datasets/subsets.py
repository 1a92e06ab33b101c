"""Datasets made from others: some of their classes, some of their labels."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.dataset_names import (
    EMBEDDED_NOTE,
    Cifar2,
    ImageNet100,
    Subset,
    dataset_family,
)
from tf_contrastive.datasets import split_spec
from tf_contrastive.datasets.source import Info, Source

# (name, split) -> source: opens the dataset that another one is made from.
Opener = Callable[[str, str], Source]
# Fractions of imagenet2012 that are datasets of their own.
_IMAGENET_SUBSETS = {0.01: "1pct", 0.1: "10pct"}

# Classes in the order of their labels. Of CIFAR-10: Feeney and Hughes 2024,
# SINCERE.
CIFAR2 = ("cat", "dog")
# WordNet ids of imagenet2012: Tian et al. 2020, Contrastive Multiview Coding.
_WORDNET_IDS = """
n02869837 n01749939 n02488291 n02107142 n13037406 n02091831 n04517823 n04589890
n03062245 n01773797 n01735189 n07831146 n07753275 n03085013 n04485082 n02105505
n01983481 n02788148 n03530642 n04435653 n02086910 n02859443 n13040303 n03594734
n02085620 n02099849 n01558993 n04493381 n02109047 n04111531 n02877765 n04429376
n02009229 n01978455 n02106550 n01820546 n01692333 n07714571 n02974003 n02114855
n03785016 n03764736 n03775546 n02087046 n07836838 n04099969 n04592741 n03891251
n02701002 n03379051 n02259212 n07715103 n03947888 n04026417 n02326432 n03637318
n01980166 n02113799 n02086240 n03903868 n02483362 n04127249 n02089973 n03017168
n02093428 n02804414 n02396427 n04418357 n02172182 n01729322 n02113978 n03787032
n02089867 n02119022 n03777754 n04238763 n02231487 n03032252 n02138441 n02104029
n03837869 n03494278 n04136333 n03794056 n03492542 n02018207 n04067472 n03930630
n03584829 n02123045 n04229816 n02100583 n03642806 n04336792 n03259280 n02116738
n02108089 n03424325 n01855672 n02090622
"""
IMAGENET100 = tuple(_WORDNET_IDS.split())


def note_of(inner: Source) -> str:
    """The note on embedded data at the end of a dataset's name, if any."""
    return EMBEDDED_NOTE if inner.info.name.endswith(EMBEDDED_NOTE) else ""


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


def subset(name: str, options: Subset, split: str, opener: Opener) -> Source:
    """A balanced fraction of train; other splits whole."""
    published = _IMAGENET_SUBSETS.get(options.fraction)
    if published and dataset_family(options.of) == "imagenet2012":
        published = f"imagenet2012_subset/{published}"
        try:
            inner = opener(published, split)
        except errors.AbsentDataError:
            pass
        else:
            return inner.renamed(f"{name} ({published})")
    if split_spec.parse(split)[0] != "train":
        inner = opener(options.of, split)
        return inner.renamed(name + note_of(inner))
    inner = opener(options.of, "train")
    rows = balanced_rows(inner.labels(), options.fraction, options.seed)
    info = dataclasses.replace(inner.info, name=name + note_of(inner))
    return _sliced(inner, rows, split, info)


def of_classes(
    name: str,
    options: Cifar2 | ImageNet100,
    split: str,
    opener: Opener,
    *,
    of: str,
    names: Sequence[str],
) -> Source:
    """Examples of some classes; a label is its class's position in `names`."""
    inner = opener(of, split_spec.parse(split)[0])
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
    info = dataclasses.replace(
        inner.info,
        name=name,
        num_classes=len(names),
        label_names=tuple(names),
    )
    chosen = _sliced(inner, np.flatnonzero(numbers[labels] >= 0), split, info)
    with tf.device("CPU:0"):
        table = tf.convert_to_tensor(numbers)
    return chosen.relabelled(
        lambda record: tf.gather(table, record["label"]), chosen.info
    )


def _sliced(source: Source, rows: np.ndarray, split: str, info: Info) -> Source:
    """The examples at `rows` of a whole split, limited to the slice `split`."""
    start, stop = split_spec.bounds(split, len(rows))
    chosen = source.select(rows[start:stop])
    info = dataclasses.replace(info, split=split, num_examples=stop - start)
    return dataclasses.replace(chosen, info=info)
