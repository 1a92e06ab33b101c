"""The common form of all datasets: encoded records and their decoding."""

import dataclasses
import functools
import math
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import split_spec
from tf_contrastive.datasets.paths import Paths

Record = dict[str, tf.Tensor]

# Rows decoded at a time when a dataset is put into memory.
_ROWS = 256
# Files read at a time; fixed, since it determines the order of training.
FILES_AT_A_TIME = 16


@dataclasses.dataclass(frozen=True)
class Info:
    """Metadata of a split, known before its first image is decoded."""

    name: str
    split: str
    num_examples: int
    # Labels are below it; None without labels.
    num_classes: int | None = None
    # (height, width, channels), or None if it varies.
    image_shape: tuple[int, int, int] | None = None
    label_names: tuple[str, ...] = ()  # One per class, or none.
    # Names of the images that cannot be read and are left out.
    bad_images: tuple[str, ...] = ()
    extra_channels: int = 0  # Of feature `extra`, besides the image's own.
    # Of images float32 in [0, 1]; None: they are uint8 of three channels.
    float_channels: int | None = None
    # The three channels whose colours are augmented and shown, or none.
    colors: tuple[int, ...] = (0, 1, 2)
    # Whether a label is a row of 0 and 1, [num_classes].
    multi_label: bool = False
    # Whether the label of some examples is -1, which is none.
    unlabelled: bool = False
    # Whether this process, by Python, must decode some images.
    by_pillow: bool = False
    # How the split was understood, in rows of (what, value).
    found: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name in self.label_names:
            # Exports and TensorBoard's projector list names line by line.
            if len(name.splitlines()) > 1:
                raise errors.UserError(
                    f"{self.name}: the class {name!r} has a line break: rename"
                    " it"
                )

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return self.float_channels or 3

    @property
    def image_bytes(self) -> int | None:
        """Bytes of a decoded image, or None if they vary."""
        size = 1 if self.float_channels is None else 4
        return self.image_shape and size * math.prod(self.image_shape)

    def shown(self, images: tf.Tensor) -> tf.Tensor:
        """Returns three channels [..., 3] of images [..., K] to look at."""
        usual = (0, 1, 2) if self.channels >= 3 else (0, 0, 0)
        return tf.gather(images, self.colors or usual, axis=-1)

    @property
    def has_labels(self) -> bool:
        """Whether every example has exactly one class, or -1 for none."""
        return self.num_classes is not None and not self.multi_label

    @property
    def labelling(self) -> str:
        """The kind of labels, in words."""
        if self.num_classes is None:
            return "unlabelled"
        multi = ", several per image" if self.multi_label else ""
        return f"{self.num_classes} classes{multi}"


