"""Datasets made from others: some of their classes, some of their labels."""

import dataclasses
import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files
from tf_contrastive.config.dataset import (
    EMBEDDED_NOTE,
    OfClasses,
    Subset,
    dataset_family,
)
from tf_contrastive.datasets import split_spec, tfds_source
from tf_contrastive.datasets.source import Access, Info, Source


class Published(NamedTuple):
    """SimCLR's choice of labels of ImageNet (its footnote 5)."""

    dataset: str  # In TensorFlow Datasets.
    # Of google-research/simclr, in imagenet_subsets: names of images.
    file: str


# By fraction of the labels.
PUBLISHED = {
    0.01: Published("imagenet2012_subset/1pct", "1percent.txt"),
    0.1: Published("imagenet2012_subset/10pct", "10percent.txt"),
}


def is_imagenet(info: Info) -> bool:
    """Whether images are the training images of the published choices."""
    return dataset_family(info.name) == "imagenet2012" and info.split == "train"


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


def listed_rows(path: str, source: Source, data_dir: str | None) -> np.ndarray:
    """Returns the rows of the images that a file names, int64, increasing.

    The file has a name a line, such as n01440764_10026.JPEG. The source is of
    files of images, or of TFDS with the feature `file_name`.

    Raises:
      UserError: for a name that none, or more than one of the images has.
    """
    info = source.info
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(_image_names(source, data_dir)):
        rows.setdefault(os.path.basename(name), []).append(row)
    names = read_names(path)
    found = [rows.get(name, []) for name in names]
    if wrong := [n for n, r in zip(names, found, strict=True) if len(r) != 1]:
        raise errors.UserError(
            f"{path}: {len(wrong):,} of its {len(names):,} images are not in"
            f" {info.name} {info.split}, or several times, such as {wrong[0]}:"
            " use the list of these images"
        )
    return np.unique(np.concatenate(found))


def read_names(path: str) -> list[str]:
    """Reads a list of images; `UserError` if there is none."""
    try:
        names = files.read(path).decode().split()
    except (OSError, tf.errors.OpError, UnicodeDecodeError) as error:
        raise errors.UserError(
            f"the list of images {path} cannot be read"
            f" ({errors.first_line(error)}): copy it again"
        ) from error
    if not names:
        raise errors.UserError(f"{path} names no image: copy it again")
    return names


def _image_names(source: Source, data_dir: str | None) -> list[str]:
    """Returns the names of the files that images are from, in order."""
    if source.paths is not None:
        return list(source.paths)
    return tfds_source.file_names(source.info.name, source.info.split, data_dir)


def subset(name: str, options: Subset, split: str, access: Access) -> Source:
    """A balanced fraction of train; other splits whole."""
    published = PUBLISHED.get(options.fraction)
    if published and dataset_family(options.of) == "imagenet2012":
        try:
            inner = access.open(published.dataset, split)
        except errors.AbsentDataError:
            pass
        else:
            return inner.renamed(f"{name} ({published.dataset})")
    if split_spec.parse(split)[0] != "train":
        inner = access.open(options.of, split)
        return inner.renamed(name + note_of(inner))
    inner = access.open(options.of, "train").labelled()
    rows = balanced_rows(inner.labels(), options.fraction, options.seed)
    info = dataclasses.replace(inner.info, name=name + note_of(inner))
    return _sliced(inner, rows, split, info)


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
    info = dataclasses.replace(
        inner.info,
        name=name,
        num_classes=len(names),
        label_names=names,
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
