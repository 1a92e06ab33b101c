"""Near copies: images of the same picture, recognized by their details.

A cosine cannot distinguish a copy that was encoded again from another
photograph of the same kind. No threshold fits all encoders: ordinary neighbours
under one have larger cosines than copies under another. So the neighbours are
only candidates, and their pixels decide.
"""

import concurrent.futures
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Sides in pixels of the grey pictures that are kept, and compared.
SIDE, _COMPARED = 32, 16
# Sides of the parts of an image that are compared with all of another one.
_SCALES = (1.0, 0.95, 0.9, 0.85, 0.8)
# Grey values of a black frame, of 255, at most.
_BLACK = 10.0
# Pairs at a time.
PAIRS = 1024
# Standard deviation of details, of 255, below which an image has none.
_FLAT = 0.5
# Drawings resemble each other, as all frames of a video do. Where the lower
# quartile of an image's correlations rises from the first level to the second,
# the least correlation of its copies rises to `_STRICT`. Among neighbours by
# pixels, half of MNIST's images have a quartile above 0.48; of CIFAR-10's, 99 %
# are below 0.32 among those of its encoders.
_LEVELS, _STRICT = (0.35, 0.45), 0.95


class Pairs(NamedTuple):
    """Pairs of near copies: rows int [p], first < second."""

    first: np.ndarray
    second: np.ndarray
    correlations: np.ndarray  # Of their details, float32 [p].


def small_picture(image: tf.Tensor) -> tf.Tensor:
    """Returns an image uint8 [h, w, 3] as grey uint8 [SIDE, SIDE].

    A black frame is left out: images in equal frames would be alike.
    """
    grey = tf.image.rgb_to_grayscale(tf.cast(image, tf.float32))
    for axis in (0, 1):
        lines = tf.reduce_max(grey, 1 - axis)[:, 0] > _BLACK
        # All, of an image that is black.
        lines |= ~tf.reduce_any(lines)
        inside = tf.where(lines)[:, 0]
        rows = tf.range(inside[0], inside[-1] + 1)
        grey = tf.gather(grey, rows, axis=axis)
    small = tf.image.resize(grey, [SIDE, SIDE], antialias=True)[..., 0]
    return tf.cast(tf.clip_by_value(tf.round(small), 0.0, 255.0), tf.uint8)


def find(pictures: np.ndarray, candidates: np.ndarray, limit: float) -> Pairs:
    """Finds near copies among candidates.

    A pair is compared in every alignment of one with a part of the other,
    mirrored or not; the best correlation of details (what is left of the
    pictures without their local means) counts.

    Pictures are uint8 [n, SIDE, SIDE]; candidates int [n, k], rows that may be
    copies of each row. `limit` is the least correlation, of images that do not
    resemble all of their candidates.
    """
    count, k = candidates.shape
    rows = np.repeat(np.arange(count), k)
    pairs = np.stack([rows, candidates.ravel()], axis=1).astype(np.int64)
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]]), axis=0)

    def compare(start: int) -> np.ndarray:
        i, j = pairs[start : start + PAIRS].T
        return correlations(pictures[i], pictures[j])

    starts = range(0, len(pairs), PAIRS)
    parts = [np.zeros([0], np.float32)]
    # NumPy computes such small products on one core.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        parts += threads.map(compare, starts)
    values = np.concatenate(parts)
    level = _quartiles(count, pairs, values)[pairs].max(axis=1)
    limits = np.interp(level, _LEVELS, (limit, max(limit, _STRICT)))
    is_near = values >= limits
    first, second = pairs[is_near].T
    return Pairs(first, second, values[is_near])


def _quartiles(
    count: int, pairs: np.ndarray, correlations: np.ndarray
) -> np.ndarray:
    """Returns the lower quartile of each row's correlations, -1 of one."""
    rows, values = pairs.T.ravel(), np.tile(correlations, 2)
    order = np.lexsort((values, rows))
    sizes = np.bincount(rows, minlength=count)
    places = np.cumsum(sizes) - sizes + (sizes - 1) // 4
    quartiles = np.full([count], -1.0)
    several = sizes > 1
    quartiles[several] = values[order][places[several]]
    return quartiles


def correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the best correlations of pictures, uint8 [p, SIDE, SIDE]."""
    best = np.full([len(a)], -1.0, np.float32)
    a, b = a.astype(np.float32), b.astype(np.float32)
    for one, other in ((a, b), (b, a)):
        (whole,) = _parts(other, (1.0,))
        # Mirrored, so that each part is made once.
        wholes = np.stack([_details(whole), _details(whole[:, :, ::-1])], 1)
        for part in _parts(one, _SCALES):
            products = wholes @ _details(part)[:, :, np.newaxis]
            best = np.maximum(best, products.max(axis=(1, 2)))
    return best


def _parts(pictures: np.ndarray, scales: tuple[float, ...]) -> Iterator:
    """Yields parts of pictures, float32 [p, _COMPARED, _COMPARED]."""
    for scale in scales:
        length = SIDE * scale
        starts = {0.0, (SIDE - length) / 2, SIDE - length}
        weights = [_shrinking(start, length) for start in sorted(starts)]
        for rows in weights:
            shrunk = rows @ pictures
            for columns in weights:
                yield shrunk @ columns.T


def _shrinking(start: float, length: float) -> np.ndarray:
    """Returns weights that shrink [start, start + length) of SIDE pixels."""
    step = length / _COMPARED
    centers = start + (np.arange(_COMPARED) + 0.5) * step
    distances = np.abs(np.arange(SIDE) + 0.5 - centers[:, np.newaxis])
    weights = np.maximum(0.0, 1 - distances / max(step, 1.0))
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


def _details(pictures: np.ndarray) -> np.ndarray:
    """Returns pictures without their local means, as rows of length 1."""
    padded = np.pad(pictures, ((0, 0), (1, 1), (1, 1)), "edge")
    rows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    means = (rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]) / 9
    details = (pictures - means).reshape(len(pictures), -1)
    size = np.sqrt(np.mean(np.square(details), axis=1, keepdims=True))
    # Otherwise a few strong edges decide, such as those of a frame.
    details = np.clip(details, -size, size)
    details -= details.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(details, axis=1, keepdims=True)
    return np.where(size < _FLAT, 0.0, details / np.maximum(norms, 1e-6))