@dataclasses.dataclass(frozen=True, eq=False)
class Files:
    """Files of records, which are counted file after file.

    `read` maps a path, string [], to a `tf.data.Dataset` of encoded records.
    """

    names: Sequence[str]  # Paths.
    skips: Sequence[int] | np.ndarray  # Records to leave out at their starts.
    counts: Sequence[int] | np.ndarray  # Records to read after those.
    read: Callable[[tf.Tensor], tf.data.Dataset]
    # The records that belong, bool [sum of counts]; None: all.
    mask: np.ndarray | None = None

    def numbered(
        self, order: tf.Tensor | None = None, at_a_time: int = 1
    ) -> tf.data.Dataset:
        """Returns (index, record); `order`, int [F], is that of the files.

        The index does not depend on it; `at_a_time` files are read in turn.
        """
        firsts = np.cumsum([0, *self.counts[:-1]])
        values = (list(self.names), self.skips, self.counts, firsts)
        types = (tf.string, tf.int64, tf.int64, tf.int64)
        columns = tuple(map(tf.constant, values, types))
        if order is not None:
            columns = tuple(tf.gather(column, order) for column in columns)

        def of_file(
            name: tf.Tensor, skip: tf.Tensor, count: tf.Tensor, first: tf.Tensor
        ) -> tf.data.Dataset:
            return self.read(name).skip(skip).take(count).enumerate(first)

        records = tf.data.Dataset.from_tensor_slices(columns).interleave(
            of_file,
            cycle_length=min(at_a_time, len(self.names)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        if self._ranks is None:
            return records
        mask, rank = self._ranks
        return records.filter(lambda index, _: mask[index]).map(
            lambda index, record: (rank[index], record)
        )

    @functools.cached_property
    def _ranks(self) -> tuple[tf.Tensor, tf.Tensor] | None:
        """The mask, and the number of each record among those that belong."""
        if self.mask is None:
            return None
        # Not in the graphs of tf.data functions, which hold 2 GB.
        with tf.init_scope(), tf.device("CPU:0"):
            return tf.constant(self.mask), tf.constant(np.cumsum(self.mask) - 1)

    def positions(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the file of each record, and its place there, int64 [n]."""
        counts = np.asarray(self.counts)
        files = np.repeat(np.arange(len(counts)), counts)
        firsts = np.cumsum([0, *counts[:-1]]) - np.asarray(self.skips)
        rows = np.arange(len(files)) - firsts[files]
        if self.mask is None:
            return files, rows
        return files[self.mask], rows[self.mask]

    def use_first(self, name: str, use: Callable[[Any], Any]) -> Any:
        """Returns `use` of the first record, without a pipeline for it.

        Raises:
          UserError: if it cannot be read or used.
        """
        place = f"record {self.skips[0]} (from 0) of {self.names[0]}"
        records = self.read(self.names[0]).skip(int(self.skips[0]))
        try:
            return use(next(iter(records)))
        # Pillow's are `OSError` and `ValueError`. TensorFlow's message may
        # quote the record.
        except (tf.errors.OpError, OSError, ValueError) as error:
            raise errors.UserError(
                f"{name}: {place} cannot be read ({errors.first_line(error)}):"
                " copy the file again, write it with images in PNG or JPEG, or,"
                " if they have no format, set"
                f" {errors.arg('raw_images', 'TYPE:HxW')}, or name a function"
                " of your own as the dataset, module:name"
            ) from error

    def unreadable(self, use: Callable[[Record], Any]) -> str | None:
        """Describes the first record that cannot be read, or used; or None."""
        for name in self.names:
            records = self.read(name).map(
                use, tf.data.AUTOTUNE, deterministic=True
            )
            number = 0
            try:
                for _ in records:
                    number += 1
            # TensorFlow's message may quote the record.
            except (tf.errors.OpError, UnicodeDecodeError) as error:
                reason = errors.first_line(error)
                place = f"record {number} (from 0) of {name}"
                return f"{place} cannot be read ({reason})"
        return None

    def select(self, indices: np.ndarray) -> "Files":
        """Returns only the records at `indices` (int [m], increasing)."""
        total = sum(self.counts)
        if self.mask is not None:
            indices = np.flatnonzero(self.mask)[indices]
        start, stop = int(indices[0]), int(indices[-1]) + 1
        # Files outside of the slice are not read at all.
        begins = np.cumsum([0, *self.counts[:-1]])
        ends = begins + self.counts
        skips = np.clip(start - begins, 0, self.counts)
        counts = np.clip(np.minimum(ends, stop) - begins, 0, None) - skips
        files = np.flatnonzero(counts > 0)
        mask = np.zeros([total], bool)
        mask[indices] = True
        mask = mask[start:stop]
        return dataclasses.replace(
            self,
            names=[self.names[f] for f in files.tolist()],
            skips=(np.asarray(self.skips) + skips)[files],
            counts=counts[files],
            mask=None if mask.all() else mask,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """One split of one dataset: rows in memory, or files of records.

    Use `in_memory` or `in_files` to make one. Records stay encoded (bytes, or a
    path) while they are ordered, shuffled and sharded.

    Attributes:
      records: `tf.data.Dataset` of encoded records, always in the same order;
        `label`, int64 [] (or [num_classes], see `Info`), is not encoded. Image
        files have their `size`, int32 [2]: height and width.
      decode: record -> {"image": uint8 [h, w, 3], "label": int64 []}, without
        "label" if unlabelled; in TensorFlow operations only. With
        `info.float_channels` images are float32 [h, w, K]. Records with a
        `size` may have `halvings`, int32 [], see `decoding.decode_jpeg`.
        Channels that must not be augmented are "extra": a number for each, [k],
        or one for each pixel of a view too, [S, S, k].
      info: metadata of the split.
      arrays: the records as arrays with a row per record, if they are in
        memory; such records can be read in any order.
      decoded: whether `arrays` hold the pixels themselves.
      files: the files of the records, if there are no `arrays`.
      digests: int64 [n], equal for images of files with the same bytes; of
        images that are no files a number for each. None: not computed.
      paths: the files of records in memory, if they are not the pixels; a
        record has its `path`, string [].
    """

    records: tf.data.Dataset
    decode: Callable[[Record], Record]
    info: Info
    arrays: Record | None = None
    decoded: bool = False
    files: Files | None = None
    digests: np.ndarray | None = None
    paths: Paths | None = None

    @property
    def content(self) -> str:
        """What it holds, in words that differ for other images or classes."""
        info = self.info
        text = f"{info.num_examples} images of {info.name}"
        if info.num_classes:
            names = zlib.crc32("\n".join(info.label_names).encode())
            text += f" in {info.num_classes} classes ({names:08x})"
        if self.digests is not None:
            text += f" (files {zlib.crc32(self.digests.tobytes()):08x})"
        return text

    @tf.autograph.experimental.do_not_convert
    def examples(self) -> tf.data.Dataset:
        """Returns the decoded dataset, in order."""
        return self.records.map(
            self.decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )

    def row(self, index: tf.Tensor) -> Record:
        """Returns the record in memory at an index, int64 [], or those of [n].

        With `paths`, one record only.
        """
        record = {
            k: tf.gather(v, index) for k, v in (self.arrays or {}).items()
        }
        if self.paths is not None:
            record["path"] = self.paths.lookup(index)
        if "label" in record:  # In memory it may have 32 bits.
            record["label"] = tf.cast(record["label"], tf.int64)
        return record

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the records in memory without tensors, `path` as bytes."""
        columns = {k: v.numpy() for k, v in (self.arrays or {}).items()}
        if "label" in columns:
            columns["label"] = columns["label"].astype(np.int64)
        if self.paths is not None:
            columns["path"] = np.array(list(map(os.fsencode, self.paths)), "O")
        return columns

    def described(self, **changes: Any) -> "Source":
        """Returns the same examples with changes of `info`."""
        info = dataclasses.replace(self.info, **changes)
        return dataclasses.replace(self, info=info)

    def record_files(self) -> Files:
        """Returns `files` of a source that is not in memory."""
        if self.files is None:
            raise ValueError(f"{self.info.name} is in memory")
        return self.files

    def labels(self) -> np.ndarray:
        """Reads the label of every example, int64 [n], without its image."""
        if not self.info.has_labels:
            raise errors.UserError(
                f"{self.info.name} {self.info.split} does not have one label"
                " per image: use a dataset that does"
            )
        return self.label_rows()

    def label_rows(self) -> np.ndarray:
        """Reads the labels of every example as they are, [n] or [n, C]."""
        if self.arrays is not None:
            return self.arrays["label"].numpy().astype(np.int64)
        numbered = self.record_files().numbered(at_a_time=FILES_AT_A_TIME)
        rows = numbered.map(lambda index, record: (index, record["label"]))
        batches = rows.batch(_ROWS).as_numpy_iterator()
        index, labels = map(np.concatenate, zip(*batches, strict=True))
        return labels[np.argsort(index)]

    def labelled(self) -> "Source":
        """Returns only the examples that have a label."""
        if not self.info.unlabelled:
            return self
        found = self.select(np.flatnonzero(self.labels() >= 0))
        return found.described(unlabelled=False)

    def relabelled(
        self, label: Callable[[Record], tf.Tensor], info: Info
    ) -> "Source":
        """Returns the same examples with labels `label(record)`, int64 []."""
        if self.arrays is None:
            files = self.record_files()

            def read(file: tf.Tensor) -> tf.data.Dataset:
                return files.read(file).map(lambda r: r | {"label": label(r)})

            labelled = dataclasses.replace(files, read=read)
            found = in_files(labelled, self.decode, info)
        else:
            labels = self.records.map(
                label, tf.data.AUTOTUNE, deterministic=True
            )
            batches = list(labels.batch(_ROWS).as_numpy_iterator())
            rows = self.arrays | {"label": np.concatenate(batches)}
            found = in_memory(rows, self.decode, info, paths=self.paths)
            found = dataclasses.replace(found, decoded=self.decoded)
        return dataclasses.replace(found, digests=self.digests)

    def select(self, indices: np.ndarray) -> "Source":
        """Returns only the examples at `indices` (int [m], increasing)."""
        info = dataclasses.replace(self.info, num_examples=len(indices))
        if self.arrays is not None:
            rows = {k: tf.gather(v, indices) for k, v in self.arrays.items()}
            paths = None if self.paths is None else self.paths.take(indices)
            chosen = in_memory(rows, self.decode, info, paths=paths)
            chosen = dataclasses.replace(chosen, decoded=self.decoded)
        else:
            files = self.record_files().select(indices)
            chosen = in_files(files, self.decode, info)
        digests = None if self.digests is None else self.digests[indices]
        return dataclasses.replace(chosen, digests=digests)

    def split_validation(
        self, fraction: float, seed: int
    ) -> tuple["Source", "Source"]:
        """Cuts a random fraction off: (training source, validation source).

        If the labels are in memory, it is a fraction of each class. Copies of
        an image that stays are not cut off.

        Raises:
          UserError: if one of the two would be empty.
        """
        n = self.info.num_examples
        count = round(fraction * n)
        chosen = np.zeros([n], bool)
        # The stream of RandomState never changes; Generator's may.
        order = np.random.RandomState(seed % 2**32).permutation(n)
        stratified = self.arrays is not None and self.info.has_labels
        labels = self.labels() if stratified else None
        if 0 < count < n:
            chosen = split_spec.held_out(order, labels, fraction)
        if self.digests is not None:
            chosen = split_spec.without_copies(chosen, self.digests)
        if not chosen.any():
            raise errors.UserError(
                f"a validation fraction of {fraction:g} cuts {count} of the"
                f" {n} examples of {self.info.name} {self.info.split}: use a"
                " fraction that leaves different examples on both sides"
            )
        train = self.select(np.flatnonzero(~chosen))
        validation = self.select(np.flatnonzero(chosen))
        name = f"{self.info.split} (validation)"
        return train, validation.described(split=name)

    def cached(self) -> "Source":
        """Returns the same source, of one shape, with its pixels in memory."""
        if self.decoded:
            return self
        arrays = self._read(self.examples())
        return in_memory(arrays, lambda record: record, self.info, decoded=True)

    def loaded(self) -> "Source":
        """Returns the same source with its encoded records in memory."""
        if self.arrays is not None:
            return self
        return in_memory(self._read(self.records), self.decode, self.info)

    def _read(self, dataset: tf.data.Dataset) -> dict[str, tf.Tensor]:
        """Reads the columns of a dataset of these examples."""
        # Not by NumPy: a tensor of an array is one more copy of all of them.
        batches = list(dataset.batch(_ROWS))
        with tf.device("CPU:0"):
            return {
                name: tf.concat([batch[name] for batch in batches], axis=0)
                for name in dataset.element_spec
            }


class Access(NamedTuple):
    """How a dataset is opened."""

    data_dir: str | None  # Of TensorFlow Datasets; None: TFDS's default.
    reading: Reading
    # (name, split) -> the source of another dataset, opened alike.
    open: Callable[..., Source]


@tf.autograph.experimental.do_not_convert
def in_memory(
    arrays: dict[str, Any],
    decode: Callable[[Record], Record],
    info: Info,
    *,
    decoded: bool = False,
    paths: Paths | None = None,
) -> Source:
    """Makes a source of records that are rows of `arrays`, and of `paths`."""
    # Tensors, since tf.data functions write captured NumPy arrays into their
    # graphs; on the host, since eager tensors would go to the GPU.
    with tf.device("CPU:0"):
        arrays = {name: tf.convert_to_tensor(a) for name, a in arrays.items()}
    if paths is None:
        records = tf.data.Dataset.from_tensor_slices(arrays)
        return Source(records, decode, info, arrays, decoded)
    none = tf.data.Dataset.range(0)
    source = Source(none, decode, info, arrays, decoded, paths=paths)
    records = tf.data.Dataset.range(len(paths)).map(source.row)
    return dataclasses.replace(source, records=records)


def in_files(
    files: Files, decode: Callable[[Record], Record], info: Info
) -> Source:
    """Makes a source of records that are read from files."""
    records = files.numbered().map(lambda _, record: record)
    return Source(records, decode, info, files=files)


def check_scorable(train: Info, test: Info) -> Info:
    """Returns `test` with the classes of `train`, which it may lack some of.

    Raises:
      UserError: for splits on which no classifier can be scored.
    """
    for info in (train, test):
        if not info.has_labels:
            raise errors.UserError(
                f"{info.name} {info.split} has no labels to score against, one"
                f" per image: set {errors.arg('test_split', 'NAME')} to a"
                f" labelled split, or {errors.arg('dataset', 'NAME')} to a"
                " labelled dataset"
            )
    # Without names, the largest label is all that is known of the classes.
    lacks = not test.label_names and (
        (test.num_classes or 0) < (train.num_classes or 0)
    )
    differ = train.num_classes != test.num_classes and not lacks
    named = train.label_names and test.label_names
    if differ or (named and train.label_names != test.label_names):
        raise errors.UserError(
            f"{train.name}: {train.split} has {train.num_classes} classes and"
            f" {test.split} {test.num_classes}, or others of these: use splits"
            " of the same classes"
        )
    return dataclasses.replace(test, num_classes=train.num_classes)
