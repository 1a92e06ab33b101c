"""Batches of a source: views without end for training, images for evaluation.

The stream is a pure function of (seed, epoch, example index): the same on any
number of threads, pipelines and replicas, and from any step on.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.data import Data, check_data_service
from tf_contrastive.datasets import framing, remote, sharing
from tf_contrastive.datasets import sampler as samplers
from tf_contrastive.datasets.source import Source

# Images of one shape are decoded once, into memory, up to so many bytes: 50,000
# images of CIFAR-10 are 154 MB, and are then read by index in whole batches.
CACHE_BYTES = 1 << 30


def in_memory(source: Source, cache: str = Data.cache) -> Source:
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


def training_batches(
    source: Source,
    make_views: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    *,
    finish: framing.Finish | None = None,
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
    data_service: str = Data.data_service,
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
        raise errors.unknown("sampler", sampler, samplers.SAMPLERS)
    order = {
        "steps": sharing.steps_per_epoch(source.info.num_examples, batch_size),
        "seed": seed,
        "start_step": start_step,
        "buffer": shuffle_buffer,
    }
    share = sharing.share(
        batch_size, replica_batch_size, num_pipelines, pipeline_id
    )
    make = functools.partial(
        framing.batches,
        make_views=make_views,
        finish=finish,
        rows=share.rows,
        extra_channels=extra_channels,
    )
    if data_service:
        check_data_service(data_service, sampler)
        made = remote.batches(
            source, make, share, data_service, delivered, **order
        )
    else:
        source = in_memory(source, cache)
        draw = samplers.SAMPLERS[sampler]
        draws = draw(source, batch_size=batch_size, **order)
        made = make(source, share.of(draws))
    return framing.endless(made)


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
        return framing.with_extra(images, example, extra_channels), labels

    batches = source.records.map(prepare, tf.data.AUTOTUNE).batch(batch_size)
    return framing.finished(batches.map(element, tf.data.AUTOTUNE))


def view_batches(
    source: Source,
    make_views: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    *,
    finish: framing.Finish | None = None,
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
    made = framing.batches(
        source,
        draws,
        make_views=make_views,
        finish=finish,
        rows=batch_size,
        extra_channels=extra_channels,
        whole=False,
    )
    if not source.info.has_labels:
        made = made.map(
            lambda views, *_: (views, tf.fill([tf.shape(views)[0]], -1))
        )
    return framing.finished(made)
