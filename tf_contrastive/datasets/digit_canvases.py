"""MultiDigits and DigitOnImage: MNIST's digits on canvases and on images.

Chen, Luo and Li 2021, sections 3.1 and 4.1.
"""

import dataclasses
import itertools
import zlib

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading
from tf_contrastive.config.dataset import DigitOnImage, MultiDigits
from tf_contrastive.datasets import split_spec
from tf_contrastive.datasets.random_bits import FOR_DIGITS, hashed
from tf_contrastive.datasets.source import (
    Access,
    Info,
    Record,
    Source,
    in_memory,
)

_SIDE = 28
_NAMES = tuple(map(str, range(10)))
# Offsets of the nine digits on an image, as fractions of its sides; the sides
# of an image and of a digit in the paper; and the smallest legible digit.
_OFFSETS = (0.15, 0.45, 0.75)
_PAPER_SIDES = (224, 28)
_LEGIBLE = 8


def _read(
    split: str, access: Access, first: int = 0
) -> tuple[tf.Tensor, np.ndarray]:
    """Reads digits of MNIST; `first` is their number, in TFDS's order; 0: all.

    Returns:
      (images uint8 [n, 28, 28], white on black; labels int64 [n]).

    Raises:
      UserError: if MNIST is not prepared, or has fewer.
    """
    # The options of reading are of the user's images.
    source = access.open("mnist", split, reading=Reading())
    count = source.info.num_examples
    if first > count:
        raise errors.UserError(
            f"unique={first} is more than the {count} digits of {split}: set"
            f" unique={count} or less"
        )
    if first:
        source = source.select(np.arange(first))
    batches = list(source.examples().batch(1024).as_numpy_iterator())
    images = np.concatenate([batch["image"][..., 0] for batch in batches])
    labels = np.concatenate([batch["label"] for batch in batches])
    # On the host, see `in_memory`.
    with tf.device("CPU:0"):
        return tf.convert_to_tensor(images), labels


def _resized(digit: tf.Tensor, side: int | tf.Tensor) -> tf.Tensor:
    """Resizes uint8 [h, w] to [side, side]: bilinear, antialiased."""
    if isinstance(side, int) and digit.shape == [side, side]:
        return digit
    pixels = tf.image.resize(
        digit[..., tf.newaxis], [side, side], antialias=True
    )
    return tf.saturate_cast(tf.round(pixels[..., 0]), tf.uint8)


def _padded(
    digit: tf.Tensor, corner: tf.Tensor, shape: tf.Tensor | tuple[int, int]
) -> tf.Tensor:
    """Puts uint8 [h, w] at a corner, int32 [2], of a black canvas `shape`."""
    after = shape - corner - tf.shape(digit)
    return tf.pad(digit, tf.stack([corner, after], axis=1))


# ---- MultiDigits -------------------------------------------------------------


def multidigits(
    name: str, options: MultiDigits, split: str, access: Access
) -> Source:
    """Digits on a black canvas; where they overlap, the brighter pixel.

    A record holds which digits it shows, and where.
    """
    base = split_spec.parse(split)[0]
    digits, classes = _read(base, access)
    sides, canvas = options.sides, options.canvas
    which, where = _arrange(options, base, len(classes))
    labels = classes[which]  # [n, c]
    multi_label = len(sides) > 1
    if multi_label:
        multi_hot = np.zeros([len(labels), len(_NAMES)], np.int64)
        np.put_along_axis(multi_hot, labels, 1, axis=1)
        labels = multi_hot
    else:
        labels = labels[:, 0]
    start, stop = split_spec.bounds(split, len(labels))
    rows = {"digits": which, "places": where, "label": labels}
    rows = {key: row[start:stop] for key, row in rows.items()}

    @tf.autograph.experimental.do_not_convert
    def decode(record: Record) -> Record:
        image = tf.zeros([canvas, canvas], tf.uint8)
        for place, side in enumerate(sides):
            digit = tf.gather(digits, record["digits"][place])
            corner = record["places"][place]
            layer = _padded(_resized(digit, side), corner, (canvas, canvas))
            image = tf.maximum(image, layer)
        image = tf.repeat(image[..., tf.newaxis], 3, axis=2)
        image.set_shape([canvas, canvas, 3])
        return {"image": image, "label": record["label"]}

    facts = len(_NAMES), (canvas, canvas, 3), _NAMES
    info = Info(name, split, stop - start, *facts, multi_label=multi_label)
    source = in_memory(rows, decode, info)
    digests = split_spec.numbered(f"{options} {base}", np.arange(start, stop))
    return dataclasses.replace(source, digests=digests)


