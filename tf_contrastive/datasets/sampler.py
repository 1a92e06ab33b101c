"""The order of training examples, as a pure function of (seed, epoch).

A draw is (index int64 [], the example's position in its split; key int32 [],
derived from seed and epoch for its views; its encoded record). Draws of sources
in memory have an empty record: it is looked up by the index later.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.data import Data
from tf_contrastive.config.runtime import check_divisible
from tf_contrastive.datasets.source import FILES_AT_A_TIME, Source

# End of the epochs; leaves the upper bits of a seed to the classes.
MAX_EPOCHS = 1 << 40
# Files for each pipeline from which on they are shared.
_FILES_PER_PIPELINE = 8


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Returns the number of whole batches of an epoch; the rest is dropped.

    Raises:
      UserError: if there is none.
    """
    if not 0 < batch_size <= num_examples:
        raise errors.UserError(
            f"{errors.arg('batch_size', batch_size)} exceeds the {num_examples}"
            f" examples: use {errors.arg('batch_size', num_examples)} or less"
        )
    return num_examples // batch_size


@dataclasses.dataclass(frozen=True)
class Order:
    """Which examples come when; with the source, it determines the stream."""

    batch_size: int  # Images of the global batch.
    seed: int = 0  # Of the order and of the views.
    start_step: int = 0
    sampler: str = Data.sampler
    # Encoded examples to shuffle among; examples that are in memory or listed
    # by path, and files, are shuffled as a whole.
    shuffle_buffer: int = Data.shuffle_buffer
    cache: str = Data.cache  # See `pipeline.in_memory`.
    # Whether pipelines may read their own files of records, if there are
    # enough: the stream then depends on the number of pipelines.
    shares_files: bool = True


