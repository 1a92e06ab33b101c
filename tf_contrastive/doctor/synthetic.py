"""Noise in the form of a run's batches, to measure its step alone."""

import numpy as np
import tensorflow as tf

from tf_contrastive.config.pretrain import Pretrain


def batches(
    run: Pretrain,
    num_classes: int | None,
    images: int,
    strategy: tf.distribute.Strategy,
    static: bool = True,
) -> tf.distribute.DistributedDataset:
    """Endless batches of noise, in the form that a resolved run's step takes.

    `images` is their number per replica; `static`, whether the graph knows it.
    """
    rng = np.random.default_rng(0)
    side, count = run.views.side, run.views.views
    channels = run.data.channels
    shape = [images, count, side, side, channels]
    if run.views.wire_dtype == "uint8":
        views = rng.integers(0, 256, shape, np.uint8)
    else:
        dtype = tf.as_dtype(run.views.wire_dtype).as_numpy_dtype
        views = rng.random(shape, np.float32).astype(dtype)
    seeds = rng.integers(0, 2**31 - 1, [images, count, 2]).astype(np.int32)
    rows = np.arange(images, dtype=np.int32)
    on_device = run.views.augment_on == "device" or run.views.mixed
    inputs = (views, seeds) if on_device else views
    labels = () if num_classes is None else (rows % num_classes,)

    def dataset(_: tf.distribute.InputContext) -> tf.data.Dataset:
        examples = tf.data.Dataset.from_tensors((inputs, *labels))
        if not static:
            examples = examples.unbatch().batch(images)
        return examples.cache().repeat()

    return strategy.distribute_datasets_from_function(dataset)
