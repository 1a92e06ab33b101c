"""Datasets that probe what an encoder learns, and parts of others.

Made of other datasets, or of MNIST's digits, as the options in a name say
(`config.PROBING_DATASETS`): Chen, Luo and Li 2021, "Intriguing properties of
contrastive losses", 3.1, 4.1 and C; class subsets; shares of the labels.

What is drawn for an image is drawn by the seed in the name and either the
image's place in its split or its contents, never by an epoch: the same in
every view, in every slice, and on any machine.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import config, terminal
from tf_contrastive.datasets import arrays, classes, splits
from tf_contrastive.datasets.source import Info, Record, Source, in_memory

# (name, split) -> its source: how a dataset opens the one that it is made of.
Opener = Callable[[str, str], Source]

_TEN = tuple(map(str, range(10)))
# DigitOnImage: where digits begin, in shares of a side; the sides of its image
# and digits in the paper; and the smallest digit that can be told, in pixels.
_PLACES = (0.15, 0.45, 0.75)
_PAPER_SIDES = (224, 28)
_LEGIBLE = 8
# What hashes are for, so that those of one seed have nothing in common.
_FOR_DIGITS, _FOR_BITS = 1, 2
# Shares of imagenet2012 that are datasets of their own.
_IMAGENET_SUBSETS = {0.01: "1pct", 0.1: "10pct"}


def source(name: str, split: str, open_inner: Opener) -> Source:
    """Opens a dataset of `PROBING`.

    Args:
      name: such as `multidigits:count=4` or `randbit:bits=5,of=cifar10`.
      split: see `datasets.source`.
      open_inner: opens the datasets that it is made of.

    Raises:
      UserError: for a name, or a split, that is not understood, or if what it
        is made of is not there.
    """
    options = config.read_probing(name)
    return PROBING[name.partition(":")[0]](name, options, split, open_inner)


# ---- MNIST -------------------------------------------------------------------


class _Digits(NamedTuple):
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
    terminal.warn(
        "the 1,797 embedded digits, enlarged to 28x28, take the place of MNIST"
        f" ({reason})"
    )


def _digits(split: str, open_inner: Opener, first: int = 0) -> _Digits:
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
    except config.AbsentDataError as error:
        _say_embedded(str(error))
        opened, note = arrays.digits(split), config.EMBEDDED_NOTE
    there = opened.info.num_examples
    if first > there:
        raise config.UserError(
            f"unique={first} is more than the {there} digits of {split}: give"
            f" unique={there} or less"
        )
    if first:
        opened = opened.select(np.arange(first))

    @tf.autograph.experimental.do_not_convert
    def grey(record):
        example = opened.decode(record)
        image = _scaled(example["image"][..., 0], _PAPER_SIDES[1])
        return image, example["label"]

    rows = opened.records.map(grey, tf.data.AUTOTUNE, deterministic=True)
    images, labels = zip(*rows.batch(1024).as_numpy_iterator(), strict=True)
    # On the host, see `in_memory`.
    with tf.device("CPU:0"):
        images = tf.convert_to_tensor(np.concatenate(images))
    return _Digits(images, np.concatenate(labels), note)


def _scaled(digit: tf.Tensor, side: int | tf.Tensor) -> tf.Tensor:
    """Resizes uint8 [h, w] to [side, side]: bilinear, antialiased."""
    if isinstance(side, int) and digit.shape == [side, side]:
        return digit
    pixels = tf.image.resize(
        digit[..., tf.newaxis], [side, side], antialias=True
    )
    return tf.saturate_cast(tf.round(pixels[..., 0]), tf.uint8)


def _placed(
    digit: tf.Tensor, top: tf.Tensor, left: tf.Tensor, height, width
) -> tf.Tensor:
    """Puts uint8 [h, w] on a black canvas [height, width]."""
    side = tf.shape(digit)
    below, right = height - top - side[0], width - left - side[1]
    return tf.pad(digit, [[top, below], [left, right]])


# ---- Digits on a canvas ------------------------------------------------------


def _multidigits(
    name: str, options: config.MultiDigits, split: str, open_inner: Opener
) -> Source:
    """Digits on a black canvas, where one hides another the brighter pixel.

    A record is what it shows: which digits, and where.
    """
    base = splits.parse(split)[0]
    digits = _digits(base, open_inner)
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
            placed = _placed(_scaled(digit, side), top, left, canvas, canvas)
            image = tf.maximum(image, placed)
        image = tf.repeat(image[..., tf.newaxis], 3, axis=2)
        image.set_shape([canvas, canvas, 3])
        return {"image": image, "label": record["label"]}

    info = Info(
        name + digits.note,
        split,
        stop - start,
        len(_TEN),
        (canvas, canvas, 3),
        _TEN,
        several_labels=several,
    )
    return in_memory(rows, decode, info)


def _arranged(
    options: config.MultiDigits, split: str, count: int
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
    marks = np.zeros([len(labels), len(_TEN)], np.int64)
    np.put_along_axis(marks, labels, 1, axis=1)
    return marks


# ---- Something beside the images of another dataset --------------------------


def _hashed(record: Record, below: int, seed: int, purpose: int) -> tf.Tensor:
    """Draws an integer by the contents of a record, int64 in [0, below).

    By contents rather than by place (as the paper's code has it): an image has
    the same one in any slice, and its copies have it too.
    """
    if "path" in record:
        parts = [tf.io.read_file(record["path"])]
    else:
        keys = sorted(key for key in record if key != "label")
        parts = [tf.io.serialize_tensor(record[key]) for key in keys]
    return tf.strings.to_hash_bucket_strong(
        tf.strings.join(parts), below, key=[seed % 2**62, purpose]
    )


def _note_of(inner: Source) -> str:
    """What the name of a dataset says beyond what was asked for."""
    note = config.EMBEDDED_NOTE
    return note if inner.info.name.endswith(note) else ""


def _digit_on_image(
    name: str, options: config.DigitOnImage, split: str, open_inner: Opener
) -> Source:
    """Images with a digit at nine places."""
    inner = open_inner(options.of, split)
    base = splits.parse(split)[0]
    if base == "train":
        digits = _digits("train", open_inner, options.unique)
    else:
        digits = _digits("test", open_inner)
    shape = inner.info.image_shape
    if shape and options.digit > (most := _largest_digit(min(shape[:2]))):
        raise config.UserError(
            f"dataset {name}: digits of {options.digit} pixels do not fit into"
            f" images of {shape[0]}x{shape[1]}: give digit={most} or less"
        )

    def which(record: Record) -> tf.Tensor:
        count = len(digits.labels)
        return _hashed(record, count, options.seed, _FOR_DIGITS)

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
        inner.info, name=name + (digits.note or _note_of(inner))
    )
    made = dataclasses.replace(inner, decode=decode, info=info, decoded=False)
    if options.label == "image":
        return made
    info = dataclasses.replace(
        info,
        num_classes=len(_TEN),
        label_names=_TEN,
        several_labels=False,
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
    digit = _scaled(digit, side)
    strip = tf.zeros([height, side], tf.uint8)
    for share in _PLACES:
        placed = _placed(digit, _at(height, share), 0, height, side)
        strip = tf.maximum(strip, placed)
    layer = tf.zeros([height, width], tf.uint8)
    for share in _PLACES:
        placed = _placed(strip, 0, _at(width, share), height, width)
        layer = tf.maximum(layer, placed)
    return layer


def _randbit(
    name: str, options: config.RandBit, split: str, open_inner: Opener
) -> Source:
    """Images with the bits of a random integer beside them."""
    inner = open_inner(options.of, split)

    @tf.autograph.experimental.do_not_convert
    def decode(record: Record) -> Record:
        number = _hashed(record, 1 << options.bits, options.seed, _FOR_BITS)
        example = inner.decode(record)
        bits = tf.cast(_bits(number, options.bits), tf.float32)
        if "extra" not in example:
            return example | {"extra": bits}
        # What the inner dataset has may differ from pixel to pixel.
        extra = tf.cast(example["extra"], tf.float32)
        shape = tf.concat([tf.shape(extra)[:-1], tf.shape(bits)], 0)
        bits = tf.broadcast_to(bits, shape)
        return example | {"extra": tf.concat([extra, bits], -1)}

    info = dataclasses.replace(
        inner.info,
        name=name + _note_of(inner),
        extra_channels=inner.info.extra_channels + options.bits,
    )
    return dataclasses.replace(inner, decode=decode, info=info, decoded=False)


def _bits(numbers: Any, count: int) -> tf.Tensor:
    """The lowest bits of int64 [...], the lowest first: int64 [..., count]."""
    shifts = tf.range(count, dtype=tf.int64)
    shifted = tf.bitwise.right_shift(numbers[..., tf.newaxis], shifts)
    return shifted & tf.ones([], tf.int64)


def _kbits(
    name: str, options: config.KBits, split: str, open_inner: Opener
) -> Source:
    """Black images with the bits of a random integer beside them.

    Three black colours come before the bits, since views have three: what
    weights a network has for them meets nothing but zeros.
    """
    del open_inner
    base = splits.parse(split)[0]
    if base not in ("train", "test"):
        raise config.unknown("split of kbits", base, ("train", "test"))
    of_split = zlib.crc32(base.encode())
    random = np.random.RandomState([options.seed % 2**32, of_split])
    numbers = random.randint(0, 1 << options.bits, options.examples, np.int64)
    start, stop = splits.bounds(split, options.examples)
    shape = (options.side, options.side, 3)

    @tf.autograph.experimental.do_not_convert
    def decode(record: Record) -> Record:
        bits = tf.cast(_bits(record["number"], options.bits), tf.float32)
        return {"image": tf.zeros(shape, tf.uint8), "extra": bits}

    info = Info(
        name,
        split,
        stop - start,
        image_shape=shape,
        extra_channels=options.bits,
    )
    return in_memory({"number": numbers[start:stop]}, decode, info)


# ---- Parts of other datasets -------------------------------------------------


def _sliced(source: Source, rows: np.ndarray, split: str, info: Info) -> Source:
    """The examples at `rows` of a whole split, as far as `split` has them."""
    start, stop = splits.bounds(split, len(rows))
    chosen = source.select(rows[start:stop])
    info = dataclasses.replace(info, split=split, num_examples=stop - start)
    return dataclasses.replace(chosen, info=info)


def _of_classes(
    name: str, of: str, names: Sequence[str], split: str, open_inner: Opener
) -> Source:
    """Examples of some classes, whose labels are their places in `names`."""
    inner = open_inner(of, splits.parse(split)[0])
    labels = inner.labels()
    known = inner.info.label_names
    if absent := [each for each in names if each not in known]:
        raise config.UserError(
            f"dataset {name}: {inner.info.name} has no class {absent[0]!r}"
            f" among its {len(known)} names, and {len(absent) - 1} others are"
            " not there either: prepare it by TensorFlow Datasets"
        )
    table = np.full([inner.info.num_classes], -1, np.int64)
    table[[known.index(each) for each in names]] = np.arange(len(names))
    info = dataclasses.replace(
        inner.info,
        name=name,
        num_classes=len(names),
        label_names=tuple(names),
    )
    made = _sliced(inner, np.flatnonzero(table[labels] >= 0), split, info)
    with tf.device("CPU:0"):
        table = tf.convert_to_tensor(table)
    return made.relabelled(
        lambda record: tf.gather(table, record["label"]), made.info
    )


def _cifar2(
    name: str, options: config.Cifar2, split: str, open_inner: Opener
) -> Source:
    """CIFAR-10's cats and dogs."""
    del options
    return _of_classes(name, "cifar10", classes.CIFAR2, split, open_inner)


def _imagenet100(
    name: str, options: config.ImageNet100, split: str, open_inner: Opener
) -> Source:
    """100 classes of ImageNet, whose labels are all read to find them."""
    del options
    wanted = classes.IMAGENET100
    return _of_classes(name, "imagenet2012", wanted, split, open_inner)


def _subset(
    name: str, options: config.Subset, split: str, open_inner: Opener
) -> Source:
    """Some examples of each class of train; any other split whole."""
    share = _IMAGENET_SUBSETS.get(options.fraction)
    if share and config.dataset_family(options.of) == "imagenet2012":
        published = f"imagenet2012_subset/{share}"
        try:
            made = open_inner(published, split)
        except config.AbsentDataError:
            pass
        else:
            info = dataclasses.replace(made.info, name=f"{name} ({published})")
            return dataclasses.replace(made, info=info)
    base = splits.parse(split)[0]
    if base != "train":
        made = open_inner(options.of, split)
        info = dataclasses.replace(made.info, name=name + _note_of(made))
        return dataclasses.replace(made, info=info)
    inner = open_inner(options.of, base)
    rows = splits.balanced_rows(inner.labels(), options.fraction, options.seed)
    info = dataclasses.replace(inner.info, name=name + _note_of(inner))
    return _sliced(inner, rows, split, info)


# Each takes (name, options, split, opener).
PROBING = {
    "multidigits": _multidigits,
    "digit_on_image": _digit_on_image,
    "randbit": _randbit,
    "kbits": _kbits,
    "subset": _subset,
    "cifar2": _cifar2,
    "imagenet100": _imagenet100,
}
