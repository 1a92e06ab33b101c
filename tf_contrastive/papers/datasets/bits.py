"""RandBit and KBits: the bits of a random integer beside images."""

import dataclasses
import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.dataset_names import KBits, RandBit
from tf_contrastive.datasets import splits
from tf_contrastive.datasets.derived import FOR_BITS, Opener, hashed, note_of
from tf_contrastive.datasets.source import Info, Record, Source, in_memory


def randbit(
    name: str, options: RandBit, split: str, open_inner: Opener
) -> Source:
    """Images with the bits of a random integer beside them."""
    inner = open_inner(options.of, split)

    @tf.autograph.experimental.do_not_convert
    def decode(record: Record) -> Record:
        number = hashed(record, 1 << options.bits, options.seed, FOR_BITS)
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
        name=name + note_of(inner),
        extra_channels=inner.info.extra_channels + options.bits,
    )
    return dataclasses.replace(inner, decode=decode, info=info, decoded=False)


def _bits(numbers: Any, count: int) -> tf.Tensor:
    """The lowest bits of int64 [...], the lowest first: int64 [..., count]."""
    shifts = tf.range(count, dtype=tf.int64)
    shifted = tf.bitwise.right_shift(numbers[..., tf.newaxis], shifts)
    return shifted & tf.ones([], tf.int64)


def kbits(name: str, options: KBits, split: str, open_inner: Opener) -> Source:
    """Black images with the bits of a random integer beside them.

    Three black colours come before the bits, since views have three: what
    weights a network has for them meets nothing but zeros.
    """
    del open_inner
    base = splits.parse(split)[0]
    if base not in ("train", "test"):
        raise errors.unknown("split of kbits", base, ("train", "test"))
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
