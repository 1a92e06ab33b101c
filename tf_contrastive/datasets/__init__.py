"""Datasets by name: encoded records, how to decode them, and what is known.

A name is `digits`, a scheme of `SCHEMES`, a derived dataset of `DERIVED`, or a
prepared dataset of TensorFlow Datasets. `pipeline` makes training and
evaluation batches of them.
"""

import functools

import tensorflow as tf

from tf_contrastive.config.data import Data
from tf_contrastive.config.dataset_names import read_probing
from tf_contrastive.datasets.arrays import digits, from_arrays
from tf_contrastive.datasets.files import csv_file, folder
from tf_contrastive.datasets.framing import Finish
from tf_contrastive.datasets.parts import cifar2, imagenet100, subset
from tf_contrastive.datasets.pipeline import (
    evaluation_batches,
    in_memory,
    training_batches,
    view_batches,
)
from tf_contrastive.datasets.remote import Delivered
from tf_contrastive.datasets.remote import check as check_service
from tf_contrastive.datasets.sharing import steps_per_epoch
from tf_contrastive.datasets.source import Info, Source
from tf_contrastive.datasets.splits import balanced_rows
from tf_contrastive.datasets.tfds_source import label_sets, open_tfds
from tf_contrastive.datasets.tfrecord import tfrecord

__all__ = [
    "DERIVED",
    "SCHEMES",
    "Delivered",
    "Finish",
    "Info",
    "Source",
    "balanced_rows",
    "check_service",
    "evaluation_batches",
    "from_arrays",
    "in_memory",
    "label_sets",
    "load",
    "source",
    "steps_per_epoch",
    "training_batches",
    "view_batches",
]

# Each takes (name, path, split, max_bad_images).
SCHEMES = {"folder": folder, "csv": csv_file, "tfrecord": tfrecord}
# Datasets made of other ones; each takes (name, options, split, opener). The
# commands add those of `papers.datasets`.
DERIVED = {"subset": subset, "cifar2": cifar2, "imagenet100": imagenet100}


def source(
    name: str,
    split: str = Data.split,
    *,
    data_dir: str | None = None,
    max_bad_images: int = Data.max_bad_images,
) -> Source:
    """Opens one split of a dataset.

    Args:
      name: `digits`, `folder:PATH`, `csv:PATH`, `tfrecord:GLOB`, a name of
        `DERIVED` with its options (see
        `dataset_names.read_probing`), or a TFDS name
        such as `cifar10` or `cifar10_corrupted/fog_3:1.0.0`.
      split: such as `train`, `test`, `train[:1000]` or `train[10%:]`.
      data_dir: folder of prepared TensorFlow Datasets; None: TFDS's default.
      max_bad_images: images that may be unreadable (and are left out).

    Raises:
      UserError: if there is no such dataset, split or readable image.
    """
    scheme, _, path = name.partition(":")
    if scheme in SCHEMES:
        return SCHEMES[scheme](name, path, split, max_bad_images)
    if scheme in DERIVED:
        open_inner = functools.partial(
            source, data_dir=data_dir, max_bad_images=max_bad_images
        )
        return DERIVED[scheme](name, read_probing(name), split, open_inner)
    if name.partition("/")[0] == "digits":
        return digits(split, name)
    return open_tfds(name, split, data_dir)


def load(
    name: str, split: str = Data.split, data_dir: str | None = None
) -> tuple[tf.data.Dataset, Info]:
    """Opens and decodes one split of a dataset.

    Args:
      name, split, data_dir: see `source`.

    Returns:
      (dataset of {"image": uint8 [h, w, 3], "label": int64 [], or [C] where
      images have several}, without "label" when unlabelled, with "extra" where
      there are more channels; `Info`).

    Raises:
      UserError: if there is no such dataset, split or readable image.
    """
    opened = source(name, split, data_dir=data_dir)
    return opened.examples(), opened.info
