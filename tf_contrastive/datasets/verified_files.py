"""Verification of image files, which remembers what it has found.

A file is verified again when its size or its time of change differs. What is
known of a folder's files is in `$XDG_CACHE_HOME/tf_contrastive/images`.
"""

import concurrent.futures
import contextlib
import hashlib
import os
import tempfile

import numpy as np
import tensorflow as tf

from tf_contrastive import terminal
from tf_contrastive.datasets import decoding

# Change it when `decoding` finds something else in the same files.
_VERSION = 2
# Requests at a time; object stores take long for each.
_THREADS = 64
# Known files: path (bytes), then (length, time of change in ns) and (height,
# width, kind) per file.
_Known = dict[bytes, tuple[tuple[int, int], tuple[int, int, int]]]


def read_sizes(
    paths: list[str], max_pixels: int, upright: bool, place: str
) -> decoding.Found:
    """Returns the sizes of image files; see `decoding.read_sizes`.

    `place` is the folder, or the list, that they are from.
    """
    store = _store(place, max_pixels, upright)
    known = _load(store)
    names = [_absolute(path).encode("utf-8") for path in paths]
    stats = _stats(paths)
    found = np.zeros([len(paths), 3], np.int32)
    unknown = []
    for i, (name, stat) in enumerate(zip(names, stats, strict=True)):
        before = known.get(name)
        if stat and before and before[0] == stat:
            found[i] = before[1]
        else:
            unknown.append(i)
    if unknown:
        records = tf.data.Dataset.from_tensor_slices(
            {"path": np.array(paths, object)[unknown]}
        )
        new = decoding.read_sizes(
            _with_progress(records, len(unknown)),
            "path",
            _read,
            max_pixels,
            upright,
        )
        found[unknown, :2] = new.sizes
        found[unknown, 2] = new.kinds
        for i in unknown:
            # Unreadable ones are tried again: the disk may have been at fault.
            stat, (height, width, kind) = stats[i], found[i].tolist()
            if stat and height:
                known[names[i]] = stat, (height, width, kind)
        _save(store, known)
    return decoding.Found(found[:, :2], found[:, 2], {})


def _read(path: bytes) -> bytes:
    with tf.io.gfile.GFile(path, "rb") as file:
        return file.read()


def _stats(paths: list[str]) -> list[tuple[int, int] | None]:
    """Returns (length, time of change in ns) of files; None: no such file."""
    if not any("://" in path for path in paths):
        return list(map(_stat, paths))
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(_stat, paths))


def _stat(path: str) -> tuple[int, int] | None:
    try:
        if "://" in path:
            remote = tf.io.gfile.stat(path)
            return remote.length, remote.mtime_nsec
        local = os.stat(path)
        return local.st_size, local.st_mtime_ns
    except (tf.errors.OpError, OSError, ValueError):  # A name with "\0".
        return None


def _with_progress(records: tf.data.Dataset, total: int) -> tf.data.Dataset:
    """Returns the same records; logs each tenth of many."""
    step = max(total // 10, 1000)
    if total > step:
        terminal.info(
            f"verifying {total:,} image files; the next start remembers them"
        )

    def log(number: np.ndarray) -> None:
        if number and number % step == 0:
            terminal.info(f"verified {number:,} of {total:,} image files")

    def count(number: tf.Tensor, record: decoding.Record) -> decoding.Record:
        tf.numpy_function(log, [number], [])
        return record

    return records.enumerate().map(count) if total > step else records


# ---- The store ---------------------------------------------------------------


def _store(place: str, max_pixels: int, upright: bool) -> str:
    """Returns the file for what is known of a place's images."""
    key = f"{_VERSION} {max_pixels} {upright} {_absolute(place)}"
    digest = hashlib.sha256(key.encode("utf-8")).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "tf_contrastive", "images", f"{digest}.npz")


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _load(store: str) -> _Known:
    """Reads what is known; nothing, if the store is absent or damaged."""
    try:
        with np.load(store) as file:
            paths, stats, sizes = file["paths"], file["stats"], file["sizes"]
        rows = zip(
            paths.tolist(),
            map(tuple, stats.tolist()),
            map(tuple, sizes.tolist()),
            strict=True,
        )
        return {path: (stat, size) for path, stat, size in rows}
    except Exception:  # Damaged files raise errors of any type.
        return {}


def _save(store: str, known: _Known) -> None:
    """Writes what is known, if that is possible."""
    stats, sizes = zip(*known.values(), strict=True) if known else ((), ())
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(store), exist_ok=True)
        # Processes that start together replace each other's whole files.
        with tempfile.TemporaryDirectory(dir=os.path.dirname(store)) as folder:
            path = os.path.join(folder, "known.npz")
            np.savez(
                path,
                paths=np.array(list(known), np.bytes_),
                stats=np.array(stats, np.int64).reshape(-1, 2),
                sizes=np.array(sizes, np.int32).reshape(-1, 3),
            )
            os.replace(path, store)
