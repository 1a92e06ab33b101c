"""Datasets by name: encoded records, their decoding, and their metadata.

A name is `digits`, a scheme of `SCHEMES`, a derived dataset of `DERIVED`, or a
prepared dataset of TensorFlow Datasets. `pipeline` makes training and
evaluation batches of them.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.data import Data, Reading
from tf_contrastive.config.dataset_names import read_probing
from tf_contrastive.datasets import split_spec, unreadable
from tf_contrastive.datasets.array_source import digits, from_arrays
from tf_contrastive.datasets.color_statistics import channel_statistics
from tf_contrastive.datasets.data_service import DataService
from tf_contrastive.datasets.digit_canvases import digit_on_image, multidigits
from tf_contrastive.datasets.image_files import csv_file, folder
from tf_contrastive.datasets.packing import pack, packed
from tf_contrastive.datasets.pipeline import (
    ViewMaker,
    evaluation_batches,
    evaluation_part,
    in_memory,
    part_size,
    training_batches,
    view_batches,
)
from tf_contrastive.datasets.random_bits import kbits, randbit
from tf_contrastive.datasets.sampler import Order, steps_per_epoch
from tf_contrastive.datasets.source import Info, Source
from tf_contrastive.datasets.subsets import (
    CIFAR2,
    IMAGENET100,
    of_classes,
    subset,
)
from tf_contrastive.datasets.tfds_source import open_tfds
from tf_contrastive.datasets.tfrecord import tfrecord

__all__ = [
    "DERIVED",
    "SCHEMES",
    "DataService",
    "Info",
    "Order",
    "Source",
    "ViewMaker",
    "channel_statistics",
    "check_scorable",
    "evaluation_batches",
    "evaluation_part",
    "from_arrays",
    "from_folder",
    "in_memory",
    "load",
    "name_unreadable",
    "pack",
    "part_size",
    "source",
    "steps_per_epoch",
    "training_batches",
    "view_batches",
]

# Scheme -> (name, path, split, reading) -> source.
SCHEMES: dict[str, Callable[[str, str, str, Reading], Source]]
SCHEMES = {
    "folder": folder,
    "csv": csv_file,
    "packed": packed,
    "tfrecord": tfrecord,
}
# Datasets made from others: name -> (name, options, split, opener) -> source.
DERIVED: dict[str, Callable[..., Source]]
DERIVED = {
    "subset": subset,
    "cifar2": functools.partial(of_classes, of="cifar10", names=CIFAR2),
    "imagenet100": functools.partial(
        of_classes, of="imagenet2012", names=IMAGENET100
    ),
    "multidigits": multidigits,
    "digit_on_image": digit_on_image,
    "randbit": randbit,
    "kbits": kbits,
}

_READING = Reading()
# Datasets that this process has opened: (name, split, data_dir, reading) ->
# state.
_opened: dict[tuple[str, str, str | None, Reading], unreadable.State] = {}


def source(
    name: str,
    split: str = Data.split,
    *,
    data_dir: str | None = None,
    reading: Reading = _READING,
) -> Source:
    """Opens one split of a dataset.

    Args:
      name: `digits`, `SCHEME:PATH` with one of `SCHEMES`, a name of
        `DERIVED` with its options (see `config.dataset_names.read_probing`),
        or a TFDS name such as `cifar10` or `cifar10_corrupted/fog_3:1.0.0`.
      split: such as `train`, `test`, `train[:1000]` or `train[10%:]`.
      data_dir: folder of prepared TensorFlow Datasets; None: TFDS's default.
      reading: options of `folder:`, `csv:` and `tfrecord:`.

    Raises:
      UserError: if the dataset or split does not exist, cannot be read, or has
        no readable image.
    """
    scheme = name.partition(":")[0]
    if scheme in DERIVED:
        opener = functools.partial(source, data_dir=data_dir, reading=reading)
        return DERIVED[scheme](name, read_probing(name), split, opener)
    opened = _open(name, split, data_dir, reading)
    key = (name, split, data_dir, reading)
    _opened.pop(key, None)  # The last one opened is the last one here.
    _opened[key] = unreadable.State.of(opened)
    return opened


def _open(
    name: str, split: str, data_dir: str | None, reading: Reading
) -> Source:
    """Opens a dataset that is not derived; see `source`."""
    scheme, _, path = name.partition(":")
    try:
        if scheme in SCHEMES:
            opened = SCHEMES[scheme](name, path, split, reading)
        elif name.partition("/")[0] == "digits":
            opened = digits(split, name)
        else:
            opened = open_tfds(name, split, data_dir)
    # TensorFlow's message may quote a record, which is no text.
    except (OSError, tf.errors.OpError, UnicodeDecodeError) as error:
        raise errors.UserError(
            f"{name} cannot be read ({errors.first_line(error)}): check that"
            " its files are complete, and that you may read them"
        ) from error
    if scheme not in ("folder", "csv"):  # Which look at it themselves.
        reason = "the splits of such a dataset are fixed"
        split_spec.refuse_fraction(name, reading, reason)
    count = opened.info.num_classes or 0
    if scheme in SCHEMES and count > reading.max_classes:
        raise errors.UserError(
            f"{name}: its largest label is {count - 1}, which makes {count}"
            " classes, more than"
            f" {errors.arg('max_classes', reading.max_classes)}: number the"
            " classes from 0, or set a larger max_classes"
        )
    return opened


def name_unreadable(error: BaseException) -> errors.UserError | None:
    """Returns the error that names an image which can no longer be read.

    For an error that ended the reading of any dataset that was opened by
    `source`; None, if it has another reason. All images are verified again, and
    the next start counts those that are unreadable toward `max_bad_images`.
    """
    opened = []
    for (name, split, data_dir, reading), state in reversed(_opened.items()):
        limit = reading.max_bad_images
        unlimited = dataclasses.replace(reading, max_bad_images=2**31 - 1)
        again = functools.partial(_open, name, split, data_dir, unlimited)
        opened.append((again, state, limit))
    return unreadable.explain(error, opened)


def from_folder(
    path: str | os.PathLike[str], split: str = Data.split, **options: Any
) -> Source:
    """Opens images in a folder for each class, `folder:PATH` of the commands.

    Args:
      path: folder with CLASS/IMAGE, with SPLIT/CLASS/IMAGE, or, without labels,
        with images alone.
      split: such as `train`, or `train[:90%]`.
      options: fields of `config.data.Reading`, such as `exif`.

    Raises:
      UserError: as of `source`.
    """
    reading = Reading(**options)
    return source(f"folder:{os.fspath(path)}", split, reading=reading)


def load(
    name: str, split: str = Data.split, data_dir: str | None = None
) -> tuple[tf.data.Dataset, Info]:
    """Opens and decodes one split of a dataset; see `source`.

    Returns:
      (dataset of {"image": uint8 [h, w, 3], "label": int64 [], or [C] for
      multi-label datasets}, without "label" if unlabelled, with "extra" if
      there are more channels; `Info`).
    """
    opened = source(name, split, data_dir=data_dir)
    return opened.examples(), opened.info


def check_scorable(train: Info, test: Info) -> Info:
    """Returns `test` with the classes of `train`, which it may lack some of.

    Raises:
      UserError: for splits on which no classifier can be scored.
    """
    for info in (train, test):
        if not info.has_labels:
            raise errors.UserError(
                f"{info.name} {info.split} has no labels to score against, one"
                f" per image: set {errors.arg('dataset', 'NAME')} of a labelled"
                " dataset"
            )
    # Without names, the largest label is all that is known of the classes.
    lacks = not test.label_names and (
        (test.num_classes or 0) < (train.num_classes or 0)
    )
    if train.num_classes != test.num_classes and not lacks:
        raise errors.UserError(
            f"{train.name}: {train.split} has {train.num_classes} classes and"
            f" {test.split} {test.num_classes}: use splits of the same classes"
        )
    return dataclasses.replace(test, num_classes=train.num_classes)
