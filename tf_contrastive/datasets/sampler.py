"""The order of training examples, as a pure function of (seed, epoch).

A draw is (index int64 [], the example's position in its split; key int32 [],
derived from seed and epoch for its views; its encoded record). Draws of sources
in memory have an empty record: it is looked up by the index later.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.data import check_sampler
from tf_contrastive.datasets.source import Source

# End of the epochs; leaves the upper bits of a seed to the classes.
MAX_EPOCHS = 1 << 40
# Files read at a time; fixed, since it determines the order of the records.
_FILES_AT_A_TIME = 16


class HostShard(NamedTuple):
    """The rows of every global batch that one input pipeline makes.

    Replica r gets the same rows of a batch for any number of pipelines.

    Attributes:
      batch_size: images of the global batch.
      pipelines: input pipelines (hosts).
      pipeline: number of this one.
      rows: images of a dataset element; a step takes one or several elements.
    """

    batch_size: int
    pipelines: int
    pipeline: int
    rows: int

    @classmethod
    def build(
        cls,
        batch_size: int,
        replica_batch_size: int | None,
        pipelines: int,
        pipeline: int,
    ) -> "HostShard":
        """Builds the shard; `rows` is `replica_batch_size`, or all of them.

        Raises:
          UserError: if a batch cannot be divided evenly.
        """
        if batch_size % pipelines:
            raise errors.UserError(
                f"batch_size={batch_size} is not divisible by the {pipelines}"
                f" input pipelines: use a multiple of {pipelines}"
            )
        local = batch_size // pipelines
        rows = replica_batch_size or local
        if local % rows:
            raise errors.UserError(
                f"the {local} images of a pipeline, of batch_size={batch_size},"
                f" are not divisible by the {rows} images of a replica"
            )
        return cls(batch_size, pipelines, pipeline, rows)

    @property
    def local(self) -> int:
        """The pipeline's images of a batch."""
        return self.batch_size // self.pipelines

    @property
    def elements(self) -> int:
        """The pipeline's elements of a step."""
        return self.local // self.rows

    def select(self, draws: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the pipeline's draws of the draws of all batches."""
        batch_size, local, pipeline = self.batch_size, self.local, self.pipeline
        if local == batch_size:
            return draws
        return (
            draws.enumerate()
            .filter(lambda place, _: place % batch_size // local == pipeline)
            .map(lambda _, draw: draw)
        )


def seeds(
    seed: int, number: tf.Tensor, label: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns seeds of a pass: int64 [2] of its order, int32 of its views."""
    group = 0 if label is None else label + 1
    words = tf.random.stateless_uniform(
        [5], [seed, group * MAX_EPOCHS + number], None, None, tf.int32, "philox"
    )
    return tf.bitcast(tf.reshape(words[:4], [2, 2]), tf.int64), words[4]


def shuffled_rows(
    source: Source, seed: tf.Tensor, label: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns the rows in memory, or those of a class, shuffled, int64 [m]."""
    rows = tf.range(source.info.num_examples, dtype=tf.int64)
    if label is not None and source.arrays is not None:
        rows = tf.boolean_mask(rows, source.arrays["label"] == label)
    # Not index_shuffle, which would need no memory: its permutations for
    # neighbouring seeds are similar (measured correlation 0.7).
    return tf.random.experimental.stateless_shuffle(rows, seed, "philox")


def one_pass(
    source: Source,
    seed: tf.Tensor,
    key: tf.Tensor,
    buffer: int,
    label: tf.Tensor | None = None,
) -> tf.data.Dataset:
    """Returns draws of all examples, or of a class, once, shuffled."""
    if source.arrays is not None:
        order = shuffled_rows(source, seed, label)
        keys = tf.fill(tf.shape(order), key)
        return tf.data.Dataset.from_tensor_slices((order, keys, {}))
    # Records are shuffled among the next `buffer`, after the files.
    files = source.record_files()
    order = tf.range(len(files.names))
    order = tf.random.experimental.stateless_shuffle(order, seed, "philox")
    records = files.numbered(order, _FILES_AT_A_TIME)
    # Dataset.shuffle mixes in the global seed, which must not matter: inside
    # a tf.data function this sets only that function's seed. (A seed of 0 would
    # be compared with a tensor, which fails; hence 1.)
    tf.random.set_seed(1)
    if label is not None:
        records = records.filter(lambda _, record: record["label"] == label)
    records = records.shuffle(buffer, seed[0], reshuffle_each_iteration=False)
    return records.map(lambda index, record: (index, key, record))


def _passes(
    source: Source,
    seed: int,
    buffer: int,
    start: tuple[int, int],
    length: int,
    label: tf.Tensor | None = None,
) -> tf.data.Dataset:
    """Returns infinite draws: pass after pass, of `length` examples each.

    `start` is (pass, examples of it to skip); earlier passes are not replayed.
    """
    first, done = start

    def one(number: tf.Tensor) -> tf.data.Dataset:
        order, key = seeds(seed, number, label)
        skip = tf.where(number == first, tf.cast(done, tf.int64), 0)
        draws = one_pass(source, order, key, buffer, label)
        return draws.take(length).skip(skip)

    return tf.data.Dataset.range(first, MAX_EPOCHS).flat_map(one)


def shuffled(
    source: Source,
    *,
    batch_size: int,
    steps: int,
    seed: int,
    start_step: int,
    buffer: int,
) -> tf.data.Dataset:
    """Draws every example at most once per epoch, in an order per epoch.

    Args:
      source: dataset to draw from.
      batch_size: draws per step.
      steps: steps per epoch; the remaining examples are dropped.
      seed: seed of the orders and of the views.
      start_step: first step.
      buffer: examples to shuffle among, where they are not in memory.
    """
    epoch, step = divmod(start_step, steps)
    start = epoch, step * batch_size
    return _passes(source, seed, buffer, start, steps * batch_size)


def class_balanced(
    source: Source,
    *,
    batch_size: int,
    steps: int,
    seed: int,
    start_step: int,
    buffer: int,
) -> tf.data.Dataset:
    """Draws the classes in turn, so that each is equally frequent in a batch.

    If the batch size is not a multiple of the classes, the turn continues in
    the next batch. Every class cycles through its own examples, with a new
    order and new views per cycle.

    Args:
      source, batch_size, seed, start_step, buffer: see `shuffled`. Examples
        that are not in memory are read once per class.
      steps: not used, since classes have cycles of their own.

    Raises:
      UserError: if the examples have no labels.
    """
    del steps
    check_sampler("class_balanced", source.info.name, source.info.has_labels)
    classes, counts = np.unique(source.labels(), return_counts=True)
    first = start_step * batch_size
    # Turn t belongs to class t % C; the first turn is `first`.
    turns = first + np.arange(len(classes))
    order = turns % len(classes)
    labels, sizes = classes[order], counts[order]
    passes, done = np.divmod(turns // len(classes), sizes)

    def stream(
        label: tf.Tensor, size: tf.Tensor, number: tf.Tensor, skip: tf.Tensor
    ) -> tf.data.Dataset:
        room = tf.clip_by_value(size, 1, max(buffer // len(classes), 1))
        return _passes(source, seed, room, (number, skip), size, label)

    columns = tuple(x.astype(np.int64) for x in (labels, sizes, passes, done))
    # One stream per class, one example of each at a time.
    return tf.data.Dataset.from_tensor_slices(columns).interleave(
        stream, cycle_length=len(classes), block_length=1
    )


SAMPLERS = {"shuffle": shuffled, "class_balanced": class_balanced}
