"""Random numbers for a batch of images, each from its own seed.

Threefry-2x32 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
as 1, 2, 3", SC 2011) is a function of a key and a counter, with no state. The
key is the seed of a view, the counter is (stream, position): the numbers of a
view depend only on its seed, and an additional operation, with a stream of its
own, does not change others'. TensorFlow's generators take a seed per call.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

# These numbers define the views of a seed: never change or reuse one.
STREAMS = {
    "views": 0,
    "crop": 1,
    "flip": 2,
    "jitter": 3,
    "gray": 4,
    "blur": 5,
    "autoaugment": 6,
    "randaugment": 7,
    "warp": 8,
    "jitter_order": 9,
    "rotate": 10,
    "cutout": 11,
    "noise": 12,
    "motion_blur": 13,
    "mixing": 14,
    "random_apply": 15,
    "second_crop": 16,
    "own": 17,
}

# Stream -> uniform numbers float32 [m, k].
Uniforms = Mapping[str, tf.Tensor]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def _rotate_left(x: tf.Tensor, bits: int) -> tf.Tensor:
    left = tf.bitwise.left_shift(x, tf.constant(bits, tf.uint32))
    right = tf.bitwise.right_shift(x, tf.constant(32 - bits, tf.uint32))
    return tf.bitwise.bitwise_or(left, right)


def threefry(
    key: tuple[tf.Tensor, tf.Tensor], counter: tuple[tf.Tensor, tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Threefry-2x32 with 20 rounds: two uint32 tensors of random bits."""
    parity = tf.bitwise.bitwise_xor(
        tf.bitwise.bitwise_xor(key[0], key[1]), tf.constant(_PARITY, tf.uint32)
    )
    keys = (*key, parity)
    x0, x1 = counter[0] + key[0], counter[1] + key[1]
    for i in range(5):
        for bits in _ROTATIONS[i % 2]:
            x0 = x0 + x1
            x1 = tf.bitwise.bitwise_xor(x0, _rotate_left(x1, bits))
        x0 = x0 + keys[(i + 1) % 3]
        injected = keys[(i + 2) % 3] + tf.constant(i + 1, tf.uint32)
        x1 = x1 + injected
    return x0, x1


# A function of its own, traced once: tracing hundreds of small operations at
# each call would take a quarter of the time to a pipeline's first batch.
@tf.function(
    input_signature=[
        tf.TensorSpec([None, 2], tf.int32),
        tf.TensorSpec([2, None], tf.uint32),
    ],
    autograph=False,
)
def _threefry(seeds: tf.Tensor, counters: tf.Tensor) -> tf.Tensor:
    key = tf.bitcast(seeds, tf.uint32)
    stream, position = tf.unstack(counters)
    words = threefry((key[:, :1], key[:, 1:]), (stream, position))
    return tf.stack(words, axis=-1)


def _words(seeds: tf.Tensor, counters: np.ndarray) -> tf.Tensor:
    """Words uint32 [n, k, 2] for every seed and counter (uint32 [2, k])."""
    seeds = tf.convert_to_tensor(seeds, tf.int32)
    words = _threefry(seeds, tf.constant(counters, tf.uint32))
    return tf.ensure_shape(words, [seeds.shape[0], counters.shape[1], 2])


def _counters(stream: str, blocks: int) -> np.ndarray:
    """Counters uint32 [2, blocks] of one stream."""
    position = np.arange(blocks, dtype=np.uint32)
    return np.stack([np.full_like(position, STREAMS[stream]), position])


def uniform(
    seeds: tf.Tensor, counts: Mapping[str, int]
) -> dict[str, tf.Tensor]:
    """Uniform numbers of several streams, in one pass over the generator.

    For seeds int32 [n, 2] and each of `STREAMS` in `counts`, float32 [n, count]
    in [0, 1), multiples of 2**-24.
    """
    if not counts:
        return {}
    blocks = [(count + 1) // 2 for count in counts.values()]
    counters = map(_counters, counts, blocks)
    words = _words(seeds, np.concatenate(list(counters), axis=1))
    words = tf.reshape(words, [-1, 2 * sum(blocks)])
    # A float32 holds 24 bits exactly; int32, since CPU and XLA both convert it.
    bits = tf.bitwise.right_shift(words, tf.constant(8, tf.uint32))
    unit = tf.cast(tf.bitcast(bits, tf.int32), tf.float32) * 2**-24
    parts = tf.split(unit, [2 * size for size in blocks], axis=1)
    return {
        stream: part[:, :count]
        for part, (stream, count) in zip(parts, counts.items(), strict=True)
    }


def lerp(
    uniforms: tf.Tensor, low: float | np.ndarray, high: float | np.ndarray
) -> tf.Tensor:
    """Maps uniform numbers from [0, 1) to [low, high)."""
    return low + (high - low) * uniforms


def fold(seeds: tf.Tensor, count: int, first: int = 0) -> tf.Tensor:
    """Derives the seeds of V = `count` views, int32 [n, V, 2], from [n, 2].

    They are those of views `first`, `first` + 1, ..., for any V.
    """
    counters = _counters("views", first + count)[:, first:]
    return tf.bitcast(_words(seeds, counters), tf.int32)
