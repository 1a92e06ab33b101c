"""What every dataset is turned into: encoded records, and how to decode them.

Records stay encoded (bytes, or a path) for as long as they are only ordered,
shuffled and sharded; `decode` makes pixels of one, in parallel, afterwards.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_contrastive import errors

Record = dict[str, tf.Tensor]

# Rows decoded at a time when a dataset is put into memory.
_ROWS = 256
# Files read at a time where the order in which they come does not matter.
_FILES_AT_A_TIME = 16


@dataclasses.dataclass(frozen=True)
class Info:
    """What is known of a split before its first image is decoded.

    Attributes:
      name: the dataset as it was named.
      split: the split as it was named.
      num_examples: how many there are, exactly.
      num_classes: labels lie in [0, num_classes); None without labels.
      image_shape: (height, width, 3), or None where it varies.
      label_names: a name per class, or ().
      bad_images: names of the images that could not be read and are left out.
      extra_channels: channels of feature `extra`, beside the image's three.
      multi_label: whether a label is no class, but a row of 0 and 1,
        [num_classes]: whether the image has something of each.
    """

    name: str
    split: str
    num_examples: int
    num_classes: int | None = None
    image_shape: tuple[int, int, int] | None = None
    label_names: tuple[str, ...] = ()
    bad_images: tuple[str, ...] = ()
    extra_channels: int = 0
    multi_label: bool = False

    @property
    def has_labels(self) -> bool:
        """Whether every example is of one class."""
        return self.num_classes is not None and not self.multi_label

    @property
    def labelling(self) -> str:
        """What labels there are, in words."""
        if self.num_classes is None:
            return "unlabelled"
        several = ", several an image" if self.multi_label else ""
        return f"{self.num_classes} classes{several}"


@dataclasses.dataclass(frozen=True, eq=False)
class Files:
    """Files of records, whose order counts them: file after file.

    Attributes:
      names: paths.
      skips: records to leave out at the start of each file.
      counts: records to read of it.
      read: path, string [] -> `tf.data.Dataset` of its encoded records.
      kept: which of these records there are, bool [sum of counts]; None: all.
    """

    names: Sequence[str]
    skips: Sequence[int]
    counts: Sequence[int]
    read: Callable[[tf.Tensor], tf.data.Dataset]
    kept: np.ndarray | None = None

    def numbered(
        self, order: tf.Tensor | None = None, at_a_time: int = 1
    ) -> tf.data.Dataset:
        """Returns (index, record) of all records; the index counts `kept`.

        Args:
          order: int [F], the files' order; None: as they are. An index stays
            that of the record, whatever the order.
          at_a_time: files to read in turn.
        """
        firsts = np.cumsum([0, *self.counts[:-1]])
        columns = (list(self.names), self.skips, self.counts, firsts)
        kinds = (tf.string, tf.int64, tf.int64, tf.int64)
        columns = tuple(map(tf.constant, columns, kinds))
        if order is not None:
            columns = tuple(tf.gather(column, order) for column in columns)

        def of_file(name, skip, count, first):
            return self.read(name).skip(skip).take(count).enumerate(first)

        records = tf.data.Dataset.from_tensor_slices(columns).interleave(
            of_file,
            cycle_length=min(at_a_time, len(self.names)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        if self.kept is None:
            return records
        kept = tf.constant(self.kept)
        rank = tf.constant(np.cumsum(self.kept) - 1)
        return records.filter(lambda index, _: kept[index]).map(
            lambda index, record: (rank[index], record)
        )

    def select(self, indices: np.ndarray) -> "Files":
        """Returns the records at `indices` (int [m], increasing) alone."""
        total = sum(self.counts)
        if self.kept is not None:
            indices = np.flatnonzero(self.kept)[indices]
        start, stop = int(indices[0]), int(indices[-1]) + 1
        # Files outside of a slice are not read at all.
        begins = np.cumsum([0, *self.counts[:-1]])
        ends = begins + self.counts
        skips = np.clip(start - begins, 0, self.counts)
        counts = np.clip(np.minimum(ends, stop) - begins, 0, None) - skips
        files = np.flatnonzero(counts > 0)
        kept = np.zeros([total], bool)
        kept[indices] = True
        kept = kept[start:stop]
        return dataclasses.replace(
            self,
            names=[self.names[f] for f in files],
            skips=(np.asarray(self.skips) + skips)[files],
            counts=counts[files],
            kept=None if kept.all() else kept,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """One split of one dataset: rows in memory, or files of records.

    Attributes:
      records: `tf.data.Dataset` of encoded records, always in the same order;
        a record's `label`, int64 [] (or [num_classes], see `Info`), is in the
        clear.
      decode: record -> {"image": uint8 [h, w, 3], "label": int64 []}, without
        "label" when unlabelled; in TensorFlow operations only. Datasets with
        channels that must not be augmented add "extra", a number for each of
        them, [k], or one for each pixel of a view too, [S, S, k].
      info: what is known of the split.
      arrays: the same records as arrays with a row per record, where those are
        in memory (paths, or pixels); such records are read in any order.
      decoded: whether `arrays` hold the pixels themselves.
      files: the files that the records are read from, where there are no
        `arrays`.
    """

    records: tf.data.Dataset
    decode: Callable[[Record], Record]
    info: Info
    arrays: Record | None = None
    decoded: bool = False
    files: Files | None = None

    def examples(self) -> tf.data.Dataset:
        """Returns the decoded dataset, in order."""
        return self.records.map(
            self.decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )

    def labels(self) -> np.ndarray:
        """Reads the label of every example, int64 [n], and decodes no image.

        Raises:
          UserError: if there are none, or several of an image.
        """
        if not self.info.has_labels:
            raise errors.UserError(
                f"{self.info.name} {self.info.split} does not have one label"
                " per image: give a dataset that does"
            )
        if self.arrays is not None:
            return self.arrays["label"].numpy()
        found = np.empty([self.info.num_examples], np.int64)
        rows = self.files.numbered(at_a_time=_FILES_AT_A_TIME).map(
            lambda index, record: (index, record["label"])
        )
        for index, label in rows.batch(_ROWS).as_numpy_iterator():
            found[index] = label
        return found

    def relabelled(
        self, label: Callable[[Record], tf.Tensor], info: Info
    ) -> "Source":
        """Returns the same examples with other labels.

        Args:
          label: record -> int64 [].
          info: what is then known of the split.
        """

        def changed(record):
            return record | {"label": label(record)}

        if self.arrays is None:
            read = self.files.read
            files = dataclasses.replace(
                self.files, read=lambda file: read(file).map(changed)
            )
            return in_files(files, self.decode, info)
        column = self.records.map(label, tf.data.AUTOTUNE, deterministic=True)
        column = list(column.batch(_ROWS).as_numpy_iterator())
        rows = self.arrays | {"label": np.concatenate(column)}
        return in_memory(rows, self.decode, info, decoded=self.decoded)

    def select(self, indices: np.ndarray) -> "Source":
        """Returns the examples at `indices` (int [m], increasing) alone."""
        info = dataclasses.replace(self.info, num_examples=len(indices))
        if self.arrays is not None:
            rows = {k: tf.gather(v, indices) for k, v in self.arrays.items()}
            return in_memory(rows, self.decode, info, decoded=self.decoded)
        return in_files(self.files.select(indices), self.decode, info)

    def split_validation(
        self, fraction: float, seed: int
    ) -> tuple["Source", "Source"]:
        """Cuts a random part off for validation.

        Args:
          fraction: share to cut off, in (0, 1); rounded to whole examples.
          seed: int; the same seed cuts the same examples.

        Returns:
          (training source, validation source), disjoint.

        Raises:
          UserError: if one of the two would be empty.
        """
        n = self.info.num_examples
        count = round(fraction * n)
        if not 0 < count < n:
            raise errors.UserError(
                f"a validation fraction of {fraction:g} cuts {count} of the"
                f" {n} examples of {self.info.name} {self.info.split}: give a"
                " fraction that leaves examples on both sides"
            )
        # RandomState's stream is frozen for good; Generator's is not.
        order = np.random.RandomState(seed % 2**32).permutation(n)
        train = self.select(np.sort(order[count:]))
        validation = self.select(np.sort(order[:count]))
        name = f"{self.info.split} (validation)"
        return train, dataclasses.replace(
            validation, info=dataclasses.replace(validation.info, split=name)
        )

    def cached(self) -> "Source":
        """Returns the same source with its pixels in memory.

        Raises:
          ValueError: if the images differ in shape.
        """
        if self.decoded:
            return self
        info = self.info
        if info.image_shape is None:
            raise ValueError(f"images of {info.name} differ in shape")
        examples = self.examples()
        arrays = {}
        for start, batch in zip(
            itertools.count(step=_ROWS),
            examples.batch(_ROWS).as_numpy_iterator(),
            strict=False,
        ):
            for name, rows in batch.items():
                if name not in arrays:
                    shape = (info.num_examples, *rows.shape[1:])
                    arrays[name] = np.empty(shape, rows.dtype)
                arrays[name][start : start + len(rows)] = rows
        return in_memory(arrays, lambda record: record, info, decoded=True)

    def loaded(self) -> "Source":
        """Returns the same source with its encoded records in memory.

        Records that are paths stay paths.
        """
        if self.arrays is not None:
            return self
        parts = list(self.records.batch(_ROWS).as_numpy_iterator())
        arrays = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
        return in_memory(arrays, self.decode, self.info)


def in_memory(
    arrays: dict[str, np.ndarray],
    decode: Callable[[Record], Record],
    info: Info,
    *,
    decoded: bool = False,
) -> Source:
    """Makes a source of records that are rows of `arrays`."""
    # Tensors, since a NumPy array captured by a tf.data function would be
    # written into its graph; on the host, since eager ones go to the GPU.
    with tf.device("CPU:0"):
        arrays = {name: tf.convert_to_tensor(a) for name, a in arrays.items()}
    records = tf.data.Dataset.from_tensor_slices(arrays)
    return Source(records, decode, info, arrays, decoded)


def in_files(
    files: Files, decode: Callable[[Record], Record], info: Info
) -> Source:
    """Makes a source of records that are read from files."""
    records = files.numbered().map(lambda _, record: record)
    return Source(records, decode, info, files=files)
