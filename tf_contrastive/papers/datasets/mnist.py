"""MNIST's digits in memory, resized and put on canvases."""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import errors, terminal
from tf_contrastive.config.dataset_names import EMBEDDED_NOTE
from tf_contrastive.datasets import arrays
from tf_contrastive.datasets.derived import Opener

# The side of a digit, in pixels.
SIDE = 28
# Names of the classes.
NAMES = tuple(map(str, range(10)))


class Digits(NamedTuple):
    """Digits in memory.

    Attributes:
      images: uint8 [n, 28, 28], white on black.
      labels: int64 [n].
      note: what to add to the name of what is made of them.
    """

    images: tf.Tensor
    labels: np.ndarray
    note: str = ""


@functools.cache
def _say_embedded(reason: str) -> None:
    """Says once that there is no MNIST."""
    terminal.warning(
        "the 1,797 embedded digits, enlarged to 28x28, take the place of MNIST"
        f" ({reason})"
    )


def read(split: str, open_inner: Opener, first: int = 0) -> Digits:
    """Reads digits of MNIST, or the embedded ones where it is not prepared.

    Args:
      split: `train` or `test`.
      open_inner: opens MNIST.
      first: how many, from the beginning, in the order of TFDS; 0: all.

    Raises:
      UserError: if there is no such split, or there are not so many.
    """
    try:
        opened, note = open_inner("mnist", split), ""
    except errors.AbsentDataError as error:
        _say_embedded(str(error))
        opened, note = arrays.digits(split), EMBEDDED_NOTE
    there = opened.info.num_examples
    if first > there:
        raise errors.UserError(
            f"unique={first} is more than the {there} digits of {split}: give"
            f" unique={there} or less"
        )
    if first:
        opened = opened.select(np.arange(first))

    @tf.autograph.experimental.do_not_convert
    def grey(record):
        example = opened.decode(record)
        image = scaled(example["image"][..., 0], SIDE)
        return image, example["label"]

    rows = opened.records.map(grey, tf.data.AUTOTUNE, deterministic=True)
    images, labels = zip(*rows.batch(1024).as_numpy_iterator(), strict=True)
    # On the host, see `in_memory`.
    with tf.device("CPU:0"):
        images = tf.convert_to_tensor(np.concatenate(images))
    return Digits(images, np.concatenate(labels), note)


def scaled(digit: tf.Tensor, side: int | tf.Tensor) -> tf.Tensor:
    """Resizes uint8 [h, w] to [side, side]: bilinear, antialiased."""
    if isinstance(side, int) and digit.shape == [side, side]:
        return digit
    pixels = tf.image.resize(
        digit[..., tf.newaxis], [side, side], antialias=True
    )
    return tf.saturate_cast(tf.round(pixels[..., 0]), tf.uint8)


def placed(
    digit: tf.Tensor, top: tf.Tensor, left: tf.Tensor, height, width
) -> tf.Tensor:
    """Puts uint8 [h, w] on a black canvas [height, width]."""
    side = tf.shape(digit)
    below, right = height - top - side[0], width - left - side[1]
    return tf.pad(digit, [[top, below], [left, right]])
