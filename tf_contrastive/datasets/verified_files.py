"""Verification of images in files, which remembers what it has found.

A file is verified again when its size or its time of change differs. What is
known of a dataset's files is in `$XDG_CACHE_HOME/tf_contrastive/images`.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import io
import os
import time
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tf_contrastive import errors, files, terminal
from tf_contrastive.datasets import decoding, record_files

# Change it when `decoding` finds something else in the same files.
_VERSION = 3
# Bytes of an image file: 2**27 pixels of four colours with 16 bits.
_MAX_IMAGE = 1 << 30
# Requests at a time; object stores take long for each.
_THREADS = 64
# TFRecord files read at a time.
_FILES_AT_A_TIME = 16
# The number of images from which on progress is logged.
_FEW = 1000
# Seconds after which the counting of records is logged.
_LONG = 10
# Known files: path (bytes), then (length, time of change in ns) and (height,
# width, kind, label or 0) of each image in the file, int64 [n, 4].
_Known = dict[bytes, tuple[tuple[int, int], np.ndarray]]


# Whether to verify files that are known, too.
_verifies_all = False


@contextlib.contextmanager
def verifying_all() -> Iterator[None]:
    """Verifies all files inside this context, whatever is remembered."""
    global _verifies_all
    _verifies_all = True
    try:
        yield
    finally:
        _verifies_all = False


def read_sizes(
    paths: list[str], max_pixels: int, upright: bool, place: str
) -> decoding.Found:
    """Returns the sizes of image files; see `decoding.read_sizes`.

    `place` is the folder, or the list, that they are from.
    """

    def verify(files: list[str]) -> list[np.ndarray]:
        records = tf.data.Dataset.from_tensor_slices(
            {"path": np.array(files, object), "file": np.arange(len(files))}
        )
        step = max(len(files) // 10, _FEW)
        found = decoding.read_sizes(
            _with_progress(records, len(files), "image files", step),
            "path",
            _read,
            max_pixels,
            upright,
        )
        return [*_rows(found)[:, np.newaxis]]

    store = _store(place, max_pixels, upright)
    return _found(np.concatenate(_remembered(paths, store, verify)))


def read_records(
    paths: list[str],
    read: Callable[[tf.Tensor], tf.data.Dataset],
    max_pixels: int,
    place: str,
) -> decoding.Found:
    """Returns the sizes of the images in TFRecord files.

    Args:
      paths: of the files.
      read: path, string [] -> records of `image` and, if they have one,
        `label`, which is a column of the result.
      max_pixels: see `decoding.read_sizes`.
      place: the pattern that the files match, and how they are parsed.
    """

    def verify(files: list[str]) -> list[np.ndarray]:
        at_a_time = min(_FILES_AT_A_TIME, len(files))

        def of_file(number: tf.Tensor, file: tf.Tensor) -> tf.data.Dataset:
            # Those before it that are complete, while others are read, too.
            done = tf.maximum(number - at_a_time + 1, 0)
            about = {"label": tf.zeros([], tf.int64)}
            return read(file).map(
                lambda record: about | record | {"number": number, "file": done}
            )

        files_read = tf.data.Dataset.from_tensor_slices(files).enumerate()
        records = files_read.interleave(
            of_file, at_a_time, num_parallel_calls=tf.data.AUTOTUNE
        )
        found = decoding.read_sizes(
            _with_progress(records, len(files), "TFRecord files", 50_000),
            "image",
            bytes,
            max_pixels,
            columns=("number", "label"),
        )
        numbers = found.columns["number"]
        ends = np.cumsum(np.bincount(numbers, minlength=len(files)))
        order = np.argsort(numbers, kind="stable")
        return np.split(_rows(found)[order], ends[:-1])

    parts = _remembered(paths, _store(place, max_pixels, "records"), verify)
    return _found(np.concatenate(parts))


def count_records(paths: list[str], place: str) -> np.ndarray:
    """Counts the records of TFRecord files, int64 [n]; see `record_files`.

    Call it before TensorFlow reads the files. `place` is what they are of.

    Raises:
      UserError: for a file that is damaged.
    """

    def verify(files: list[str]) -> list[np.ndarray]:
        rows, last = [], time.monotonic()
        threads = _THREADS if "://" in files[0] else _FILES_AT_A_TIME
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            for count in pool.map(record_files.count, files):
                rows.append(np.array([[count, 0, 0, 0]]))
                if time.monotonic() - last > _LONG:
                    last = time.monotonic()
                    terminal.info(
                        f"lengths of {len(rows):,} of {len(files):,} TFRecord"
                        " files checked; the next start remembers them"
                    )
        return rows

    # Nobody can set the time of the status: a wrong length ends the process.
    store = _store(place, "lengths")
    parts = _remembered(paths, store, verify, "st_ctime_ns")
    return np.array([part[0, 0] for part in parts], np.int64)


def _rows(found: decoding.Found) -> np.ndarray:
    """Returns what is remembered of images, int64 [n, 4]."""
    labels = found.columns.get("label", np.zeros_like(found.kinds))
    return np.column_stack([found.sizes, found.kinds, labels]).astype(np.int64)


def _found(rows: np.ndarray) -> decoding.Found:
    sizes, kinds = rows[:, :2].astype(np.int32), rows[:, 2].astype(np.int32)
    return decoding.Found(sizes, kinds, {"label": rows[:, 3]})


def _remembered(
    paths: list[str],
    store: str,
    verify: Callable[[list[str]], list[np.ndarray]],
    time_of: str = "st_mtime_ns",
) -> list[np.ndarray]:
    """Returns the rows of each file; verifies those that are not known.

    `time_of` is the local file's time that must not have changed.
    """
    known = _load(store)
    if _verifies_all:
        # If the verification fails, the next start remembers nothing.
        with contextlib.suppress(OSError):
            os.remove(store)
    names = [_absolute(path).encode("utf-8") for path in paths]
    stats = _stats(paths, time_of)
    rows, unknown = {}, []
    for i, (name, stat) in enumerate(zip(names, stats, strict=True)):
        before = known.get(name)
        if stat and before and before[0] == stat and not _verifies_all:
            rows[i] = before[1]
        else:
            unknown.append(i)
    if unknown:
        new = verify([paths[i] for i in unknown])
        rows |= zip(unknown, new, strict=True)
        for i in unknown:
            # Unreadable ones are tried again: the disk may have been at fault.
            if (stat := stats[i]) and rows[i][:, 0].all():
                known[names[i]] = stat, rows[i]
            else:
                known.pop(names[i], None)
        _save(store, known)
    return [rows[i] for i in range(len(paths))]


def _read(path: bytes) -> bytes:
    name = tf.compat.as_str_any(path)
    return files.read(name, _MAX_IMAGE)


def _stats(paths: list[str], time_of: str) -> list[tuple[int, int] | None]:
    """Returns (length, time of change in ns) of files; None: no file."""
    one = functools.partial(_stat, time_of=time_of)
    if not any("://" in path for path in paths):
        return list(map(one, paths))
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(one, paths))


def _stat(path: str, time_of: str) -> tuple[int, int] | None:
    try:
        local = files.local_path(path)
        if local is None:
            remote = tf.io.gfile.stat(path)
            return remote.length, remote.mtime_nsec
        if not os.path.isfile(local):
            return None
        status = os.stat(local)
        return status.st_size, getattr(status, time_of)
    except (tf.errors.OpError, OSError, ValueError):  # A name with "\0".
        return None


def _with_progress(
    records: tf.data.Dataset, total: int, kind: str, step: int
) -> tf.data.Dataset:
    """Returns the same records; logs the number of every `step`-th.

    Their feature `file` is how many of the `total` files are complete.
    """

    def log(number: np.ndarray, file: np.ndarray) -> None:
        if number == _FEW:
            terminal.info(
                f"verifying {total:,} {kind}; the next start remembers them"
            )
        elif number and number % step == 0:
            images = f", {number:,} images" if number != file else ""
            terminal.info(f"verified {file:,} of {total:,} {kind}{images}")

    def count(number: tf.Tensor, record: decoding.Record) -> decoding.Record:
        tf.numpy_function(log, [number, record["file"]], [])
        return record

    return records.enumerate().map(count)


# ---- The store ---------------------------------------------------------------

_COLUMNS = ("paths", "stats", "counts", "rows")


def _store(place: str, *options: object) -> str:
    """Returns the file for what is known of a place's images."""
    key = " ".join(map(str, [_VERSION, *options, _absolute(place)]))
    digest = hashlib.sha256(key.encode("utf-8")).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "tf_contrastive", "images", f"{digest}.npz")


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _load(store: str) -> _Known:
    """Reads what is known; nothing, if the store is absent or damaged."""
    try:
        with np.load(store) as file:
            paths, stats, counts, rows = (file[name] for name in _COLUMNS)
        ends = np.cumsum(counts)
        columns = (
            paths.tolist(),
            map(tuple, stats.tolist()),
            (ends - counts).tolist(),
            ends.tolist(),
        )
        return {
            path: (stat, rows[start:end])
            for path, stat, start, end in zip(*columns, strict=True)
        }
    except Exception:  # Damaged files raise errors of any type.
        return {}


def _save(store: str, known: _Known) -> None:
    """Writes what is known, if that is possible."""
    if not known:
        return
    stats, rows = zip(*known.values(), strict=True)
    content = io.BytesIO()
    np.savez(
        content,
        paths=np.array(list(known), np.bytes_),
        stats=np.array(stats, np.int64),
        counts=np.array([len(each) for each in rows]),
        rows=np.concatenate(rows),
    )
    with contextlib.suppress(errors.UserError):
        files.write(store, content.getvalue())
