"""Paths of millions of files, which graphs look up and Python reads."""

import functools
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import tensorflow as tf

# Texts that are Python's at a time.
BLOCK = 1 << 16


def few(names: Iterable[str], most: int = 3) -> str:
    """Joins names, at most some of them."""
    every = list(names)
    return ", ".join(every[:most]) + ", ..." * (len(every) > most)


def texts(array: pa.Array) -> Iterator[str]:
    """Yields the texts of an array, without a list of all of them."""
    for start in range(0, len(array), BLOCK):
        yield from array.slice(start, BLOCK).to_pylist()


def array_of(strings: Iterable[str], count: int | None = None) -> pa.Array:
    """Returns texts as an array, LargeString [n]; `count` if they are lazy."""
    return pa.array(strings, pa.large_string(), size=count)


def real(paths: Iterator[str]) -> Iterator[str]:
    """Yields local paths whole, and without links to their folders."""
    folder = functools.cache(os.path.realpath)
    for path in paths:
        path = path.removeprefix("file://")
        if "://" not in path:
            above, name = os.path.split(os.path.abspath(path))
            path = os.path.join(folder(above), name)
        yield path


class Paths(Sequence[str]):
    """Paths in the form of a pyarrow array, in memory that graphs read.

    A path takes its bytes and 8 more.
    """

    def __init__(self, array: pa.Array) -> None:
        """`array` is LargeString [n], which is copied."""
        _, ends, content = array.buffers()
        ends = np.frombuffer(ends, np.int64)[array.offset :][: len(array) + 1]
        content = np.frombuffer(content or b"", np.uint8)
        # On the host, and not in the graphs of tf.data functions, each of which
        # would have its own copy of a single string.
        with tf.init_scope(), tf.device("CPU:0"):
            self._ends = tf.constant(ends.copy())
            self._content = tf.constant(content.copy())

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return self.array()[index].as_py()

    def __iter__(self) -> Iterator[str]:
        return texts(self.array())

    def array(self) -> pa.Array:
        """Returns all, LargeString [n], in the same memory."""
        buffers = [None, pa.py_buffer(self._ends), pa.py_buffer(self._content)]
        return pa.Array.from_buffers(pa.large_string(), len(self), buffers)

    def take(self, rows: np.ndarray) -> "Paths":
        """Returns some of them, int [m]."""
        return Paths(self.array().take(pa.array(rows)))

    def lookup(self, number: tf.Tensor) -> tf.Tensor:
        """Number, int64 [] -> path, string [], in TensorFlow."""
        characters = tf.constant([bytes([byte]) for byte in range(256)])
        start, end = self._ends[number], self._ends[number + 1]
        path = tf.cast(self._content[start:end], tf.int32)
        return tf.strings.reduce_join(tf.gather(characters, path))
