"""What was found in files, so that the next start does not read them again.

A file is read again when its size or its time of change differs. What is known
of a dataset's files is in `$XDG_CACHE_HOME/tf_contrastive/images`.
"""

import concurrent.futures
import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files, terminal

T = TypeVar("T")
# Change it when something else is found in the same files.
_VERSION = 12
# Requests at a time; object stores take long for each.
REMOTE_THREADS = 64
_LOG_SECONDS = 10
# The stores that this process has used.
_used: set[str] = set()


class _Known(NamedTuple):
    """What is known of n files; few bytes of each, since there are millions.

    Attributes:
      keys: digests of their paths, in increasing order, int64 [n].
      stats: lengths, and times of change in ns, int64 [n, 2]; -1: no file.
      rows: what was found, a structured array, [n].
    """

    keys: np.ndarray
    stats: np.ndarray
    rows: np.ndarray

    def places(self, keys: np.ndarray) -> np.ndarray:
        """Returns where files may be, int64 [m]."""
        places = np.searchsorted(self.keys, keys)
        return np.minimum(places, max(len(self.keys) - 1, 0))

    def select(self, chosen: np.ndarray) -> "_Known":
        """Returns some of the files, bool [n]."""
        return self if chosen.all() else _Known(*(x[chosen] for x in self))

    def joined(self, other: "_Known") -> "_Known":
        """Returns these files and others, which are in any order."""
        keys = np.concatenate([self.keys, other.keys])
        order = np.argsort(keys)
        stats = np.concatenate([self.stats, other.stats])[order]
        rows = np.concatenate([self.rows, other.rows])[order]
        return _Known(keys[order], stats, rows)


def digest(contents: Any) -> int:
    """Returns 64 bits that equal contents share, and others do not."""
    # Not for security: hosts in FIPS mode refuse it otherwise.
    short = hashlib.blake2b(contents, digest_size=8, usedforsecurity=False)
    return int.from_bytes(short.digest(), "little", signed=True)


def find(
    paths: Sequence[str],
    name: str,
    read: Callable[[Sequence[str]], np.ndarray],
    form: np.dtype,
    *,
    time_of: str = "st_mtime_ns",
) -> np.ndarray:
    """Returns what is found in each file; reads those not known.

    Args:
      paths: of the files; those that occur twice are read once.
      name: of what is found, and where; see `place`.
      read: some of the paths -> a row of each.
      form: of a row; the first number is 0 in those that are not remembered,
        since the disk may have been at fault.
      time_of: the local file's time that must not have changed.
    """
    store = _store(name)
    _used.add(store)
    known = _load(store, form)
    keys = np.fromiter(map(_key, paths), np.int64, len(paths))
    stats = _stats(paths, time_of)
    places = known.places(keys)
    is_known = np.zeros([len(keys)], bool)
    if len(known.keys):
        is_known = (known.keys[places] == keys) & (stats[:, 0] >= 0)
        is_known &= (known.stats[places] == stats).all(axis=1)
    if not is_known.all():
        unknown = np.flatnonzero(~is_known)
        _, firsts = np.unique(keys[unknown], return_index=True)
        unknown = unknown[np.sort(firsts)]
        rows = read([paths[i] for i in unknown.tolist()])
        new = _Known(keys[unknown], stats[unknown], rows)
        known = known.select(~np.isin(known.keys, new.keys)).joined(new)
        is_whole = known.rows[(form.names or ("",))[0]] != 0
        _save(store, known.select(is_whole & (known.stats[:, 0] >= 0)))
        places = known.places(keys)
    return known.rows[places]


def forget() -> None:
    """Lets all that this process has found be read again."""
    for store in _used:
        with contextlib.suppress(OSError):
            os.remove(store)


def logged(items: Iterable[T], what: str, size: int = 1) -> Iterator[T]:
    """Yields items that count `size` each; logs their number at times."""
    last = time.monotonic()
    for number, item in enumerate(items, 1):
        yield item
        if time.monotonic() - last > _LOG_SECONDS:
            last = time.monotonic()
            terminal.info(
                f"verified {number * size:,} {what}; the next start remembers"
                " them"
            )


def threads(paths: Sequence[str], local: int) -> int:
    """Returns how many files are read at a time, if local ones are `local`."""
    return REMOTE_THREADS if "://" in paths[0] else local


def _stats(paths: Sequence[str], time_of: str) -> np.ndarray:
    """Returns sizes and times of files, int64 [n, 2]; -1 of what is none."""

    def one(path: str) -> tuple[int, int]:
        try:
            local = files.local_path(path)
            if local is None:
                remote = tf.io.gfile.stat(path)
                return remote.length, remote.mtime_nsec
            status = os.stat(local)
            if stat.S_ISREG(status.st_mode):
                return status.st_size, getattr(status, time_of)
        except (tf.errors.OpError, OSError, ValueError):  # A name with "\0".
            pass
        return -1, -1

    pair = np.dtype((np.int64, 2))
    if not any("://" in path for path in paths):
        return np.fromiter(map(one, paths), pair, len(paths))
    with concurrent.futures.ThreadPoolExecutor(REMOTE_THREADS) as pool:
        return np.fromiter(pool.map(one, paths), pair, len(paths))


# ---- The store ---------------------------------------------------------------


def place(path: str, *options: object) -> str:
    """Returns a name for what is found at a path by some options."""
    return " ".join(map(str, [*options, _absolute(path)]))


def _store(name: str) -> str:
    """Returns the file of a name's rows."""
    text = f"{_VERSION} {name}".encode("utf-8", "surrogateescape")
    key = hashlib.sha256(text).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "tf_contrastive", "images", f"{key}.npz")


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _key(path: str) -> int:
    return digest(_absolute(path).encode("utf-8", "surrogateescape"))


def _load(store: str, form: np.dtype) -> _Known:
    """Reads what is known; nothing, if the store is absent or damaged."""
    with contextlib.suppress(Exception):  # Damaged ones raise errors of any.
        with open(store, "rb") as file, np.load(file) as arrays:
            known = _Known(*(arrays[field] for field in _Known._fields))
        if known.rows.dtype == form:
            return known
    numbers = np.zeros([0], np.int64)
    return _Known(numbers, np.zeros([0, 2], np.int64), np.zeros([0], form))


def _save(store: str, known: _Known) -> None:
    """Writes what is known, if that is possible."""
    with (
        contextlib.suppress(errors.UserError),
        files.replacing(store) as unfinished,
        open(unfinished, "wb") as file,
    ):
        np.savez(file, **known._asdict())