@dataclasses.dataclass(frozen=True)
class Stream:
    """The training stream, and the part of it that one pipeline makes."""

    source: Source
    order: Order
    context: tf.distribute.InputContext

    def __post_init__(self) -> None:
        check_divisible(self.order.batch_size, self._replicas)

    @property
    def _replicas(self) -> int:
        context = self.context
        return max(context.num_replicas_in_sync, context.num_input_pipelines)

    @property
    def local(self) -> int:
        """The pipeline's images of a batch."""
        return self.order.batch_size // self.context.num_input_pipelines

    @property
    def rows(self) -> int:
        """Images of an element; a step takes one or several elements."""
        return self.order.batch_size // self._replicas

    @property
    def steps(self) -> int:
        """Steps of an epoch; the remaining examples are dropped."""
        return steps_per_epoch(
            self.source.info.num_examples, self.order.batch_size
        )

    @property
    def buffer(self) -> int:
        """Examples to shuffle among: TensorFlow allocates all places."""
        return min(self.order.shuffle_buffer, self.source.info.num_examples)

    @property
    def sharding(self) -> str:
        """What pipelines share: "file", or "example", the rows of a batch."""
        pipelines = self.context.num_input_pipelines
        if pipelines == 1 or self.source.arrays is not None:
            return "example"
        files = len(self.source.record_files().names)
        is_many = files >= _FILES_PER_PIPELINE * pipelines
        is_shared = self.order.shares_files and is_many
        return "file" if is_shared else "example"

    def select(self, draws: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the pipeline's draws of the draws of all batches."""
        batch_size, local = self.order.batch_size, self.local
        pipeline = self.context.input_pipeline_id
        if local == batch_size:
            return draws
        own = draws.enumerate().filter(
            lambda place, _: place % batch_size // local == pipeline
        )
        return own.map(lambda _, draw: draw)

    def seeds(
        self, number: tf.Tensor, label: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Seeds of a pass: int64 [2] of its order, int32 of its views."""
        group = 0 if label is None else label + 1
        key = [self.order.seed, group * MAX_EPOCHS + number]
        words = tf.random.stateless_uniform(
            [5], key, None, None, tf.int32, "philox"
        )
        return tf.bitcast(tf.reshape(words[:4], [2, 2]), tf.int64), words[4]

    def shuffled_rows(
        self, seed: tf.Tensor, label: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns rows in memory, or those of a class, shuffled, int64 [m]."""
        rows = tf.range(self.source.info.num_examples, dtype=tf.int64)
        if label is not None and self.source.arrays is not None:
            labels = tf.cast(self.source.arrays["label"], tf.int64)
            rows = tf.boolean_mask(rows, labels == label)
        # Not index_shuffle, which would need no memory: its permutations for
        # neighbouring seeds are similar (measured correlation 0.7).
        return tf.random.experimental.stateless_shuffle(rows, seed, "philox")

    def one_pass(
        self,
        seed: tf.Tensor,
        key: tf.Tensor,
        buffer: int | tf.Tensor,
        label: tf.Tensor | None = None,
        sharding: str = "example",
    ) -> tf.data.Dataset:
        """Returns draws of all examples, or of a class, once, shuffled.

        With another `sharding`, of the pipeline's share of them.
        """
        if self.source.arrays is not None:
            order = self.shuffled_rows(seed, label)
            keys = tf.fill(tf.shape(order), key)
            return tf.data.Dataset.from_tensor_slices((order, keys, {}))
        # Records are shuffled among the next `buffer`, after the files.
        files = self.source.record_files()
        own = tf.random.experimental.stateless_shuffle(
            tf.range(len(files.names)), seed, "philox"
        )
        if sharding == "file":
            context = self.context
            own = own[context.input_pipeline_id :: context.num_input_pipelines]
        records = files.numbered(own, FILES_AT_A_TIME)
        # Dataset.shuffle mixes in the global seed, which must not matter:
        # inside a tf.data function this sets only that function's seed. (A seed
        # of 0 would be compared with a tensor, which fails; hence 1.)
        tf.random.set_seed(1)
        if label is not None:
            records = records.filter(lambda _, record: record["label"] == label)
        records = records.shuffle(
            buffer, seed[0], reshuffle_each_iteration=False
        )
        return records.map(lambda index, record: (index, key, record))

    def passes(
        self,
        buffer: int | tf.Tensor,
        start: tuple[int | tf.Tensor, int | tf.Tensor],
        length: int | tf.Tensor,
        label: tf.Tensor | None = None,
        sharding: str = "example",
    ) -> tf.data.Dataset:
        """Returns infinite draws: pass after pass, of `length` examples each.

        `start` is (pass, examples of it to skip); none before it is replayed.
        """
        first, done = start

        def one(number: tf.Tensor) -> tf.data.Dataset:
            order, key = self.seeds(number, label)
            skip = tf.where(number == first, tf.cast(done, tf.int64), 0)
            draws = self.one_pass(order, key, buffer, label, sharding)
            if sharding == "file":
                # Files differ in length: a share may have too few for its rows.
                draws = draws.repeat()
            return draws.take(length).skip(skip)

        return tf.data.Dataset.range(first, MAX_EPOCHS).flat_map(one)


def shuffled(stream: Stream) -> tf.data.Dataset:
    """Draws every example at most once per epoch, in an order per epoch.

    Where pipelines share files, a draw is one of this pipeline, whose files are
    others in every epoch; a few examples come twice if they have too few.
    """
    epoch, step = divmod(stream.order.start_step, stream.steps)
    sharding = stream.sharding
    rows = stream.order.batch_size if sharding == "example" else stream.local
    return stream.passes(
        stream.buffer,
        (epoch, step * rows),
        stream.steps * rows,
        sharding=sharding,
    )


def class_balanced(stream: Stream) -> tf.data.Dataset:
    """Draws the classes in turn, so that each is equally frequent in a batch.

    If the batch size is not a multiple of the classes, the turn continues in
    the next batch. Every class cycles through its own examples, with a new
    order and new views per cycle. Files are read once per class.

    Raises:
      UserError: if the examples have no labels.
    """
    classes, counts = np.unique(stream.source.labels(), return_counts=True)
    # Turn t belongs to class t % C.
    first = stream.order.start_step * stream.order.batch_size
    turns = first + np.arange(len(classes))
    order = turns % len(classes)
    labels, sizes = classes[order], counts[order]
    passes, done = np.divmod(turns // len(classes), sizes)

    def draws(
        label: tf.Tensor, size: tf.Tensor, number: tf.Tensor, skip: tf.Tensor
    ) -> tf.data.Dataset:
        room = max(stream.buffer // len(classes), 1)
        room = tf.clip_by_value(size, 1, room)
        return stream.passes(room, (number, skip), size, label)

    columns = tuple(x.astype(np.int64) for x in (labels, sizes, passes, done))
    # One stream per class, one example of each at a time.
    return tf.data.Dataset.from_tensor_slices(columns).interleave(
        draws, cycle_length=len(classes), block_length=1
    )


SAMPLERS = {"shuffle": shuffled, "class_balanced": class_balanced}
