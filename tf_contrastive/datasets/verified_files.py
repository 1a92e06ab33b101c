"""Verification of images in files, which remembers what it has found.

A file is verified again when its size or its time of change differs. What is
known of a dataset's files is in `$XDG_CACHE_HOME/tf_contrastive/images`.
"""

import concurrent.futures
import contextlib
import functools
import gzip
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import tensorflow as tf

from tf_contrastive import errors, files, terminal
from tf_contrastive.datasets import decoding, record_files
from tf_contrastive.datasets.source import Record

T = TypeVar("T")
# Change it when `decoding` finds something else in the same files.
_VERSION = 6
# Bytes of an image file: 2**27 pixels of four colours with 16 bits.
_MAX_IMAGE = 1 << 30
# Requests at a time; object stores take long for each.
_THREADS = 64
# TFRecord files read at a time, and images between two looks at the clock.
_FILES_AT_A_TIME, _BATCH = 16, 256
_LOG_SECONDS = 10
_COLUMNS = len(decoding.Verified._fields) + 2
# Numbers of a file's compression.
_COMPRESSIONS = ("", "GZIP", "ZLIB")
# What is found in a file: the first image's numbers of `decoding.Verified`, its
# digest and its label or 0, and then other images'; of a file that is inspected
# the number of its records and its compression.
_Found = list[int]
# Path -> [length, time of change in ns], and what was found.
_Known = dict[str, list[int]]


def read_sizes(
    paths: list[str],
    max_pixels: int,
    upright: bool,
    place: str,
    verify_all: bool,
) -> decoding.Found:
    """Returns the sizes of image files.

    Args:
      paths: of the files.
      max_pixels: images with more are unreadable.
      upright: whether images are turned as their EXIF data say.
      place: the folder, or the list, that they are from.
      verify_all: whether to verify files that are known, too.
    """

    def verify(files: list[str]) -> list[_Found]:
        numbers = np.arange(len(files))
        columns = {"image": np.array(files, object), "file": numbers}
        records = tf.data.Dataset.from_tensor_slices(
            columns | {"label": np.zeros_like(numbers)}
        )
        what = f"of {len(files):,} image files"
        check = functools.partial(_check, _read, max_pixels, upright)
        return _verified(records, check, len(files), what)

    store = _store(place, max_pixels, upright)
    return _found(_remembered(paths, store, verify, verify_all))


def read_records(
    paths: list[str],
    read: Callable[[tf.Tensor], tf.data.Dataset],
    max_pixels: int,
    place: str,
    verify_all: bool,
) -> decoding.Found:
    """Returns the sizes of the images in TFRecord files.

    Args:
      paths: of the files.
      read: path, string [] -> records of `image` and, if they have one,
        `label`.
      place: the pattern that the files match, and how they are parsed.
      max_pixels, verify_all: as of `read_sizes`.
    """

    def verify(files: list[str]) -> list[_Found]:
        def of_file(number: tf.Tensor, file: tf.Tensor) -> tf.data.Dataset:
            about = {"label": tf.zeros([], tf.int64)}
            return read(file).map(lambda r: about | r | {"file": number})

        records = (
            tf.data.Dataset.from_tensor_slices(files)
            .enumerate()
            .interleave(
                of_file,
                min(_FILES_AT_A_TIME, len(files)),
                num_parallel_calls=tf.data.AUTOTUNE,
            )
        )
        what = f"images of {len(files):,} TFRecord files"
        check = functools.partial(_check, bytes, max_pixels, False)
        return _verified(records, check, len(files), what)

    store = _store(place, max_pixels, "records")
    return _found(_remembered(paths, store, verify, verify_all))


def inspect_records(
    paths: list[str], place: str, verify_all: bool = False
) -> list[record_files.Contents | None]:
    """Returns what TFRecord files hold; None of one that holds no records.

    Call it before TensorFlow reads the files. `place` is what they are of.

    Raises:
      UserError: for a file that is damaged.
    """

    def inspect(path: str) -> _Found:
        try:
            records, compression = record_files.inspect(path)
            return [records, _COMPRESSIONS.index(compression)]
        except record_files.ForeignFileError:
            return [0, len(_COMPRESSIONS)]

    def verify(files: list[str]) -> list[_Found]:
        threads = _THREADS if "://" in files[0] else _FILES_AT_A_TIME
        what = f"lengths of {len(files):,} TFRecord files"
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            return [*_logged(pool.map(inspect, files), what)]

    # Nobody can set the time of the status: a wrong length ends the process.
    store = _store(place, "contents")
    parts = _remembered(paths, store, verify, verify_all, "st_ctime_ns")
    return [
        record_files.Contents(records, _COMPRESSIONS[kind])
        if kind < len(_COMPRESSIONS)
        else None
        for records, kind in parts
    ]


def count_records(
    paths: list[str], place: str, verify_all: bool = False
) -> np.ndarray:
    """Counts the records of uncompressed files, int64 [n].

    Args:
      paths, place, verify_all: as of `inspect_records`.

    Raises:
      UserError: for a file that is damaged, or not of uncompressed records.
    """
    counts = []
    every = inspect_records(paths, place, verify_all)
    for path, contents in zip(paths, every, strict=True):
        if contents is None:
            raise record_files.foreign(path)
        if contents.compression:
            raise errors.UserError(
                f"{path} is compressed by {contents.compression.lower()}: copy"
                " it again"
            )
        counts.append(contents.records)
    return np.array(counts, np.int64)


