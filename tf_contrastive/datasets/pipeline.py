"""Batches of a source: infinite views for training, images for evaluation.

The stream is a pure function of (seed, epoch, example index): the same for any
number of threads, pipelines and replicas, and from any step on.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.data import Data
from tf_contrastive.datasets.sampler import SAMPLERS, Order, Stream
from tf_contrastive.datasets.source import Record, Source

_ALONE = tf.distribute.InputContext()
# Images of one shape are decoded once, into memory, up to this many bytes
# (50,000 images of CIFAR-10 take 154 MB), then read by index in whole batches.
CACHE_BYTES = 1 << 30
# Larger images become views one at a time: a batch of photographs that are not
# cropped yet takes gigabytes.
BATCHED_BYTES = 1 << 19
# Their random numbers are drawn for so many at a time.
_DRAWN_TOGETHER = 32


def in_memory(source: Source, cache: str = Data.cache) -> Source:
    """Returns the source with its examples in memory, as `cache` says.

    Call it once, so that several pipelines share the data. "auto" decodes
    images of one shape, up to `CACHE_BYTES`; "memory" any number, and keeps
    records of several shapes encoded, but not files; "none" nothing.
    """
    info = source.info
    if cache == "none" or (cache == "auto" and info.image_shape is None):
        return source
    if info.image_bytes is None:
        return source.loaded()
    size = info.num_examples * info.image_bytes
    fits = cache == "memory" or size <= CACHE_BYTES
    return source.cached() if fits else source


@dataclasses.dataclass(frozen=True)
class ViewMaker:
    """How examples become the input of a step.

    Attributes:
      make: (images [n, h, w, C], seeds int32 [n, 2]) -> float32
        [n, V, S, S, C]. A seed is (a mix of seed and epoch, the example's
        index). It gets whole batches of small images of one shape, else one
        image at a time.
      finish: (views float32 [b, V, S, S, K] with `extra` after their channels,
        seeds) -> input of a step, always in whole batches; None: the views.
      halvings: (size int32 [2], `numbers` of an image) -> int32 []: how often a
        large JPEG of a known size may be halved when it is decoded; None, or
        without `numbers`: not at all.
      extra_channels: channels of feature `extra` to take; None: all.
      numbers: seeds int32 [n, 2] -> random numbers, tensors [n, ...], which
        `make` then gets as its last argument: to draw those of an image alone
        takes a tenth of its time. None: it draws them.
    """

    make: Callable[..., tf.Tensor]
    finish: Callable[[tf.Tensor, tf.Tensor], Any] | None = None
    halvings: Callable[..., tf.Tensor] | None = None
    extra_channels: int | None = None
    numbers: Callable[[tf.Tensor], Any] | None = None


@tf.autograph.experimental.do_not_convert
def training_batches(
    source: Source,
    views: ViewMaker,
    order: Order,
    context: tf.distribute.InputContext = _ALONE,
) -> tf.data.Dataset:
    """Makes the infinite stream of training batches.

    Batch k has the same (example, seed) rows for any number of pipelines,
    unless these share files: each makes its part, the rows of one replica at a
    time. A stream that starts at step k equals the rest of one from step 0.

    Returns:
      Infinite `tf.data.Dataset` of (input of a step, such as views float32
      [b, V, S, S, K]; labels int32 [b], or [b, C] of 0 and 1 for multi-label
      datasets), or of the input alone if there are no labels.

    Raises:
      UserError: if an epoch has no batch, a batch cannot be divided evenly, or
        the sampler needs labels.
    """
    if order.sampler not in SAMPLERS:
        raise errors.unknown("sampler", order.sampler, SAMPLERS)
    stream = Stream(source, order, context)
    source = in_memory(source, order.cache)
    stream = dataclasses.replace(stream, source=source)
    draws = SAMPLERS[order.sampler](stream)
    if order.sampler != "shuffle" or stream.sharding == "example":
        draws = stream.select(draws)
    batches = _batches(source, draws, views, stream.rows)
    return _prefetched(batches, endless=True)


@tf.autograph.experimental.do_not_convert
def evaluation_batches(
    source: Source,
    preprocess: Callable[[tf.Tensor], tf.Tensor],
    *,
    batch_size: int,
    extra_channels: int | None = None,
) -> tf.data.Dataset:
    """Makes batches of every example once, in order; the last may be smaller.

    Args:
      source: evaluation examples.
      preprocess: image [h, w, C] -> float32 [S, S, C].
      batch_size: images of a batch.
      extra_channels: see `ViewMaker`.

    Returns:
      Finite `tf.data.Dataset` of (images float32 [b, S, S, K], labels int32
      [b]); labels are -1 unless images have one label each.
    """
    records = source.records.enumerate()
    batches = _evaluated(
        source, records, preprocess, batch_size, extra_channels, whole=False
    )
    return _prefetched(batches.map(lambda images, n: (images, n[:, 0])))


@tf.autograph.experimental.do_not_convert
def evaluation_part(
    source: Source,
    preprocess: Callable[[tf.Tensor], tf.Tensor],
    *,
    batch_size: int,
    extra_channels: int | None = None,
    context: tf.distribute.InputContext = _ALONE,
) -> tf.data.Dataset:
    """Makes batches of one pipeline's part of the examples, over and over.

    Parts are contiguous, of one size but for the last; some may overlap if
    there are few examples. Other arguments: see `evaluation_batches`;
    `batch_size` is that of an element.

    Returns:
      Infinite `tf.data.Dataset` of (images float32 [b, S, S, K], numbers int32
      [b, 2]: label, and position in the source).
    """
    first, pipelines = 0, context.num_input_pipelines
    if pipelines > 1:
        count = source.info.num_examples
        size = part_size(count, pipelines)
        first = min(context.input_pipeline_id * size, count - 1)
        source = source.select(np.arange(first, min(first + size, count)))
    records = source.records.enumerate(first).repeat()
    batches = _evaluated(
        source, records, preprocess, batch_size, extra_channels, whole=True
    )
    return _prefetched(batches, endless=True)


def part_size(examples: int, num_pipelines: int) -> int:
    """Returns the examples of an `evaluation_part`, at most."""
    return -(-examples // num_pipelines)


def _evaluated(
    source: Source,
    records: tf.data.Dataset,
    preprocess: Callable[[tf.Tensor], tf.Tensor],
    batch_size: int,
    extra_channels: int | None,
    whole: bool,
) -> tf.data.Dataset:
    """Makes batches of (position, record), as of `evaluation_part`.

    A label is -1 where there is not one of each image; `whole` drops a last,
    smaller batch.
    """

    def prepare(
        position: tf.Tensor, record: Record
    ) -> tuple[tf.Tensor, tf.Tensor, Record]:
        example = source.decode(record)
        label = tf.cast(example.pop("label", -1), tf.int32)
        label = label if source.info.has_labels else -1
        numbers = tf.stack([label, tf.cast(position, tf.int32)])
        return preprocess(example.pop("image")), numbers, example

    def element(
        images: tf.Tensor, numbers: tf.Tensor, example: Record
    ) -> tuple[tf.Tensor, tf.Tensor]:
        return _with_extra(images, example, extra_channels), numbers

    batches = records.map(prepare, tf.data.AUTOTUNE)
    batches = batches.batch(batch_size, drop_remainder=whole)
    return batches.map(element, tf.data.AUTOTUNE)


def view_batches(
    source: Source, views: ViewMaker, *, batch_size: int, seed: int
) -> tf.data.Dataset:
    """Makes views of every example once, in order; the last batch may be small.

    A seed of the views is (`seed`, the example's index).

    Returns:
      Finite `tf.data.Dataset` of (views float32 [b, V, S, S, K], labels int32
      [b]); labels are -1 unless images have one label each.
    """
    key = tf.constant(seed % 2**31, tf.int32)
    numbered = source.records.enumerate()
    draws = numbered.map(lambda index, record: (index, key, record))
    batches = _batches(source, draws, views, batch_size, whole=False)
    if not source.info.has_labels:
        batches = batches.map(
            lambda views, *_: (views, tf.fill([tf.shape(views)[0]], -1))
        )
    return _prefetched(batches)


def _batches(
    source: Source,
    draws: tf.data.Dataset,
    views: ViewMaker,
    rows: int,
    whole: bool = True,
) -> tf.data.Dataset:
    """Makes batches of `rows` draws; `whole` drops a last, smaller one."""
    shape = source.info.image_shape
    one_by_one = shape is None or math.prod(shape) > BATCHED_BYTES

    def lookup(index: tf.Tensor, record: Record) -> Record:
        if source.arrays is None:
            return record
        return source.row(index)

    def decode(
        index: tf.Tensor, key: tf.Tensor, record: Record, *numbers: Any
    ) -> tuple:
        record = lookup(index, record)
        if numbers and views.halvings and "size" in record:
            record["halvings"] = views.halvings(record["size"], *numbers)
        example = source.decode(record)
        if "halvings" not in record:
            example["image"].set_shape(shape)
        return index, key, example, *numbers

    def views_of_batch(
        index: tf.Tensor, key: tf.Tensor, example: Record, *numbers: Any
    ) -> tuple:
        if source.decoded:
            example = lookup(index, example)
        seeds = _seeds(index, key)
        images = example.pop("image")
        return views.make(images, seeds, *numbers), seeds, example

    def views_of_image(*draw: Any) -> tuple:
        one = tf.nest.map_structure(
            lambda x: x[tf.newaxis], draw if source.decoded else decode(*draw)
        )
        return tf.nest.map_structure(lambda x: x[0], views_of_batch(*one))

    def element(pixels: tf.Tensor, seeds: tf.Tensor, example: Record) -> Any:
        inputs = _with_extra(pixels, example, views.extra_channels)
        if views.finish:
            inputs = views.finish(inputs, seeds)
        if "label" in example:
            return inputs, tf.cast(example["label"], tf.int32)
        # Keras would take a bare pair for inputs and labels.
        return (inputs,) if isinstance(inputs, tuple) else inputs

    if one_by_one:
        if views.numbers:
            draws = _with_numbers(draws, views.numbers)
        made = draws.map(views_of_image, tf.data.AUTOTUNE)
        made = made.batch(rows, drop_remainder=whole)
    else:
        if not source.decoded:
            draws = draws.map(decode, tf.data.AUTOTUNE)
        draws = draws.batch(rows, drop_remainder=whole)
        made = draws.map(views_of_batch, tf.data.AUTOTUNE)
    return made.map(element, tf.data.AUTOTUNE)


def _seeds(index: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Seeds of images, int32 [..., 2]."""
    return tf.stack([key, tf.cast(index, tf.int32)], axis=-1)


def _with_numbers(
    draws: tf.data.Dataset, numbers: Callable[[tf.Tensor], Any]
) -> tf.data.Dataset:
    """Appends the random numbers of each draw, drawn for many at a time."""
    shapes = [s.shape for s in tf.nest.flatten(draws.element_spec)]
    # Others might differ in shape, and have no batches.
    together = all(shape.is_fully_defined() for shape in shapes)

    def drawn(index: tf.Tensor, key: tf.Tensor, record: Record) -> tuple:
        return index, key, record, numbers(_seeds(index, key))

    return draws.batch(_DRAWN_TOGETHER if together else 1).map(drawn).unbatch()


def _with_extra(
    images: tf.Tensor, example: Record, channels: int | None
) -> tf.Tensor:
    """Appends feature `extra`, [b, k] or [b, S, S, k], to [b, (V,) S, S, C]."""
    if "extra" not in example or channels == 0:
        return images
    extra = tf.cast(example["extra"], tf.float32)[..., :channels]
    while extra.shape.rank < images.shape.rank:
        extra = extra[:, tf.newaxis]
    shape = tf.concat([tf.shape(images)[:-1], tf.shape(extra)[-1:]], 0)
    return tf.concat([images, tf.broadcast_to(extra, shape)], -1)


def _prefetched(
    dataset: tf.data.Dataset, endless: bool = False
) -> tf.data.Dataset:
    """Returns the same batches, in their order, made ahead of their use.

    Several workers expect a last, smaller batch, and leave the size of all
    batches open, unless they are declared to be `endless`.
    """
    if endless:
        infinite = tf.data.experimental.INFINITE_CARDINALITY
        dataset = dataset.apply(
            tf.data.experimental.assert_cardinality(infinite)
        )
    options = tf.data.Options()
    options.deterministic = True
    # Each pipeline makes its own rows; TensorFlow must not shard them again.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)
