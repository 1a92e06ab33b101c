"""Mean and standard deviation of a dataset's channels."""

import numpy as np
import tensorflow as tf

from tf_contrastive.base import terminal
from tf_contrastive.config.data import STANDARDIZE_EXAMPLES
from tf_contrastive.config.dataset import ChannelStatistics, facts
from tf_contrastive.datasets.source import Source


def channel_statistics(source: Source) -> ChannelStatistics:
    """Returns a dataset's known statistics, or computes them.

    They are computed on at most STANDARDIZE_EXAMPLES examples, evenly spread
    over the split; every image has the same weight.
    """
    info = source.info
    is_float = info.float_channels is not None
    if (known := facts(info.name).statistics) and not is_float:
        return known
    count = min(info.num_examples, STANDARDIZE_EXAMPLES)
    rows = np.linspace(0, info.num_examples - 1, count).round().astype(int)
    terminal.info(
        f"standardize: colours of {count:,} of {info.num_examples:,} images"
    )

    @tf.autograph.experimental.do_not_convert
    def moments(example: dict[str, tf.Tensor]) -> tf.Tensor:
        pixels = tf.cast(example["image"], tf.float64)
        pixels = pixels if is_float else pixels / 255
        powers = (pixels, pixels**2)
        return tf.stack([tf.reduce_mean(x, [0, 1]) for x in powers])

    per_image = source.select(rows).examples().map(moments, tf.data.AUTOTUNE)
    batches = per_image.batch(256).as_numpy_iterator()
    mean, square = np.concatenate(list(batches)).mean(axis=0)
    # A constant channel is left to the first normalization layer.
    least = 1 / (65535 if is_float else 255)
    std = np.maximum(np.sqrt(np.maximum(square - mean**2, 0)), least)
    return ChannelStatistics(tuple(mean.tolist()), tuple(std.tolist()))
