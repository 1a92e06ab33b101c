"""Opening datasets by their names."""

import dataclasses
import functools
import importlib
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, terminal
from tf_contrastive.config import dataset
from tf_contrastive.config.data import Data, Reading
from tf_contrastive.datasets import remembered, split_spec
from tf_contrastive.datasets.listing import few
from tf_contrastive.datasets.source import Access, Info, Source

_READING = Reading()
# What readers and decoders raise.
_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.UnknownError,
)
# The operation that passes their errors on, in any strategy.
_INPUT = "IteratorGetNext"


class _State(NamedTuple):
    """What an opened dataset was like."""

    bad_images: tuple[str, ...]
    digests: np.ndarray | None


# What this process has opened, for `name_unreadable`: (name, split, data_dir,
# reading) -> state.
_opened: dict[tuple[str, str, str | None, Reading], _State] = {}


def source(
    name: str,
    split: str = Data.split,
    *,
    data_dir: str | None = None,
    reading: Reading = _READING,
) -> Source:
    """Opens one split of a dataset.

    Args:
      name: as of `--dataset`: of a declaration of `config.dataset`, or of
        TFDS, such as `cifar10` or `cifar10_corrupted/fog_3:1.0.0`.
      split: such as `train`, `test`, `train[:1000]` or `train[10%:]`.
      data_dir: folder of prepared TensorFlow Datasets; None: TFDS's default.
      reading: options of `folder:`, `csv:` and `tfrecord:`.

    Raises:
      UserError: if the dataset or split does not exist, cannot be read, or has
        no readable image.
    """
    opened = _open(name, split, data_dir, reading)
    if not isinstance(dataset.read(name), dataset.WithOptions):
        key = (name, split, data_dir, reading)
        _opened.pop(key, None)  # The last one opened is the last one here.
        _opened[key] = _State(opened.info.bad_images, opened.digests)
    return opened


def _open(
    name: str,
    split: str,
    data_dir: str | None,
    reading: Reading,
) -> Source:
    """Opens a dataset without taking a note of it; see `source`."""
    declared = dataset.read(name)
    other = functools.partial(source, data_dir=data_dir, reading=reading)
    access = Access(data_dir or None, reading, other)
    module, _, function = declared.opener.partition(":")
    opener = getattr(importlib.import_module(module), function)
    try:
        opened = opener(name, declared, split, access)
    # TensorFlow's message may quote a record, which is no text.
    except (OSError, tf.errors.OpError, UnicodeDecodeError) as error:
        raise errors.UserError(
            f"{name} cannot be read ({errors.first_line(error)}): check that"
            " its files are complete, and that you may read them"
        ) from error
    # After opening, so that an absent split is reported as such.
    if declared.has_fixed_splits:
        reason = "the splits of such a dataset are fixed"
        split_spec.refuse_fraction(name, reading, reason)
    if opened.info.unlabelled and not reading.admits_unlabelled:
        raise errors.UserError(
            f"{name} has images without a label: set"
            f" {errors.arg('unlabelled', 'own_views')}"
        )
    count = opened.info.num_classes or 0
    if isinstance(declared, dataset.AtPath) and count > reading.max_classes:
        raise errors.UserError(
            f"{name}: its largest label is {count - 1}, which makes {count}"
            " classes, more than"
            f" {errors.arg('max_classes', reading.max_classes)}: number the"
            " classes from 0, or set a larger max_classes"
        )
    return opened


def name_unreadable(error: BaseException) -> errors.UserError | None:
    """Returns the error that names an image which can no longer be read.

    An error of TensorFlow's decoders names no file. For one that ended the
    reading of a dataset, all that this process has opened are opened again, and
    every image is looked at: what rots on a disk keeps its size and time. The
    next start counts what cannot be read toward `max_bad_images`.

    Returns:
      None, if the error has another reason.
    """
    # TensorFlow's message may quote a record, which is no text.
    quotes_record = isinstance(error, UnicodeDecodeError)
    of_input = isinstance(error, _ERRORS) and _INPUT in str(error)
    if not (quotes_record or of_input):
        return None
    terminal.info("looking for the image that cannot be read")
    remembered.forget()
    for (name, split, data_dir, reading), before in reversed(_opened.items()):
        unlimited = dataclasses.replace(reading, max_bad_images=2**31 - 1)
        try:
            now = _open(name, split, data_dir, unlimited)
        except errors.UserError as found:
            return found
        if problem := _difference(before, now, reading.max_bad_images):
            return errors.UserError(f"{name}: {problem}")
    return None


def _difference(before: _State, now: Source, limit: int) -> str | None:
    """Describes what has become unreadable in a dataset."""
    bad = now.info.bad_images
    if new := sorted({*bad} - {*before.bad_images}):
        return (
            f"{few(new)} can no longer be read: restore what is damaged, or"
            f" repeat the command to go on without it ({len(bad)} of"
            f" {len(bad) + now.info.num_examples} images cannot be read, and"
            f" {errors.arg('max_bad_images', limit)})"
        )
    if now.files and (record := now.files.unreadable(now.decode)):
        return f"{record}: restore the file, or write it again"
    if before.digests is None or now.digests is None:
        return None
    changed: Sequence[str] = ()
    if len(before.digests) == len(now.digests) and now.paths is not None:
        rows = np.flatnonzero(before.digests != now.digests)
        changed = now.paths.take(rows[:4])
    if changed or len(before.digests) != len(now.digests):
        return f"{few(changed)} changed since the start: repeat the command"
    return None


def from_folder(
    path: str | os.PathLike[str], split: str = Data.split, **options: Any
) -> Source:
    """Opens images in a folder for each class, `folder:PATH`.

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