def _check(
    read: Callable[[bytes], bytes],
    max_pixels: int,
    upright: bool,
    value: bytes,
) -> np.ndarray:
    """Returns the numbers of `decoding.Verified`, and the digest or 0."""
    reason = 0
    try:
        contents = read(value)
        found = decoding.verify(contents, max_pixels, upright)
        return np.array([*found, digest(contents)], np.int64)
    except decoding.UnreadableError as error:
        reason = error.reason
    except errors.UserError:
        reason = decoding.CLOSED
    except Exception:  # Decoders raise errors of any type.
        pass
    return np.array([*decoding.Verified(0, 0, reason, 0, -1), 0], np.int64)


def digest(contents: bytes) -> int:
    """Returns 64 bits that equal contents share, and others do not."""
    # Not for security: hosts in FIPS mode refuse it otherwise.
    short = hashlib.blake2b(contents, digest_size=8, usedforsecurity=False)
    return int.from_bytes(short.digest(), "little", signed=True)


def _verified(
    records: tf.data.Dataset,
    check: Callable[[bytes], np.ndarray],
    files: int,
    what: str,
) -> list[_Found]:
    """Returns what is found in each file; in parallel.

    Args:
      records: `image`, `label`, and `file`, the number of its file.
      check: `image` -> int64 [6]; see `_check`.
      files: their number.
      what: describes all images.
    """

    def row_of(record: Record) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.numpy_function(check, [record["image"]], tf.int64)
        found.set_shape([_COLUMNS - 1])
        return record["file"], tf.concat([found, [record["label"]]], 0)

    batches = records.map(row_of, tf.data.AUTOTUNE, deterministic=True)
    by_file: list[_Found] = [[] for _ in range(files)]
    for numbers, found in _logged(
        batches.batch(_BATCH).as_numpy_iterator(), what, _BATCH
    ):
        for number, row in zip(numbers, found.tolist(), strict=True):
            by_file[number] += row
    return by_file


def _logged(items: Iterable[T], what: str, size: int = 1) -> Iterator[T]:
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


def _found(parts: list[_Found]) -> decoding.Found:
    rows = np.array([*itertools.chain(*parts)], np.int64).reshape(-1, _COLUMNS)
    return decoding.Found(rows[:, :2].astype(np.int32), *rows[:, 2:].T)


def _remembered(
    paths: list[str],
    store: str,
    verify: Callable[[list[str]], list[_Found]],
    verify_all: bool,
    time_of: str = "st_mtime_ns",
) -> list[_Found]:
    """Returns what is found in each file; verifies those that are not known.

    `time_of` is the local file's time that must not have changed.
    """
    known = _load(store)
    if verify_all:
        # If the verification fails, the next start remembers nothing.
        with contextlib.suppress(OSError):
            os.remove(store)
    names = [_absolute(path) for path in paths]
    stats = _stats(paths, time_of)
    found, unknown = {}, []
    for i, (name, stat) in enumerate(zip(names, stats, strict=True)):
        before = known.get(name, [])
        if stat and before[:2] == stat and not verify_all:
            found[i] = before[2:]
        else:
            unknown.append(i)
    if unknown:
        new = verify([paths[i] for i in unknown])
        found |= zip(unknown, new, strict=True)
        for i in unknown:
            # Unreadable ones are tried again: the disk may have been at fault.
            if (stat := stats[i]) and all(found[i][::_COLUMNS]):
                known[names[i]] = stat + found[i]
            else:
                known.pop(names[i], None)
        _save(store, known)
    return [found[i] for i in range(len(paths))]


def _read(path: bytes) -> bytes:
    return files.read(tf.compat.as_str_any(path), _MAX_IMAGE)


def _stats(paths: list[str], time_of: str) -> list[list[int] | None]:
    """Returns [length, time of change in ns] of files; None: no file."""
    one = functools.partial(_stat, time_of=time_of)
    if not any("://" in path for path in paths):
        return list(map(one, paths))
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(one, paths))


def _stat(path: str, time_of: str) -> list[int] | None:
    try:
        local = files.local_path(path)
        if local is None:
            remote = tf.io.gfile.stat(path)
            return [remote.length, remote.mtime_nsec]
        if not os.path.isfile(local):
            return None
        status = os.stat(local)
        return [status.st_size, getattr(status, time_of)]
    except (tf.errors.OpError, OSError, ValueError):  # A name with "\0".
        return None


# ---- The store ---------------------------------------------------------------


def _store(place: str, *options: object) -> str:
    """Returns the file for what is known of a place's images."""
    key = " ".join(map(str, [_VERSION, *options, _absolute(place)]))
    digest = hashlib.sha256(key.encode("utf-8")).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "tf_contrastive", "images", f"{digest}.json.gz")


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _load(store: str) -> _Known:
    """Reads what is known; nothing, if the store is absent or damaged."""
    try:
        return json.loads(gzip.decompress(files.read(store)))
    except Exception:  # Damaged files raise errors of any type.
        return {}


def _save(store: str, known: _Known) -> None:
    """Writes what is known, if that is possible."""
    content = gzip.compress(json.dumps(known).encode(), 1)
    with contextlib.suppress(errors.UserError):
        files.write(store, content)
