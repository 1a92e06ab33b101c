"""DigitOnImage: the images of another dataset with a digit over them."""

import dataclasses

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.dataset_names import DigitOnImage
from tf_contrastive.datasets import splits
from tf_contrastive.datasets.derived import FOR_DIGITS, Opener, hashed, note_of
from tf_contrastive.datasets.source import Record, Source
from tf_contrastive.papers.datasets import mnist

# Where digits begin, in shares of a side; the sides of an image and of a digit
# in the paper; and the smallest digit that can be told, in pixels.
_PLACES = (0.15, 0.45, 0.75)
_PAPER_SIDES = (224, 28)
_LEGIBLE = 8


def digit_on_image(
    name: str, options: DigitOnImage, split: str, open_inner: Opener
) -> Source:
    """Images with a digit at nine places."""
    inner = open_inner(options.of, split)
    base = splits.parse(split)[0]
    if base == "train":
        digits = mnist.read("train", open_inner, options.unique)
    else:
        digits = mnist.read("test", open_inner)
    shape = inner.info.image_shape
    if shape and options.digit > (most := _largest_digit(min(shape[:2]))):
        raise errors.UserError(
            f"dataset {name}: digits of {options.digit} pixels do not fit into"
            f" images of {shape[0]}x{shape[1]}: give digit={most} or less"
        )

    def which(record: Record) -> tf.Tensor:
        count = len(digits.labels)
        return hashed(record, count, options.seed, FOR_DIGITS)

    @tf.autograph.experimental.do_not_convert
    def decode(record: Record) -> Record:
        example = inner.decode(record)
        image = tf.ensure_shape(example["image"], shape or [None, None, 3])
        digit = tf.gather(digits.images, which(record))
        layer = _nine(digit, image, options.digit)[..., tf.newaxis]
        if options.blend == "max":
            image = tf.maximum(image, layer)
        else:
            # The sum of bytes, without going over.
            image += tf.minimum(layer, 255 - image)
        return example | {"image": image}

    info = dataclasses.replace(
        inner.info, name=name + (digits.note or note_of(inner))
    )
    made = dataclasses.replace(inner, decode=decode, info=info, decoded=False)
    if options.label == "image":
        return made
    info = dataclasses.replace(
        info,
        num_classes=len(mnist.NAMES),
        label_names=mnist.NAMES,
        multi_label=False,
    )
    with tf.device("CPU:0"):
        labels = tf.convert_to_tensor(digits.labels)
    return made.relabelled(
        lambda record: tf.gather(labels, which(record)), info
    )


def _largest_digit(side: int | tf.Tensor) -> int | tf.Tensor:
    """What there is room for after the last place, in pixels."""
    return side - _at(side, _PLACES[-1])


def _at(side: int | tf.Tensor, share: float) -> int | tf.Tensor:
    """The whole pixels of a share of a side."""
    if isinstance(side, int):
        return int(side * share)
    return tf.cast(tf.cast(side, tf.float64) * share, tf.int32)


def _nine(digit: tf.Tensor, image: tf.Tensor, side: int) -> tf.Tensor:
    """Repeats a digit at nine places of a black canvas.

    Args:
      digit: uint8 [28, 28].
      image: [h, w, 3], as large as the canvas.
      side: of a digit in pixels; 0: an eighth of the shorter side, as in the
        paper, but at least 8 pixels; in any case what there is room for.

    Returns:
      uint8 [h, w].
    """
    size = image.shape[:2]
    if size.is_fully_defined():
        height, width = size
        shorter = min(height, width)
        smaller, larger, rounded = min, max, round
    else:
        height, width = tf.unstack(tf.shape(image)[:2])
        shorter = tf.minimum(height, width)
        smaller, larger = tf.minimum, tf.maximum

        def rounded(x):
            return tf.cast(tf.round(x), tf.int32)

    if not side:
        whole, own = _PAPER_SIDES
        side = larger(rounded(shorter * own / whole), _LEGIBLE)
    side = larger(smaller(side, _largest_digit(shorter)), 1)
    digit = mnist.scaled(digit, side)
    strip = tf.zeros([height, side], tf.uint8)
    for share in _PLACES:
        placed = mnist.placed(digit, _at(height, share), 0, height, side)
        strip = tf.maximum(strip, placed)
    layer = tf.zeros([height, width], tf.uint8)
    for share in _PLACES:
        placed = mnist.placed(strip, 0, _at(width, share), height, width)
        layer = tf.maximum(layer, placed)
    return layer
