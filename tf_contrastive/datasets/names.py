"""Millions of texts, such as paths, in little memory."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import tensorflow as tf

# Texts that are encoded or decoded at a time.
BLOCK = 1 << 16
_ENCODING = ("utf-8", "surrogateescape")


class Names(Sequence[str]):
    """Texts, one after the other in one buffer.

    A text takes its bytes and 8 more; a list of `str` takes 57 more.
    """

    def __init__(self, content: bytes, lengths: np.ndarray) -> None:
        """`lengths` are those of the texts in `content`, int64 [n]."""
        self._held: bytes | tf.Tensor = content
        self._ends = np.zeros([len(lengths) + 1], np.int64)
        np.cumsum(lengths, out=self._ends[1:])

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Names":
        """Returns the names of any texts."""
        if isinstance(texts, Names):
            return texts
        waiting, writer = iter(texts), Writer()
        while block := list(itertools.islice(waiting, BLOCK)):
            writer.extend(block)
        return writer.names()

    def __len__(self) -> int:
        return len(self._ends) - 1

    @property
    def _content(self) -> bytes:
        held = self._held
        return held if isinstance(held, bytes) else held.numpy()

    @property
    def _lengths(self) -> np.ndarray:
        return np.diff(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> "Names": ...

    def __getitem__(self, index: int | slice) -> "str | Names":
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        row = range(len(self))[index]
        start, end = self._ends[row : row + 2].tolist()
        if isinstance(self._held, bytes):
            content = self._held[start:end]
        else:
            content = tf.strings.substr(self._held, start, end - start).numpy()
        return content.decode(*_ENCODING)

    def __iter__(self) -> Iterator[str]:
        for content in self._bytes(np.arange(len(self))):
            yield content.decode(*_ENCODING)

    def __add__(self, other: "Names") -> "Names":
        lengths = np.concatenate([self._lengths, other._lengths])
        return Names(self._content + other._content, lengths)

    def take(self, rows: np.ndarray) -> "Names":
        """Returns some of them, int [m]."""
        if len(rows) == len(self) and (rows == np.arange(len(self))).all():
            return self
        content = bytearray()
        for block in self._blocks(rows):
            content += b"".join(block)
        return Names(bytes(content), self._lengths[rows])

    @functools.cached_property
    def lookup(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """Number, int64 [] -> text, string [], in TensorFlow."""
        with tf.init_scope(), tf.device("CPU:0"):
            content = tf.constant(self._content)
            ends = tf.convert_to_tensor(self._ends)
        # The texts are in memory once.
        self._held, self._ends = content, ends.numpy()

        def text(number: tf.Tensor) -> tf.Tensor:
            start, end = ends[number], ends[number + 1]
            return tf.strings.substr(content, start, end - start)

        return text

    def where(self, text: str) -> np.ndarray:
        """Returns the places of a text, int [m]."""
        wanted = text.encode(*_ENCODING)
        alike = np.flatnonzero(self._lengths == len(wanted))
        pairs = zip(alike.tolist(), self._bytes(alike), strict=True)
        return np.array([i for i, one in pairs if one == wanted], np.int64)

    def _bytes(self, rows: np.ndarray) -> Iterator[bytes]:
        return itertools.chain.from_iterable(self._blocks(rows))

    def _blocks(self, rows: np.ndarray) -> Iterator[list[bytes]]:
        content = self._content
        for first in range(0, len(rows), BLOCK):
            some = rows[first : first + BLOCK]
            starts, ends = self._ends[some], self._ends[some + 1]
            pairs = zip(starts.tolist(), ends.tolist(), strict=True)
            yield [content[start:end] for start, end in pairs]


class Writer:
    """Makes `Names` of texts that come one after the other."""

    def __init__(self) -> None:
        self._content = bytearray()
        self._lengths = [np.zeros([0], np.int64)]

    def extend(self, texts: list[str]) -> None:
        """Appends some texts."""
        encoded = [text.encode(*_ENCODING) for text in texts]
        self._content += b"".join(encoded)
        self._lengths.append(np.fromiter(map(len, encoded), np.int64))

    def names(self) -> Names:
        """Returns all of them."""
        return Names(bytes(self._content), np.concatenate(self._lengths))
