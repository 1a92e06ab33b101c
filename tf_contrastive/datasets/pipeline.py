"""Batches of a source: views without end for training, images for evaluation.

The stream is a pure function of (seed, epoch, example index): the same on any
number of threads, pipelines and replicas, and from any step on.
"""

from collections.abc import Callable

import tensorflow as tf

from tf_contrastive import config
from tf_contrastive.datasets import sampler as samplers
from tf_contrastive.datasets.source import Record, Source

# Images of one shape are decoded once, into memory, up to so many bytes: 50,000
# images of CIFAR-10 are 154 MB, and are then read by index in whole batches.
CACHE_BYTES = 1 << 30


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Returns the whole batches that an epoch has; the rest is dropped.

    Raises:
      UserError: if there is none.
    """
    if not 0 < batch_size <= num_examples:
        raise config.UserError(
            f"--batch_size={batch_size} is more than the {num_examples}"
            f" examples there are: give --batch_size={num_examples} or less"
        )
    return num_examples // batch_size


def _rows(batch_size: int, replica_batch_size: int | None, pipelines: int):
    """Returns (rows per pipeline and step, rows per element)."""
    if batch_size % pipelines:
        raise config.UserError(
            f"--batch_size={batch_size} is not divisible by the {pipelines}"
            f" input pipelines: give a multiple of {pipelines}"
        )
    local = batch_size // pipelines
    rows = replica_batch_size or local
    if local % rows:
        raise config.UserError(
            f"a pipeline's share {local} of --batch_size={batch_size} is not"
            f" divisible by the {rows} images of a replica"
        )
    return local, rows


def _share(
    draws: tf.data.Dataset, batch_size: int, local: int, pipeline_id: int
) -> tf.data.Dataset:
    """Returns the draws that one pipeline decodes: a run of every batch.

    Replica r sees the same rows of a batch, however many pipelines there are.
    """
    if local == batch_size:
        return draws
    return (
        draws.enumerate()
        .filter(lambda place, _: place % batch_size // local == pipeline_id)
        .map(lambda _, draw: draw)
    )


def in_memory_if_small(source: Source) -> Source:
    """Returns the source with its pixels in memory, up to `CACHE_BYTES`.

    `training_batches` does so by itself; called first, several pipelines share
    what was decoded once.
    """
    shape = source.info.image_shape
    if shape is None:
        return source
    height, width, channels = shape
    size = source.info.num_examples * height * width * channels
    return source.cached() if size <= CACHE_BYTES else source


def _lookup(source: Source, index: tf.Tensor, record: Record) -> Record:
    """Returns the records at `index`, [] or [b]."""
    if source.arrays is None:
        return record
    return {k: tf.gather(rows, index) for k, rows in source.arrays.items()}


def _element(views: tf.Tensor, example: Record):
    if "label" not in example:
        return views
    return views, tf.cast(example["label"], tf.int32)


def _views_of_batches(source, draws, make_views, rows) -> tf.data.Dataset:
    """Makes views batch by batch: images have one shape."""

    def look_up(index, key, record):
        return index, key, _lookup(source, index, record)

    def decode(index, key, record):
        example = source.decode(_lookup(source, index, record))
        example["image"].set_shape(source.info.image_shape)
        return index, key, example

    def views(index, key, example):
        seeds = tf.stack([key, tf.cast(index, tf.int32)], axis=1)
        return _element(make_views(example["image"], seeds), example)

    if source.decoded:
        draws = draws.batch(rows, drop_remainder=True)
        return draws.map(lambda *draw: views(*look_up(*draw)), tf.data.AUTOTUNE)
    draws = draws.map(decode, tf.data.AUTOTUNE).batch(rows, drop_remainder=True)
    return draws.map(views, tf.data.AUTOTUNE)


def _views_of_images(source, draws, make_views, rows) -> tf.data.Dataset:
    """Makes views image by image: their shapes differ."""

    def views(index, key, record):
        example = source.decode(_lookup(source, index, record))
        seed = tf.stack([key, tf.cast(index, tf.int32)])
        one = make_views(example["image"][tf.newaxis], seed[tf.newaxis])
        return _element(one[0], example)

    return draws.map(views, tf.data.AUTOTUNE).batch(rows, drop_remainder=True)


def _finished(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = True
    # Pipelines are shared out above; TensorFlow must not do so again.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)


def training_batches(
    source: Source,
    make_views: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    *,
    batch_size: int,
    replica_batch_size: int | None = None,
    seed: int,
    start_step: int = 0,
    sampler: str = config.Data.sampler,
    shuffle_buffer: int = config.Data.shuffle_buffer,
    num_pipelines: int = 1,
    pipeline_id: int = 0,
) -> tf.data.Dataset:
    """Makes the stream of training batches, from `start_step` on.

    Batch k has the same (example, seed) rows for any `num_pipelines`: a
    pipeline gives its part of them, in `replica_batch_size` rows at a time.
    A stream that starts at step k equals the rest of one that started at 0.

    Args:
      source: what to train on.
      make_views: (uint8 [n, h, w, 3], int32 [n, 2]) -> float32 [n, V, S, S, 3].
        A seed is (a mix of seed and epoch, the example's index).
      batch_size: images of the global batch.
      replica_batch_size: images of an element; None: all of the pipeline's.
      seed: seed of the order and of the views.
      start_step: first step to give.
      sampler: "shuffle", or "class_balanced".
      shuffle_buffer: encoded examples to shuffle among; examples that are in
        memory, or listed by path, are shuffled as a whole.
      num_pipelines: pipelines (hosts) that share the global batch.
      pipeline_id: which of them this is.

    Returns:
      Infinite `tf.data.Dataset` of (views float32 [b, V, S, S, 3], labels int32
      [b]), or of views alone where there are no labels.

    Raises:
      UserError: if an epoch has no batch, a batch cannot be shared evenly, or
        a sampler needs labels that are not there.
    """
    if sampler not in samplers.SAMPLERS:
        raise config.unknown("sampler", sampler, samplers.SAMPLERS)
    steps = steps_per_epoch(source.info.num_examples, batch_size)
    local, rows = _rows(batch_size, replica_batch_size, num_pipelines)
    source = in_memory_if_small(source)
    draws = samplers.SAMPLERS[sampler](
        source,
        batch_size=batch_size,
        steps=steps,
        seed=seed,
        start_step=start_step,
        buffer=shuffle_buffer,
    )
    draws = _share(draws, batch_size, local, pipeline_id)
    one_shape = source.info.image_shape is not None
    make = _views_of_batches if one_shape else _views_of_images
    return _finished(make(source, draws, make_views, rows))


def evaluation_batches(
    source: Source,
    preprocess: Callable[[tf.Tensor], tf.Tensor],
    *,
    batch_size: int,
) -> tf.data.Dataset:
    """Makes batches of every example once, in order; the last may be smaller.

    Args:
      source: what to evaluate on.
      preprocess: uint8 [h, w, 3] -> float32 [S, S, 3].
      batch_size: images of a batch.

    Returns:
      Finite `tf.data.Dataset` of (images float32 [b, S, S, 3], labels int32
      [b]); labels are -1 where there are none.
    """

    def prepare(record):
        example = source.decode(record)
        label = tf.cast(example.get("label", -1), tf.int32)
        return preprocess(example["image"]), label

    batches = source.records.map(prepare, tf.data.AUTOTUNE).batch(batch_size)
    return _finished(batches)