def _arrange(
    options: MultiDigits, split: str, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws digits, int32 [n, c], and their upper left corners, [n, c, 2].

    The first digit of image i is digit i.
    """
    # RandomState's stream is stable over versions of NumPy, Generator's is not.
    key = [options.seed % 2**32, zlib.crc32(split.encode())]
    random = np.random.RandomState(key)
    sides = np.array(options.sides)
    which = random.randint(0, count, [count, len(sides)])
    which[:, 0] = np.arange(count)
    if options.placement == "grid":
        across = options.canvas // options.digit
        # Cells without repetition: those of the smallest random numbers.
        numbers = random.random_sample([count, across**2])
        cells = np.argsort(numbers, axis=1)[:, : len(sides)]
        where = np.stack([cells // across, cells % across], 2) * options.digit
    else:
        free = options.canvas - sides + 1
        where = random.randint(0, free[:, np.newaxis], [count, len(sides), 2])
    return which.astype(np.int32), where.astype(np.int32)


# ---- DigitOnImage ------------------------------------------------------------


def digit_on_image(
    name: str, options: DigitOnImage, split: str, access: Access
) -> Source:
    """Images of another dataset with a digit at nine places."""
    inner = access.open(options.of, split)
    decode_inner = inner.decode  # Alone, as in `random_bits`.
    shape = inner.info.image_shape
    if shape:
        shorter = min(shape[:2])
        largest = shorter - int(shorter * _OFFSETS[-1])
        if options.digit > largest:
            raise errors.UserError(
                f"dataset {name}: digits of {options.digit} pixels do not fit"
                f" into images of {shape[0]}x{shape[1]}: set digit={largest} or"
                " less"
            )

    if split_spec.base(split) == "train":
        digits, classes = _read("train", access, options.unique)
    else:
        digits, classes = _read("test", access)

    def which(record: Record) -> tf.Tensor:
        return hashed(record, len(classes), options.seed, FOR_DIGITS)

    @tf.autograph.experimental.do_not_convert
    def decode(record: Record) -> Record:
        record.pop("halvings", None)  # Digits are drawn on the whole image.
        example = decode_inner(record)
        image = tf.ensure_shape(example["image"], shape or [None, None, 3])
        digit = tf.gather(digits, which(record))
        layer = nine_times(digit, tf.shape(image), options.digit)
        layer = layer[..., tf.newaxis]
        blended = image + tf.minimum(layer, 255 - image)  # The clipped sum.
        return example | {"image": tf.ensure_shape(blended, image.shape)}

    source = dataclasses.replace(inner, decode=decode, decoded=False)
    # `opening.source` refuses options of reading that ask for other images.
    source = source.described(name=name, float_channels=None)
    if options.label == "image":
        return source
    info = source.described(
        num_classes=len(_NAMES), label_names=_NAMES, multi_label=False
    ).info
    with tf.device("CPU:0"):
        labels = tf.convert_to_tensor(classes)
    return source.relabelled(
        lambda record: tf.gather(labels, which(record)), info
    )


def nine_times(digit: tf.Tensor, shape: tf.Tensor, side: int) -> tf.Tensor:
    """Repeats uint8 [28, 28] at nine places of a black canvas, uint8 [h, w].

    `side` is a digit's in pixels, limited to the available space; 0: an eighth
    of the shorter side, as in the paper, but at least 8 pixels.
    """

    def offset(side: tf.Tensor, fraction: float) -> tf.Tensor:
        return tf.cast(tf.cast(side, tf.float64) * fraction, tf.int32)

    height, width = shape[0], shape[1]
    shorter = tf.minimum(height, width)
    size = tf.constant(side)
    if not side:
        image_side, digit_side = _PAPER_SIDES
        size = tf.cast(tf.round(shorter * digit_side / image_side), tf.int32)
        size = tf.maximum(size, _LEGIBLE)
    largest = shorter - offset(shorter, _OFFSETS[-1])
    digit = _resized(digit, tf.maximum(tf.minimum(size, largest), 1))
    layer = tf.zeros(shape[:2], tf.uint8)
    for y, x in itertools.product(_OFFSETS, repeat=2):
        corner = tf.stack([offset(height, y), offset(width, x)])
        layer = tf.maximum(layer, _padded(digit, corner, shape[:2]))
    return layer
