"""What was found in files, so that the next start does not read them again.

A file is read again when its size or its time of change differs. What is known
of a dataset's files is in `$XDG_CACHE_HOME/tf_contrastive/images`.
"""

import concurrent.futures
import contextlib
import hashlib
import itertools
import os
import stat
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files, terminal

# Change it when something else is found in the same files.
_VERSION = 13
# Requests at a time; object stores take long for each.
_REMOTE_THREADS = 64
# Files between two looks at the clock.
_BLOCK = 256
_LOG_SECONDS = 10
# The stores that this process has used.
_used: set[str] = set()


def digest(contents: Any) -> int:
    """Returns 64 bits that equal contents share, and others do not."""
    # Not for security: hosts in FIPS mode refuse it otherwise.
    short = hashlib.blake2b(contents, digest_size=8, usedforsecurity=False)
    return int.from_bytes(short.digest(), "little", signed=True)


def find(
    paths: Sequence[str],
    place: str,
    read: Callable[[str], tuple[int, ...]],
    form: np.dtype,
    *,
    what: str,
    threads: int,
    options: tuple[object, ...] = (),
    time_of: str = "st_mtime_ns",
) -> np.ndarray:
    """Returns what is found in each file; reads those not known.

    Args:
      paths: of the files; those that occur twice are read once.
      place: the folder, table or pattern that they are of.
      read: path -> a row; it is called for several files at a time.
      form: of a row; the first number is 0 in those that are not remembered,
        since the disk may have been at fault.
      what: the files are, for a log.
      threads: local files that are read at a time.
      options: on which the rows depend, too.
      time_of: the local file's time that must not have changed.
    """
    # Few bytes of each file, since there are millions: the digest of its path;
    # its length and time of change in ns, -1 of what is no file; the row.
    entry = np.dtype([("key", "<i8"), ("stat", "<i8", 2), ("row", form)])
    store = _store(" ".join(map(str, [*options, _absolute(place)])))
    _used.add(store)
    known = _load(store, entry)
    keys = np.fromiter(map(_key, paths), np.int64, len(paths))
    stats = _stats(paths, time_of)
    is_known = np.zeros([len(keys)], bool)
    if len(known):
        places = np.searchsorted(known["key"], keys)
        same = known[np.minimum(places, len(known) - 1)]
        is_known = (same["key"] == keys) & (stats[:, 0] >= 0)
        is_known &= (same["stat"] == stats).all(axis=1)
    if not is_known.all():
        is_new = np.zeros([len(keys)], bool)
        is_new[np.unique(keys, return_index=True)[1]] = True
        is_new &= ~is_known
        chosen = [*itertools.compress(paths, is_new)]
        new = np.zeros([len(chosen)], entry)
        new["key"], new["stat"] = keys[is_new], stats[is_new]
        new["row"] = _read(chosen, read, form, what, threads)
        others = known[~np.isin(known["key"], new["key"])]
        known = np.concatenate([others, new])
        known = known[np.argsort(known["key"])]
        is_whole = known["row"][(form.names or ("",))[0]] != 0
        _save(store, known[is_whole & (known["stat"][:, 0] >= 0)])
    return known["row"][np.searchsorted(known["key"], keys)]


def forget() -> None:
    """Lets all that this process has found be read again."""
    for store in _used:
        with contextlib.suppress(OSError):
            os.remove(store)


def _read(
    paths: Sequence[str],
    read: Callable[[str], tuple[int, ...]],
    form: np.dtype,
    what: str,
    threads: int,
) -> np.ndarray:
    """Reads a row of each file, in threads; logs their number at times."""
    rows = np.zeros([len(paths)], form)
    threads = _REMOTE_THREADS if "://" in paths[0] else threads
    size = min(_BLOCK, -(-len(paths) // threads))

    def read_block(first: int) -> int:
        for row, path in enumerate(paths[first : first + size], first):
            rows[row] = read(path)
        return first + size

    last = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for number in pool.map(read_block, range(0, len(paths), size)):
            if time.monotonic() - last > _LOG_SECONDS:
                last = time.monotonic()
                terminal.info(
                    f"verified {number:,} of {len(paths):,} {what}; the next"
                    " start remembers them"
                )
    return rows


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
    with concurrent.futures.ThreadPoolExecutor(_REMOTE_THREADS) as pool:
        return np.fromiter(pool.map(one, paths), pair, len(paths))


# ---- The store ---------------------------------------------------------------


def _store(name: str) -> str:
    """Returns the file of a name's rows."""
    text = f"{_VERSION} {name}".encode("utf-8", "surrogateescape")
    key = hashlib.sha256(text).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "tf_contrastive", "images", f"{key}.npy")


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _key(path: str) -> int:
    return digest(_absolute(path).encode("utf-8", "surrogateescape"))


def _load(store: str, entry: np.dtype) -> np.ndarray:
    """Reads what is known; nothing, if the store is absent or damaged."""
    with contextlib.suppress(Exception):  # Damaged ones raise errors of any.
        known = np.load(store)
        if known.dtype == entry and known.ndim == 1:
            return known
    return np.zeros([0], entry)


def _save(store: str, known: np.ndarray) -> None:
    """Writes what is known, if that is possible."""
    with (
        contextlib.suppress(errors.UserError),
        files.replacing(store) as unfinished,
        open(unfinished, "wb") as file,
    ):
        np.save(file, known)
