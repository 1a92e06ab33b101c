"""Batches of a source: infinite views for training, images for evaluation.

The stream is a pure function of (seed, epoch, example index): the same for any
number of threads, pipelines and replicas, and from any step on.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.data import Data, check_data_service
from tf_contrastive.datasets import data_service as service
from tf_contrastive.datasets import sampler as samplers
from tf_contrastive.datasets.source import Record, Source

# (views float32 [b, V, S, S, K], seeds int32 [b, 2]) -> input of a step; see
# `views.from_config.on_host`.
Finish = Callable[[tf.Tensor, tf.Tensor], Any]
MakeViews = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# (size int32 [2], seed int32 [2]) -> int32 []; see `views.halvings`.
Halvings = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

# Images of one shape are decoded once, into memory, up to this many bytes
# (50,000 images of CIFAR-10 take 154 MB), then read by index in whole batches.
CACHE_BYTES = 1 << 30
# Larger images become views one at a time: a batch of photographs that are not
# cropped yet takes gigabytes.
_BATCHED_BYTES = 1 << 19


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


def in_memory(source: Source, cache: str = Data.cache) -> Source:
    """Returns the source with its examples in memory, as `cache` says.

    Call it once, and first, so that several pipelines share the data. "auto"
    decodes images of one shape, up to `CACHE_BYTES`; "memory" any number, and
    keeps images of several shapes encoded; "none" nothing.
    """
    info = source.info
    if cache == "none" or (cache == "auto" and info.image_shape is None):
        return source
    if info.image_shape is None:
        return source.loaded()
    size = info.num_examples * math.prod(info.image_shape)
    fits = cache == "memory" or size <= CACHE_BYTES
    return source.cached() if fits else source


@tf.autograph.experimental.do_not_convert
def training_batches(
    source: Source,
    make_views: MakeViews,
    *,
    finish: Finish | None = None,
    halvings: Halvings | None = None,
    batch_size: int,
    replica_batch_size: int | None = None,
    seed: int,
    start_step: int = 0,
    sampler: str = Data.sampler,
    shuffle_buffer: int = Data.shuffle_buffer,
    cache: str = Data.cache,
    extra_channels: int | None = None,
    num_pipelines: int = 1,
    pipeline_id: int = 0,
    sharding: str = Data.input_sharding,
    data_service: str = Data.data_service,
    delivered: service.DeliveryCounter | None = None,
) -> tf.data.Dataset:
    """Makes the infinite stream of training batches.

    Batch k has the same (example, seed) rows for any `num_pipelines`, unless
    these share files: each pipeline makes its part, `replica_batch_size` rows
    at a time. A stream that starts at step k equals the rest of a stream from
    step 0.

    With a data service an epoch has the same rows in any order, if it consists
    of whole batches; otherwise other rows are dropped. A stream that starts
    inside an epoch has some of its rows.

    Args:
      source: training examples.
      make_views: (uint8 [n, h, w, 3], int32 [n, 2]) -> float32 [n, V, S, S, 3].
        A seed is (a mix of seed and epoch, the example's index). It gets whole
        batches of small images of one shape, else one image at a time.
      finish: (views with `extra` after their channels, seeds) -> input of a
        step, always in whole batches; None: the views.
      halvings: how often large JPEGs of a known size may be halved when they
        are decoded; None: not at all.
      batch_size: images of the global batch.
      replica_batch_size: images of an element; None: all of the pipeline's.
      seed: seed of the order and of the views.
      start_step: first step.
      sampler: "shuffle" or "class_balanced".
      shuffle_buffer: encoded examples to shuffle among; examples that are in
        memory or listed by path, and files, are shuffled as a whole.
      cache: see `in_memory`.
      extra_channels: channels of feature `extra` to take; None: all.
      num_pipelines, pipeline_id: pipelines (hosts) that share the global
        batch, and the number of this one.
      sharding: "example": every pipeline reads all files, and takes its rows;
        "file": it reads its own files, so that the stream depends on the number
        of pipelines; "auto": "file" if there are enough. For files of records
        and sampler "shuffle".
      data_service: grpc://host:port of a dispatcher whose workers make the
        batches; empty: this process.
      delivered: counter of the service's examples.

    Returns:
      Infinite `tf.data.Dataset` of (input of a step, such as views float32
      [b, V, S, S, K]; labels int32 [b], or [b, C] of 0 and 1 for multi-label
      datasets), or of the input alone if there are no labels.

    Raises:
      UserError: if an epoch has no batch, a batch cannot be divided evenly, or
        the sampler needs labels.
    """
    if sampler not in samplers.SAMPLERS:
        raise errors.unknown("sampler", sampler, samplers.SAMPLERS)
    stream = samplers.Stream(
        source,
        batch_size,
        replica_batch_size or batch_size // num_pipelines,
        steps_per_epoch(source.info.num_examples, batch_size),
        seed,
        start_step,
        # TensorFlow allocates all places.
        min(shuffle_buffer, source.info.num_examples),
        num_pipelines,
        pipeline_id,
        sharding,
    )
    make = functools.partial(
        _batches,
        make_views=make_views,
        finish=finish,
        halvings=halvings,
        rows=stream.rows,
        extra_channels=extra_channels,
    )
    if data_service:
        check_data_service(data_service, sampler)
        batches = service.batches(stream, make, data_service, delivered)
    else:
        source = in_memory(source, cache)
        stream = dataclasses.replace(stream, source=source)
        draws = samplers.SAMPLERS[sampler](stream)
        is_local = sampler == "shuffle" and stream.shares_files
        batches = make(source, draws if is_local else stream.select(draws))
    return _prefetched(_endless(batches))


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
      preprocess: uint8 [h, w, 3] -> float32 [S, S, 3].
      batch_size, extra_channels: see `training_batches`.

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
    num_pipelines: int = 1,
    pipeline_id: int = 0,
) -> tf.data.Dataset:
    """Makes batches of one pipeline's part of the examples, over and over.

    Parts are contiguous, of one size but for the last; some may overlap if
    there are few examples. Other arguments: see `evaluation_batches`;
    `batch_size` is that of an element.

    Returns:
      Infinite `tf.data.Dataset` of (images float32 [b, S, S, K], numbers int32
      [b, 2]: label, and position in the source).
    """
    first = 0
    if num_pipelines > 1:
        count = source.info.num_examples
        size = part_size(count, num_pipelines)
        first = min(pipeline_id * size, count - 1)
        source = source.select(np.arange(first, min(first + size, count)))
    records = source.records.enumerate(first).repeat()
    batches = _evaluated(
        source, records, preprocess, batch_size, extra_channels, whole=True
    )
    return _prefetched(_endless(batches))


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
    """Makes batches of (position, record): images, and (label, position).

    They are float32 [b, S, S, K], int32 [b, 2]; a label is -1 where there is
    not one of each image; `whole` drops a last, smaller batch.
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
    source: Source,
    make_views: MakeViews,
    *,
    finish: Finish | None = None,
    batch_size: int,
    seed: int,
    extra_channels: int | None = None,
) -> tf.data.Dataset:
    """Makes views of every example once, in order; the last batch may be small.

    The arguments are those of `training_batches`; a seed is (`seed`, the
    example's index).

    Returns:
      Finite `tf.data.Dataset` of (views float32 [b, V, S, S, K], labels int32
      [b]); labels are -1 unless images have one label each.
    """
    key = tf.constant(seed % 2**31, tf.int32)
    draws = source.records.enumerate().map(
        lambda index, record: (index, key, record)
    )
    batches = _batches(
        source,
        draws,
        make_views=make_views,
        finish=finish,
        rows=batch_size,
        extra_channels=extra_channels,
        whole=False,
    )
    if not source.info.has_labels:
        batches = batches.map(
            lambda views, *_: (views, tf.fill([tf.shape(views)[0]], -1))
        )
    return _prefetched(batches)


