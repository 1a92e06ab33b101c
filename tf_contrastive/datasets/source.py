"""What every dataset is turned into: encoded records, and how to decode them.

Records stay encoded (bytes, or a path) for as long as they are only ordered,
shuffled and sharded; `decode` makes pixels of one, in parallel, afterwards.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_contrastive import config

Record = dict[str, tf.Tensor]

# Rows decoded at a time when a dataset is put into memory.
_ROWS = 256


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
    """

    name: str
    split: str
    num_examples: int
    num_classes: int | None = None
    image_shape: tuple[int, int, int] | None = None
    label_names: tuple[str, ...] = ()
    bad_images: tuple[str, ...] = ()

    @property
    def has_labels(self) -> bool:
        """Whether every example has a label."""
        return self.num_classes is not None


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """One split of one dataset.

    Attributes:
      records: `tf.data.Dataset` of encoded records, always in the same order;
        a record's `label`, int64 [], is in the clear.
      decode: record -> {"image": uint8 [h, w, 3], "label": int64 []}, without
        "label" when unlabelled; in TensorFlow operations only.
      info: what is known of the split.
      arrays: the same records as arrays with a row per record, where those are
        in memory (paths, or pixels); such records are read in any order.
      decoded: whether `arrays` hold the pixels themselves.
    """

    records: tf.data.Dataset
    decode: Callable[[Record], Record]
    info: Info
    arrays: Record | None = None
    decoded: bool = False

    def examples(self) -> tf.data.Dataset:
        """Returns the decoded dataset, in order."""
        return self.records.map(
            self.decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )

    def select(self, indices: np.ndarray) -> "Source":
        """Returns the examples at `indices` (int [m], increasing) alone."""
        info = dataclasses.replace(self.info, num_examples=len(indices))
        if self.arrays is not None:
            rows = {k: tf.gather(v, indices) for k, v in self.arrays.items()}
            return in_memory(rows, self.decode, info, decoded=self.decoded)
        records = keep(self.records, indices, self.info.num_examples)
        return dataclasses.replace(self, records=records, info=info)

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
            raise config.UserError(
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
        images = np.empty((info.num_examples, *info.image_shape), np.uint8)
        labels = np.empty([info.num_examples], np.int64)
        row = 0
        for batch in self.examples().batch(_ROWS).as_numpy_iterator():
            rows = slice(row, row + len(batch["image"]))
            images[rows] = batch["image"]
            labels[rows] = batch.get("label", 0)
            row = rows.stop
        arrays = {"image": images}
        if info.has_labels:
            arrays["label"] = labels
        return in_memory(arrays, lambda record: record, info, decoded=True)


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


def keep(
    records: tf.data.Dataset, indices: np.ndarray, total: int
) -> tf.data.Dataset:
    """Returns the records at `indices` (int [m]) out of `total`, in order."""
    if len(indices) == total:
        return records
    if indices[-1] - indices[0] + 1 == len(indices):
        return records.skip(int(indices[0])).take(len(indices))
    mask = np.zeros([total], bool)
    mask[indices] = True
    kept = tf.constant(mask)
    return (
        records.enumerate()
        .filter(lambda index, _: kept[index])
        .map(lambda _, record: record)
    )
