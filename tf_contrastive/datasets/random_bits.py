"""RandBit and KBits: the bits of a random integer as channels.

Chen, Luo and Li 2021, section 4.1. Random choices depend on the seed in the
name (`config.dataset`) and on the index or the contents of an image: they are
equal in every view and slice.
"""

import dataclasses
import zlib

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.dataset import KBits, RandBit
from tf_contrastive.datasets import split_spec
from tf_contrastive.datasets.source import (
    Access,
    Info,
    Record,
    Source,
    in_memory,
)

# Purposes of `hashed`.
FOR_DIGITS, FOR_BITS = 1, 2


def hashed(record: Record, below: int, seed: int, purpose: int) -> tf.Tensor:
    """An integer drawn by the contents of a record, int64 in [0, below).

    By contents rather than by position, so that an image has the same one in
    any slice, and its copies too. Two purposes share nothing.
    """
    if "path" in record:
        parts = [tf.io.read_file(record["path"])]
    else:
        keys = sorted(key for key in record if key != "label")
        parts = [tf.io.serialize_tensor(record[key]) for key in keys]
    return tf.strings.to_hash_bucket_strong(
        tf.strings.join(parts), below, key=[seed % 2**62, purpose]
    )


def _bits(number: tf.Tensor, count: int) -> tf.Tensor:
    """Returns bits of int64 [], the lowest first: float32 [count]."""
    shifted = tf.bitwise.right_shift(number, tf.range(count, dtype=tf.int64))
    return tf.cast(shifted & tf.ones([], tf.int64), tf.float32)


def randbit(name: str, options: RandBit, split: str, access: Access) -> Source:
    """Images of another dataset with the bits of a random integer."""
    inner = access.open(options.of, split)
    # Alone, since Beam pickles `decode`, and a source holds datasets.
    decode_inner = inner.decode

    @tf.autograph.experimental.do_not_convert
    def decode(record: Record) -> Record:
        number = hashed(record, 1 << options.bits, options.seed, FOR_BITS)
        example = decode_inner(record)
        bits = _bits(number, options.bits)
        if "extra" not in example:
            return example | {"extra": bits}
        # The inner dataset's channels may differ between pixels.
        extra = tf.cast(example["extra"], tf.float32)
        shape = tf.concat([tf.shape(extra)[:-1], tf.shape(bits)], 0)
        bits = tf.broadcast_to(bits, shape)
        return example | {"extra": tf.concat([extra, bits], -1)}

    channels = inner.info.extra_channels + options.bits
    source = inner.described(name=name, extra_channels=channels)
    return dataclasses.replace(source, decode=decode, decoded=False)


def kbits(name: str, options: KBits, split: str, access: Access) -> Source:
    """Black images with the bits of a random integer.

    Views have three colours, so that black ones precede the bits; a network's
    weights for them are multiplied by zeros.
    """
    del access
    base = split_spec.parse(split)[0]
    if base not in ("train", "test"):
        raise errors.unknown("split of kbits", base, ("train", "test"))
    key = [options.seed % 2**32, zlib.crc32(base.encode())]
    numbers = np.random.RandomState(key).randint(
        0, 1 << options.bits, options.examples, np.int64
    )
    start, stop = split_spec.bounds(split, options.examples)
    shape = (options.side, options.side, 3)

    @tf.autograph.experimental.do_not_convert
    def decode(record: Record) -> Record:
        bits = _bits(record["number"], options.bits)
        return {"image": tf.zeros(shape, tf.uint8), "extra": bits}

    facts = stop - start, None, shape
    info = Info(name, split, *facts, extra_channels=options.bits)
    source = in_memory({"number": numbers[start:stop]}, decode, info)
    digests = split_spec.numbered(f"{options} {base}", np.arange(start, stop))
    return dataclasses.replace(source, digests=digests)
