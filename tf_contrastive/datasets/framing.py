"""Batches of draws: decoded, framed into views, labelled.

What one dispatch does to many images costs little; so only that is done image
by image which images of several shapes do not share.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive.datasets.source import Record, Source

# (float32 [b, V, S, S, K], int32 [b, 2]) -> what a step takes.
Finish = Callable[[tf.Tensor, tf.Tensor], Any]


def batches(
    source: Source,
    draws: tf.data.Dataset,
    *,
    make_views: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    finish: Finish | None,
    rows: int,
    extra_channels: int | None,
    whole: bool = True,
) -> tf.data.Dataset:
    """Makes batches of draws: frames, then everything else batched.

    Args:
      source: whose examples.
      draws: (index, key, record) each, see `sampler`.
      make_views, finish, extra_channels: see `pipeline.training_batches`.
      rows: draws of a batch.
      whole: whether a last, smaller batch is left out.
    """
    one_shape = source.info.image_shape is not None
    frame = _framed_batches if one_shape else _framed_images

    def element(views, seeds, example):
        views = with_extra(views, example, extra_channels)
        inputs = finish(views, seeds) if finish else views
        if "label" in example:
            return inputs, tf.cast(example["label"], tf.int32)
        # A bare pair would be taken for inputs and labels.
        return (inputs,) if isinstance(inputs, tuple) else inputs

    framed = frame(source, draws, make_views, rows, whole)
    return framed.map(element, tf.data.AUTOTUNE)


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


def _lookup(source: Source, index: tf.Tensor, record: Record) -> Record:
    """Returns the records at `index`, [] or [b]."""
    if source.arrays is None:
        return record
    return {k: tf.gather(rows, index) for k, rows in source.arrays.items()}


def _seeds(key: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    return tf.stack([key, tf.cast(index, tf.int32)], axis=-1)


def with_extra(
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


def finished(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the same batches, in their order, made ahead of their use."""
    options = tf.data.Options()
    options.deterministic = True
    # Pipelines have their shares; TensorFlow must not share out again.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)


def endless(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`finished`, of batches without end.

    Said, since several workers would otherwise expect a last, smaller batch,
    and leave the size of all batches open.
    """
    infinite = tf.data.experimental.assert_cardinality(
        tf.data.experimental.INFINITE_CARDINALITY
    )
    return finished(dataset.apply(infinite))
