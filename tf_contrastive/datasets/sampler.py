"""The order of training examples, as a pure function of (seed, epoch).

A draw is (index int64 [], the example's place in its split; key int32 [], what
seed and epoch give to its views; its encoded record). Draws of sources in
memory leave the record empty: it is looked up by the index later.
"""

import numpy as np
import tensorflow as tf

from tf_contrastive.config.data import check_sampler
from tf_contrastive.datasets.source import Source

# The end of "for ever", in epochs; leaves the upper bits of a seed to classes.
FOREVER = 1 << 40
# Files read at a time; fixed, since it decides the order of the records.
_FILES_AT_A_TIME = 16


def seeds(
    seed: int, number: tf.Tensor, label: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the seed of a pass' order, int64 [2], and of its views, int32."""
    family = 0 if label is None else label + 1
    mixed = tf.random.stateless_uniform(
        [5], [seed, family * FOREVER + number], None, None, tf.int32, "philox"
    )
    return tf.bitcast(tf.reshape(mixed[:4], [2, 2]), tf.int64), mixed[4]


def order_of(
    source: Source, seed: tf.Tensor, label: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns the rows in memory, or those of a class, shuffled, int64 [m]."""
    rows = tf.range(source.info.num_examples, dtype=tf.int64)
    if label is not None:
        rows = tf.boolean_mask(rows, source.arrays["label"] == label)
    # Not index_shuffle, which would need no memory: the permutations that it
    # gives for neighbouring seeds are alike (correlation 0.7, tried).
    return tf.random.experimental.stateless_shuffle(rows, seed, "philox")


def one_pass(
    source: Source,
    seed: tf.Tensor,
    key: tf.Tensor,
    buffer: int,
    label: tf.Tensor | None = None,
) -> tf.data.Dataset:
    """Returns draws of all examples, or of a class's, once, shuffled."""
    if source.arrays is not None:
        order = order_of(source, seed, label)
        keys = tf.fill(tf.shape(order), key)
        return tf.data.Dataset.from_tensor_slices((order, keys, {}))
    # Records are shuffled among the next `buffer`, and so files before them.
    files = tf.range(len(source.files.names))
    files = tf.random.experimental.stateless_shuffle(files, seed, "philox")
    records = source.files.numbered(files, _FILES_AT_A_TIME)
    # Dataset.shuffle mixes in the global seed, which must not matter: inside
    # of a tf.data function this sets that function's own, and no other. (It
    # compares a seed of 0 with its own, which fails on tensors; hence 1.)
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
    """Returns draws without end: pass after pass, of `length` examples each.

    Args:
      source, seed, buffer: see `shuffled`.
      start: (pass, examples of it to skip); earlier passes are not replayed.
      length: examples to take of every pass.
      label: the class to draw, or None for all.
    """
    first, done = start

    def one(number):
        order, key = seeds(seed, number, label)
        skip = tf.where(number == first, tf.cast(done, tf.int64), 0)
        draws = one_pass(source, order, key, buffer, label)
        return draws.take(length).skip(skip)

    return tf.data.Dataset.range(first, FOREVER).flat_map(one)


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
      source: what to draw from.
      batch_size: draws per step.
      steps: steps per epoch; what is left of an epoch is dropped.
      seed: seed of the orders and of the views.
      start_step: first step to draw for.
      buffer: examples to shuffle among, where they are not in memory.
    """
    epoch, step = divmod(start_step, steps)
    start = epoch, step * batch_size
    return _passes(source, seed, buffer, start, steps * batch_size)


def _class_counts(source: Source) -> list[tuple[int, int]]:
    """Returns (label, number of examples) of every class that has some."""
    classes, counts = np.unique(source.labels(), return_counts=True)
    return list(zip(classes.tolist(), counts.tolist(), strict=True))


def class_balanced(
    source: Source,
    *,
    batch_size: int,
    steps: int,
    seed: int,
    start_step: int,
    buffer: int,
) -> tf.data.Dataset:
    """Draws the classes in turn, so that every batch has each equally often.

    Where the batch is no multiple of the classes, the turn goes on from batch
    to batch. Every class cycles through its own examples, in an order and with
    views per cycle: an example that comes again in an epoch comes in new views.

    Args:
      source, batch_size, seed, start_step, buffer: see `shuffled`. Examples
        that are not in memory are read once per class.
      steps: not used; classes have cycles of their own.

    Raises:
      UserError: if the examples have no labels.
    """
    del steps
    check_sampler("class_balanced", source.info.name, source.info.has_labels)
    counts = _class_counts(source)
    first = start_step * batch_size
    # Turn t belongs to class t % C; the first one here is turn `first`.
    turns = first + np.arange(len(counts))
    turn_of_class = turns % len(counts)
    labels, sizes = (
        np.array(x)[turn_of_class] for x in zip(*counts, strict=True)
    )
    passes, done = np.divmod(turns // len(counts), sizes)

    def stream(label, size, number, skip):
        room = tf.clip_by_value(size, 1, max(buffer // len(counts), 1))
        return _passes(source, seed, room, (number, skip), size, label)

    columns = (labels, sizes, passes, done)
    columns = tuple(column.astype(np.int64) for column in columns)
    # One stream per class, one example of each at a time.
    return tf.data.Dataset.from_tensor_slices(columns).interleave(
        stream, cycle_length=len(counts), block_length=1
    )


SAMPLERS = {"shuffle": shuffled, "class_balanced": class_balanced}