def _batches(
    source: Source,
    draws: tf.data.Dataset,
    *,
    make_views: MakeViews,
    finish: Finish | None,
    halvings: Halvings | None = None,
    rows: int,
    extra_channels: int | None,
    whole: bool = True,
) -> tf.data.Dataset:
    """Makes batches of `rows` draws; `whole` drops a last, smaller one."""
    shape = source.info.image_shape
    one_by_one = shape is None or math.prod(shape) > _BATCHED_BYTES

    def lookup(index: tf.Tensor, record: Record) -> Record:
        if source.arrays is None:
            return record
        return {k: tf.gather(v, index) for k, v in source.arrays.items()}

    def decode(index: tf.Tensor, key: tf.Tensor, record: Record) -> tuple:
        record = lookup(index, record)
        if one_by_one and halvings and "size" in record:
            seed = tf.stack([key, tf.cast(index, tf.int32)])
            record["halvings"] = halvings(record["size"], seed)
        example = source.decode(record)
        if "halvings" not in record:
            example["image"].set_shape(shape)
        return index, key, example

    def views_of_batch(
        index: tf.Tensor, key: tf.Tensor, example: Record
    ) -> tuple:
        if source.decoded:
            example = lookup(index, example)
        seeds = tf.stack([key, tf.cast(index, tf.int32)], axis=-1)
        return make_views(example.pop("image"), seeds), seeds, example

    def views_of_image(
        index: tf.Tensor, key: tf.Tensor, record: Record
    ) -> tuple:
        draw = index, key, record
        one = tf.nest.map_structure(
            lambda x: x[tf.newaxis], draw if source.decoded else decode(*draw)
        )
        return tf.nest.map_structure(lambda x: x[0], views_of_batch(*one))

    def element(views: tf.Tensor, seeds: tf.Tensor, example: Record) -> Any:
        views = _with_extra(views, example, extra_channels)
        inputs = finish(views, seeds) if finish else views
        if "label" in example:
            return inputs, tf.cast(example["label"], tf.int32)
        # Keras would take a bare pair for inputs and labels.
        return (inputs,) if isinstance(inputs, tuple) else inputs

    if one_by_one:
        views = draws.map(views_of_image, tf.data.AUTOTUNE)
        views = views.batch(rows, drop_remainder=whole)
    else:
        if not source.decoded:
            draws = draws.map(decode, tf.data.AUTOTUNE)
        draws = draws.batch(rows, drop_remainder=whole)
        views = draws.map(views_of_batch, tf.data.AUTOTUNE)
    return views.map(element, tf.data.AUTOTUNE)


def _with_extra(
    images: tf.Tensor, example: Record, channels: int | None
) -> tf.Tensor:
    """Appends feature `extra`, [b, k] or [b, S, S, k], to [b, (V,) S, S, 3]."""
    if "extra" not in example or channels == 0:
        return images
    extra = tf.cast(example["extra"], tf.float32)[..., :channels]
    while extra.shape.rank < images.shape.rank:
        extra = extra[:, tf.newaxis]
    shape = tf.concat([tf.shape(images)[:-1], tf.shape(extra)[-1:]], 0)
    return tf.concat([images, tf.broadcast_to(extra, shape)], -1)


def _endless(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Declares that batches do not end.

    Otherwise several workers expect a last, smaller batch, and leave the size
    of all batches open.
    """
    return batches.apply(
        tf.data.experimental.assert_cardinality(
            tf.data.experimental.INFINITE_CARDINALITY
        )
    )


def _prefetched(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the same batches, in their order, made ahead of their use."""
    options = tf.data.Options()
    options.deterministic = True
    # Each pipeline makes its own rows; TensorFlow must not shard them again.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)
