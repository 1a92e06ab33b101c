"""Batches of a source: views without end for training, images for evaluation.

The stream is a pure function of (seed, epoch, example index): the same on any
number of threads, pipelines and replicas, and from any step on.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import config
from tf_contrastive.datasets import remote
from tf_contrastive.datasets import sampler as samplers
from tf_contrastive.datasets.source import Record, Source

# Images of one shape are decoded once, into memory, up to so many bytes: 50,000
# images of CIFAR-10 are 154 MB, and are then read by index in whole batches.
CACHE_BYTES = 1 << 30

# (float32 [b, V, S, S, K], int32 [b, 2]) -> what a step takes.
Finish = Callable[[tf.Tensor, tf.Tensor], Any]


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


def in_memory(source: Source, cache: str = config.Data.cache) -> Source:
    """Returns the source with its examples in memory, as `cache` says.

    Called once, and first, so that several pipelines share what was read.

    Args:
      source: any source.
      cache: "auto" decodes images of one shape, up to `CACHE_BYTES` of them;
        "memory" any number, and keeps images of several shapes encoded;
        "none" nothing.
    """
    info = source.info
    if cache == "none" or (cache == "auto" and info.image_shape is None):
        return source
    if info.image_shape is None:
        return source.loaded()
    height, width, channels = info.image_shape
    size = info.num_examples * height * width * channels
    fits = cache == "memory" or size <= CACHE_BYTES
    return source.cached() if fits else source


def _lookup(source: Source, index: tf.Tensor, record: Record) -> Record:
    """Returns the records at `index`, [] or [b]."""
    if source.arrays is None:
        return record
    return {k: tf.gather(rows, index) for k, rows in source.arrays.items()}


def _seeds(key: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    return tf.stack([key, tf.cast(index, tf.int32)], axis=-1)


def _framed_batches(source, draws, make_views, rows, whole) -> tf.data.Dataset:
    """Makes views batch by batch: images have one shape."""

    def decode(index, key, record):
        example = source.decode(_lookup(source, index, record))
        example["image"].set_shape(source.info.image_shape)
        return index, key, example

    def frame(index, key, example):
        if source.decoded:
            example = _lookup(source, index, example)
        seeds = _seeds(key, index)
        return make_views(example.pop("image"), seeds), seeds, example

    if not source.decoded:
        draws = draws.map(decode, tf.data.AUTOTUNE)
    draws = draws.batch(rows, drop_remainder=whole)
    return draws.map(frame, tf.data.AUTOTUNE)


def _framed_images(source, draws, make_views, rows, whole) -> tf.data.Dataset:
    """Makes views image by image: their shapes differ."""

    def frame(index, key, record):
        example = source.decode(_lookup(source, index, record))
        seeds = _seeds(key, index)
        image = example.pop("image")
        views = make_views(image[tf.newaxis], seeds[tf.newaxis])[0]
        return views, seeds, example

    return draws.map(frame, tf.data.AUTOTUNE).batch(rows, drop_remainder=whole)


def _with_extra(
    images: tf.Tensor, example: Record, channels: int | None
) -> tf.Tensor:
    """Appends feature `extra` to images [b, (V,) S, S, 3], as it is.

    Args:
      images: float32.
      example: with "extra" [b, k] or [b, S, S, k], if it has any.
      channels: how many of them; None: all.
    """
    if "extra" not in example or channels == 0:
        return images
    extra = tf.cast(example["extra"], tf.float32)[..., :channels]
    while extra.shape.rank < images.shape.rank:
        extra = extra[:, tf.newaxis]
    shape = tf.concat([tf.shape(images)[:-1], tf.shape(extra)[-1:]], 0)
    return tf.concat([images, tf.broadcast_to(extra, shape)], -1)


def _made(
    source, draws, make_views, finish, rows, extra_channels, whole=True
) -> tf.data.Dataset:
    """Makes batches of draws: frames, then everything else batched.

    Args:
      source, make_views, finish, extra_channels: see `training_batches`.
      draws: (index, key, record) each.
      rows: draws of a batch.
      whole: whether a last, smaller batch is left out.
    """
    # What one dispatch does to many images costs little; so only that is done
    # image by image which images of several shapes do not share.
    one_shape = source.info.image_shape is not None
    frame = _framed_batches if one_shape else _framed_images

    def element(views, seeds, example):
        views = _with_extra(views, example, extra_channels)
        inputs = finish(views, seeds) if finish else views
        if "label" in example:
            return inputs, tf.cast(example["label"], tf.int32)
        # A bare pair would be taken for inputs and labels.
        return (inputs,) if isinstance(inputs, tuple) else inputs

    framed = frame(source, draws, make_views, rows, whole)
    return framed.map(element, tf.data.AUTOTUNE)


def _finished(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = True
    # Pipelines are shared out above; TensorFlow must not do so again.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)


def _drawn_apart(
    source: Source, seed: int, number: tf.Tensor, buffer: int, shape
) -> tf.data.Dataset:
    """Returns a pipeline's draws of an epoch, for workers to share.

    Args:
      source, seed, buffer: see `training_batches`.
      number: the epoch.
      shape: (steps, pipelines, the pipeline, its elements of a step, rows).
    """
    steps, pipelines, pipeline, elements, rows = shape
    order, key = samplers.seeds(seed, number)
    if source.arrays is None:
        draws = samplers.one_pass(source, order, key, buffer)
        return draws.filter(lambda index, *_: index % pipelines == pipeline)
    # Workers take one row of this after the other: an element of a step.
    places = samplers.order_of(source, order)
    places = places[: steps * pipelines * elements * rows]
    places = tf.reshape(places, [steps, pipelines, elements * rows])
    places = tf.reshape(places[:, pipeline], [-1, rows])

    def one_by_one(indices):
        keys = tf.fill([rows], key)
        return tf.data.Dataset.from_tensor_slices((indices, keys, {}))

    return tf.data.Dataset.from_tensor_slices(places).flat_map(one_by_one)


def _served(
    source: Source,
    make: Callable[[tf.data.Dataset], tf.data.Dataset],
    *,
    rows: int,
    steps: int,
    seed: int,
    start_step: int,
    sampler: str,
    buffer: int,
    share: tuple[int, int, int],
    address: str,
    delivered: remote.Delivered,
) -> tf.data.Dataset:
    """Batches from the data service, epoch after epoch, each a job of its own.

    Args:
      source, rows, steps, seed, start_step, sampler, buffer: see
        `training_batches`.
      make: draws -> batches, with the last, smaller one.
      share: (pipelines, which of them this is, its rows of a step).
      address: of the dispatcher.
      delivered: counts what came.

    Raises:
      UserError: for another sampler than "shuffle", or if nothing answers.
    """
    config.check_data_service(address, sampler)
    remote.check(address)
    pipelines, pipeline, local = share
    elements = local // rows
    first, done = divmod(start_step, steps)
    delivered.expect(first, done * local, steps * local)

    def of_epoch(number):
        shape = (steps, pipelines, pipeline, elements, rows)
        draws = _drawn_apart(source, seed, number, buffer, shape)
        batches = remote.distribute(make(draws), address)
        batches = batches.rebatch(rows, drop_remainder=True)
        skipped = tf.where(number == first, tf.cast(done, tf.int64), 0)
        batches = batches.take((steps - skipped) * elements)
        return delivered.counted(batches, number, rows)

    epochs = tf.data.Dataset.range(first, samplers.FOREVER)
    return delivered.until_lost(epochs.flat_map(of_epoch), address)


def training_batches(
    source: Source,
    make_views: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    *,
    finish: Finish | None = None,
    batch_size: int,
    replica_batch_size: int | None = None,
    seed: int,
    start_step: int = 0,
    sampler: str = config.Data.sampler,
    shuffle_buffer: int = config.Data.shuffle_buffer,
    cache: str = config.Data.cache,
    extra_channels: int | None = None,
    num_pipelines: int = 1,
    pipeline_id: int = 0,
    data_service: str = config.Data.data_service,
    delivered: remote.Delivered | None = None,
) -> tf.data.Dataset:
    """Makes the stream of training batches, from `start_step` on.

    Batch k has the same (example, seed) rows for any `num_pipelines`: a
    pipeline gives its part of them, in `replica_batch_size` rows at a time.
    A stream that starts at step k equals the rest of one that started at 0.

    With a data service an epoch has the same rows, in any order, if it holds
    whole batches of them; else the rows that are dropped are others. A stream
    that starts amid an epoch has some of its rows.

    Args:
      source: what to train on.
      make_views: (uint8 [n, h, w, 3], int32 [n, 2]) -> float32 [n, V, S, S, 3].
        A seed is (a mix of seed and epoch, the example's index). It gets whole
        batches where images have one shape, else one image at a time.
      finish: (what `make_views` gave with `extra` after its channels, the
        seeds) -> what a step takes, always in whole batches; None: the views.
      batch_size: images of the global batch.
      replica_batch_size: images of an element; None: all of the pipeline's.
      seed: seed of the order and of the views.
      start_step: first step to give.
      sampler: "shuffle", or "class_balanced".
      shuffle_buffer: encoded examples to shuffle among; examples that are in
        memory, or listed by path, are shuffled as a whole, and so are files.
      cache: see `in_memory`.
      extra_channels: channels of feature `extra` to take; None: all.
      num_pipelines: pipelines (hosts) that share the global batch.
      pipeline_id: which of them this is.
      data_service: grpc://host:port of a dispatcher whose workers make the
        batches; empty: this process does.
      delivered: counts what came from there.

    Returns:
      Infinite `tf.data.Dataset` of (views float32 [b, V, S, S, K], labels int32
      [b], or [b, C] of 0 and 1 where images have several), or of views alone
      where there are no labels.

    Raises:
      UserError: if an epoch has no batch, a batch cannot be shared evenly, or
        a sampler needs labels that are not there.
    """
    if sampler not in samplers.SAMPLERS:
        raise config.unknown("sampler", sampler, samplers.SAMPLERS)
    steps = steps_per_epoch(source.info.num_examples, batch_size)
    local, rows = _rows(batch_size, replica_batch_size, num_pipelines)
    if data_service:
        made = _served(
            source,
            lambda draws: _made(
                source, draws, make_views, finish, rows, extra_channels, False
            ),
            rows=rows,
            steps=steps,
            seed=seed,
            start_step=start_step,
            sampler=sampler,
            buffer=shuffle_buffer,
            share=(num_pipelines, pipeline_id, local),
            address=data_service,
            delivered=delivered or remote.Delivered(),
        )
    else:
        source = in_memory(source, cache)
        draws = samplers.SAMPLERS[sampler](
            source,
            batch_size=batch_size,
            steps=steps,
            seed=seed,
            start_step=start_step,
            buffer=shuffle_buffer,
        )
        draws = _share(draws, batch_size, local, pipeline_id)
        made = _made(source, draws, make_views, finish, rows, extra_channels)
    # Said, since several workers would otherwise expect a last, smaller batch,
    # and leave the size of all batches open.
    endless = tf.data.experimental.assert_cardinality(
        tf.data.experimental.INFINITE_CARDINALITY
    )
    return _finished(made.apply(endless))


def evaluation_batches(
    source: Source,
    preprocess: Callable[[tf.Tensor], tf.Tensor],
    *,
    batch_size: int,
    extra_channels: int | None = None,
) -> tf.data.Dataset:
    """Makes batches of every example once, in order; the last may be smaller.

    Args:
      source: what to evaluate on.
      preprocess: uint8 [h, w, 3] -> float32 [S, S, 3].
      batch_size: images of a batch.
      extra_channels: channels of feature `extra` to take; None: all.

    Returns:
      Finite `tf.data.Dataset` of (images float32 [b, S, S, K], labels int32
      [b]); labels are -1 where there are none, or several of an image.
    """

    def prepare(record):
        example = source.decode(record)
        label = tf.cast(example.pop("label", -1), tf.int32)
        label = label if source.info.has_labels else -1
        return preprocess(example.pop("image")), label, example

    def element(images, labels, example):
        return _with_extra(images, example, extra_channels), labels

    batches = source.records.map(prepare, tf.data.AUTOTUNE).batch(batch_size)
    return _finished(batches.map(element, tf.data.AUTOTUNE))


def view_batches(
    source: Source,
    make_views: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    *,
    finish: Finish | None = None,
    batch_size: int,
    seed: int,
    extra_channels: int | None = None,
) -> tf.data.Dataset:
    """Makes views of every example once, in order; the last batch may be small.

    Args:
      source: whose examples.
      make_views, finish: see `training_batches`; a seed is (`seed`, the
        example's index).
      batch_size: images of a batch.
      seed: of the views.
      extra_channels: channels of feature `extra` to take; None: all.

    Returns:
      Finite `tf.data.Dataset` of (views float32 [b, V, S, S, K], labels int32
      [b]); labels are -1 where there are none, or several of an image.
    """
    key = tf.constant(seed % 2**31, tf.int32)
    draws = source.records.enumerate().map(
        lambda index, record: (index, key, record)
    )
    made = _made(
        source, draws, make_views, finish, batch_size, extra_channels, False
    )
    if not source.info.has_labels:
        made = made.map(
            lambda views, *_: (views, tf.fill([tf.shape(views)[0]], -1))
        )
    return _finished(made)
