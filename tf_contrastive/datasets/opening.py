"""Opening datasets by their names."""

import dataclasses
import functools
import importlib

import pyarrow as pa
import tensorflow as tf

from tf_contrastive.base import errors, terminal
from tf_contrastive.config import dataset
from tf_contrastive.config.data import MAX_CLASSES, Data, Reading
from tf_contrastive.datasets import remembered, split_spec
from tf_contrastive.datasets.paths import few
from tf_contrastive.datasets.source import Access, Info, Source

_READING = Reading()
# The operation that passes errors of readers and decoders on.
_INPUT = "IteratorGetNext"

# What this process has opened, for `name_unreadable`: (name, split, data_dir,
# reading) -> its unreadable images.
_opened: dict[tuple[str, str, str | None, Reading], tuple[str, ...]] = {}


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
    reading.check()
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
    # Arrow keeps what a listing took, several times the memory of the records.
    pa.default_memory_pool().release_unused()
    # After opening, so that an absent split is reported as such.
    if declared.has_fixed_splits:
        reason = "the splits of such a dataset are fixed"
        split_spec.refuse_fraction(name, reading, reason)
    found = opened.info.float_channels
    if found is None and reading.float_channels:
        raise errors.UserError(
            f"{name} has images of 3 channels of 8 bits: leave"
            f" {errors.arg('channels')} and {errors.arg('value_range')} out"
        )
    if found != reading.float_channels:
        which = "value_range" if found == 3 else "channels"
        raise errors.UserError(
            f"{name} has images of {found} channels of floats: set"
            f" {errors.arg(which, '0,1' if found == 3 else found)}"
        )
    opened = opened.described(colors=reading.colors)
    if opened.info.unlabelled and not reading.admits_unlabelled:
        raise errors.UserError(
            f"{name} has images without a label: set"
            f" {errors.arg('unlabelled', 'own_views')}"
        )
    count = opened.info.num_classes or 0
    if count > MAX_CLASSES:
        raise errors.UserError(
            f"{name}: its largest label is {count - 1}, which makes more than"
            f" {MAX_CLASSES:,} classes: number the classes from 0"
        )
    if not isinstance(declared, dataset.WithOptions):
        key = (name, split, data_dir, reading)
        _opened.pop(key, None)  # The last one opened is the last one here.
        _opened[key] = opened.info.bad_images
    return opened


def name_unreadable(error: BaseException) -> errors.UserError | None:
    """Returns the error that names an image which can no longer be read.

    Or None, if an error has another reason. TensorFlow's decoders name no file:
    all that this process has opened is opened again, and every image is looked
    at, since what rots on a disk keeps its size and time.
    """
    # TensorFlow's message may quote a record, which is no text.
    quotes_record = isinstance(error, UnicodeDecodeError)
    of_input = isinstance(error, tf.errors.OpError) and _INPUT in str(error)
    if not (quotes_record or of_input):
        return None
    terminal.info("looking for the image that cannot be read")
    remembered.forget()
    for key, before in reversed([*_opened.items()]):
        name, split, data_dir, reading = key
        unlimited = dataclasses.replace(reading, max_bad_images=2**31 - 1)
        try:
            now = source(name, split, data_dir=data_dir, reading=unlimited)
        except errors.UserError as found:
            return found
        bad = now.info.bad_images
        if new := sorted({*bad} - {*before}):
            return errors.UserError(
                f"{name}: {few(new)} can no longer be read: restore what is"
                " damaged, or repeat the command to go on without it"
                f" ({len(bad)} of {len(bad) + now.info.num_examples} images"
                " cannot be read, and"
                f" {errors.arg('max_bad_images', reading.max_bad_images)})"
            )
        if now.files and (record := now.files.unreadable(now.decode)):
            return errors.UserError(
                f"{name}: {record}: restore the file, or write it again"
            )
    return None


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
