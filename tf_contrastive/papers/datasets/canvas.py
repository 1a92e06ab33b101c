"""MultiDigits: several digits on a black canvas, and all of their labels."""

import zlib

import numpy as np
import tensorflow as tf

from tf_contrastive.config.dataset_names import MultiDigits
from tf_contrastive.datasets import splits
from tf_contrastive.datasets.derived import Opener
from tf_contrastive.datasets.source import Info, Record, Source, in_memory
from tf_contrastive.papers.datasets import mnist


def multidigits(
    name: str, options: MultiDigits, split: str, open_inner: Opener
) -> Source:
    """Digits on a black canvas, where one hides another the brighter pixel.

    A record is what it shows: which digits, and where.
    """
    base = splits.parse(split)[0]
    digits = mnist.read(base, open_inner)
    sides, canvas = options.sides, options.canvas
    which, where = _arranged(options, base, len(digits.labels))
    labels = digits.labels[which]  # [n, c]
    several = len(sides) > 1
    labels = _multi_hot(labels) if several else labels[:, 0]
    start, stop = splits.bounds(split, len(labels))
    rows = {"digits": which, "places": where, "label": labels}
    rows = {key: row[start:stop] for key, row in rows.items()}

    @tf.autograph.experimental.do_not_convert
    def decode(record: Record) -> Record:
        image = tf.zeros([canvas, canvas], tf.uint8)
        for place, side in enumerate(sides):
            digit = tf.gather(digits.images, record["digits"][place])
            top, left = tf.unstack(record["places"][place])
            placed = mnist.placed(
                mnist.scaled(digit, side), top, left, canvas, canvas
            )
            image = tf.maximum(image, placed)
        image = tf.repeat(image[..., tf.newaxis], 3, axis=2)
        image.set_shape([canvas, canvas, 3])
        return {"image": image, "label": record["label"]}

    info = Info(
        name + digits.note,
        split,
        stop - start,
        len(mnist.NAMES),
        (canvas, canvas, 3),
        mnist.NAMES,
        multi_label=several,
    )
    return in_memory(rows, decode, info)


def _arranged(
    options: MultiDigits, split: str, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws the digits of all images of a split, and their places.

    Returns:
      (which digits, int32 [n, c], the first of image i being digit i; their
      upper left corners, int32 [n, c, 2]).
    """
    # RandomState's stream is frozen for good; Generator's is not.
    of_split = zlib.crc32(split.encode())
    random = np.random.RandomState([options.seed % 2**32, of_split])
    sides = np.array(options.sides)
    which = random.randint(0, count, [count, len(sides)])
    which[:, 0] = np.arange(count)
    if options.placement == "grid":
        across = options.canvas // options.digit
        # The places of the smallest numbers: cells without repetition.
        numbers = random.random_sample([count, options.cells])
        cells = np.argsort(numbers, axis=1)[:, : len(sides)]
        where = np.stack([cells // across, cells % across], 2) * options.digit
    else:
        free = options.canvas - sides + 1
        where = random.randint(0, free[:, np.newaxis], [count, len(sides), 2])
    return which.astype(np.int32), where.astype(np.int32)


def _multi_hot(labels: np.ndarray) -> np.ndarray:
    """Marks the classes of each row of int [n, c]: int64 [n, 10]."""
    marks = np.zeros([len(labels), len(mnist.NAMES)], np.int64)
    np.put_along_axis(marks, labels, 1, axis=1)
    return marks
