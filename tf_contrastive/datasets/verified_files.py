"""Verification of images in files, which remembers what it has found.

A file is verified again when its size or its time of change differs. What is
known of a dataset's files is in `$XDG_CACHE_HOME/tf_contrastive/images`.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files, terminal
from tf_contrastive.datasets import decoding, record_files
from tf_contrastive.datasets.names import Names
from tf_contrastive.datasets.source import Record

T = TypeVar("T")
# Change it when `decoding` finds something else in the same files.
_VERSION = 9
# Bytes of an image file: 2**27 pixels of four colours with 16 bits.
_MAX_IMAGE = 1 << 30
# Requests at a time; object stores take long for each.
_THREADS = 64
# TFRecord files read at a time, and images between two looks at the clock.
_FILES_AT_A_TIME, _BATCH = 16, 256
# Images that Python is called with. (TensorFlow 2.15 on Python 3.11 loses 16
# bytes for each of its tensors that Python has seen.)
_AT_A_TIME = 4
_LOG_SECONDS = 10
# What is found of an image: the numbers of `decoding.Verified`, its digest and
# its label or 0; of a file that is inspected, its records and its compression.
_ROW = np.dtype(
    [
        *(("height", "<i4"), ("width", "<i4"), ("format", "i1")),
        *(("by_pillow", "i1"), ("turned", "i1"), ("peak", "<i2")),
        *(("digest", "<i8"), ("label", "<i8")),
    ]
)
_CONTENTS = np.dtype([("records", "<i8"), ("compression", "i1")])
# Numbers of a file's compression.
_COMPRESSIONS = ("", "GZIP", "ZLIB")


class _Known(NamedTuple):
    """What is known of n files; so few bytes, since there may be millions.

    Attributes:
      keys: digests of their paths, int64 [n].
      stats: lengths, and times of change in ns, int64 [n, 2]; -1: no file.
      counts: rows of each file, int64 [n].
      rows: of file after file, of `_ROW` or `_CONTENTS`, [sum of counts].
    """

    keys: np.ndarray
    stats: np.ndarray
    counts: np.ndarray
    rows: np.ndarray

    def select(self, files: np.ndarray) -> "_Known":
        """Returns some of the files, int [m] or bool [n]."""
        everything = np.arange(len(self.keys))
        if np.array_equal(everything[files], everything):
            return self  # Copies of all rows would take as much again.
        counts = self.counts[files]
        starts = (np.cumsum(self.counts) - self.counts)[files]
        before = np.cumsum(counts) - counts
        places = np.repeat(starts - before, counts)
        places += np.arange(len(places))
        parts = self.keys[files], self.stats[files], counts
        return _Known(*parts, self.rows[places])

    def joined(self, other: "_Known") -> "_Known":
        """Returns these files and others."""
        if not len(other.keys):
            return self
        if not len(self.keys):
            return other
        pairs = zip(self, other, strict=True)
        return _Known(*map(np.concatenate, pairs))


def read_sizes(
    paths: Sequence[str],
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

    def verify(files: Sequence[str], counts: np.ndarray) -> np.ndarray:
        rows = np.zeros([counts.sum()], _ROW)
        # Of local files, as many as Python's lock lets decode.
        threads = _threads(files, min(max(4, os.cpu_count() or 1), 16))
        size = min(_BATCH, -(-len(files) // threads))

        def verify_block(first: int) -> None:
            block = files[first : first + size]
            for row, path in enumerate(block, first):
                rows[row] = *_check(_read, max_pixels, upright, path), 0

        starts = range(0, len(files), size)
        what = f"of {len(files):,} image files"
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            for _ in _logged(pool.map(verify_block, starts), what, size):
                pass
        return rows

    store = _store(place, max_pixels, upright)
    each = np.ones([len(paths)], np.int64)
    return _found(_remembered(paths, each, store, verify, verify_all, _ROW))


def read_records(
    paths: list[str],
    counts: np.ndarray,
    read: Callable[[tf.Tensor], tf.data.Dataset],
    max_pixels: int,
    place: str,
    verify_all: bool,
) -> decoding.Found:
    """Returns the sizes of the images in TFRecord files.

    Args:
      paths: of the files.
      counts: of their records, int64 [n].
      read: path, string [] -> records of `image` and, if they have one,
        `label`.
      place: the pattern that the files match, and how they are parsed.
      max_pixels, verify_all: as of `read_sizes`.

    Raises:
      UserError: for files of other numbers of records.
    """

    def verify(files: Sequence[str], counts: np.ndarray) -> np.ndarray:
        def of_file(number: tf.Tensor, file: tf.Tensor) -> tf.data.Dataset:
            about = {"label": tf.zeros([], tf.int64)}
            return read(file).map(lambda r: about | r | {"file": number})

        records = (
            tf.data.Dataset.from_tensor_slices(list(files))
            .enumerate()
            .interleave(
                of_file,
                min(_FILES_AT_A_TIME, len(files)),
                num_parallel_calls=tf.data.AUTOTUNE,
            )
        )
        what = f"images of {len(files):,} TFRecord files"
        check = functools.partial(_check, bytes, max_pixels, False)
        return _verified(records, check, counts, what)

    store = _store(place, max_pixels, "records")
    return _found(_remembered(paths, counts, store, verify, verify_all, _ROW))


def inspect_records(
    paths: list[str], place: str, verify_all: bool = False
) -> list[record_files.Contents | None]:
    """Returns what TFRecord files hold; None of one that holds no records.

    Call it before TensorFlow reads the files. `place` is what they are of.

    Raises:
      UserError: for a file that is damaged.
    """

    def inspect(path: str) -> tuple[int, int]:
        try:
            records, compression = record_files.inspect(path)
            return records, _COMPRESSIONS.index(compression)
        except record_files.ForeignFileError:
            return 0, len(_COMPRESSIONS)

    def verify(files: Sequence[str], counts: np.ndarray) -> np.ndarray:
        del counts
        what = f"lengths of {len(files):,} TFRecord files"
        threads = _threads(files, _FILES_AT_A_TIME)
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            found = [*_logged(pool.map(inspect, files), what)]
        return np.array(found, _CONTENTS)

    # Nobody can set the time of the status: a wrong length ends the process.
    store = _store(place, "contents")
    each = np.ones([len(paths)], np.int64)
    found = _remembered(
        paths, each, store, verify, verify_all, _CONTENTS, "st_ctime_ns"
    )
    return [
        record_files.Contents(records, _COMPRESSIONS[kind])
        if kind < len(_COMPRESSIONS)
        else None
        for records, kind in found.tolist()
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
    read: Callable[[T], bytes], max_pixels: int, upright: bool, value: T
) -> tuple[int, ...]:
    """Returns the numbers of `decoding.Verified`, and the digest or 0."""
    reason = 0
    try:
        contents = read(value)
        found = decoding.verify(contents, max_pixels, upright)
        return *found, digest(contents)
    except decoding.UnreadableError as error:
        reason = error.reason
    except errors.UserError:
        reason = decoding.CLOSED
    except Exception:  # Decoders raise errors of any type.
        pass
    return *decoding.Verified(0, 0, reason, 0, 0, -1), 0


def digest(contents: bytes) -> int:
    """Returns 64 bits that equal contents share, and others do not."""
    # Not for security: hosts in FIPS mode refuse it otherwise.
    short = hashlib.blake2b(contents, digest_size=8, usedforsecurity=False)
    return int.from_bytes(short.digest(), "little", signed=True)


def _verified(
    records: tf.data.Dataset,
    check: Callable[[bytes], tuple[int, ...]],
    counts: np.ndarray,
    what: str,
) -> np.ndarray:
    """Returns the rows of file after file; verifies in parallel.

    Args:
      records: `image`, `label`, and `file`, the number of its file.
      check: `image` -> numbers; see `_check`.
      counts: of the rows of each file, int64 [n].
      what: describes all images.
    """

    def check_some(images: np.ndarray) -> np.ndarray:
        return np.array([check(image) for image in images], np.int64)

    def rows_of(some: Record) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.numpy_function(check_some, [some["image"]], tf.int64)
        found.set_shape([None, len(_ROW.names or ()) - 1])
        return some["file"], tf.concat([found, some["label"][:, None]], 1)

    batches = (
        records.batch(_AT_A_TIME)
        .map(rows_of, tf.data.AUTOTUNE, deterministic=True)
        .rebatch(_BATCH)
    )
    rows = np.zeros([counts.sum()], _ROW)
    ends = np.cumsum(counts)
    places = ends - counts  # Of the next row of each file.
    for file, found in _logged(batches.as_numpy_iterator(), what, _BATCH):
        # Files are read in turn. The rows of one follow each other.
        order = np.argsort(file, kind="stable")
        file, found = file[order], found[order]
        place = (
            places[file] + np.arange(len(file)) - np.searchsorted(file, file)
        )
        if (place >= ends[file]).any():
            break
        for column, values in zip(_ROW.names or (), found.T, strict=True):
            rows[column][place] = values
        np.add.at(places, file, 1)
    else:
        if np.array_equal(places, ends):
            return rows
    raise errors.UserError(
        f"{what}: they have changed since they were counted: repeat the command"
    )


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


def _found(rows: np.ndarray) -> decoding.Found:
    sizes = np.stack([rows["height"], rows["width"]], axis=1)
    others = (np.array(rows[name]) for name in (_ROW.names or ())[2:])
    return decoding.Found(sizes, *others)


def _remembered(
    paths: Sequence[str],
    counts: np.ndarray,
    store: str,
    verify: Callable[[Sequence[str], np.ndarray], np.ndarray],
    verify_all: bool,
    form: np.dtype,
    time_of: str = "st_mtime_ns",
) -> np.ndarray:
    """Returns what is found in file after file; verifies those not known.

    Args:
      paths: of the files.
      counts: of their rows, int64 [n].
      store: where what is known of them is.
      verify: some of the paths, and their counts -> all their rows.
      verify_all: whether to verify known files, too.
      form: of a row; the first number is 0 in rows that are not remembered.
      time_of: the local file's time that must not have changed.
    """
    known = _load(store, form)
    if verify_all:
        # If the verification fails, the next start remembers nothing.
        with contextlib.suppress(OSError):
            os.remove(store)
    keys = np.fromiter(map(_key, paths), np.int64, len(paths))
    stats = _stats(paths, time_of)
    # Where the files are among those that are known.
    places = np.zeros([len(paths)], np.int64)
    is_known = np.zeros([len(paths)], bool)
    if len(known.keys) and not verify_all:
        order = np.argsort(known.keys)
        places = np.searchsorted(known.keys, keys, sorter=order)
        places = order[np.minimum(places, len(order) - 1)]
        is_known = (known.keys[places] == keys) & (stats[:, 0] >= 0)
        is_known &= (known.stats[places] == stats).all(axis=1)
        is_known &= known.counts[places] == counts
    if is_known.all():
        return known.select(places).rows
    unknown = np.flatnonzero(~is_known)
    rows = verify(Names.of(paths).take(unknown), counts[unknown])
    new = _Known(keys[unknown], stats[unknown], counts[unknown], rows)
    found = known.select(places[is_known]).joined(new)
    order = np.argsort(np.concatenate([np.flatnonzero(is_known), unknown]))
    found = found.select(order)
    # Unreadable ones are tried again: the disk may have been at fault.
    is_whole = found.rows[(form.names or ("",))[0]] != 0
    bad = np.repeat(np.arange(len(keys)), found.counts)[~is_whole]
    kept = found.stats[:, 0] >= 0
    kept[bad] = False
    _, first = np.unique(keys, return_index=True)
    others = known.select(~np.isin(known.keys, keys))
    _save(store, others.joined(found.select(np.sort(first[kept[first]]))))
    return found.rows


def _threads(paths: Sequence[str], local: int) -> int:
    """Returns how many files are read at a time, if local ones are `local`."""
    return _THREADS if "://" in paths[0] else local


def _read(path: str) -> bytes:
    return files.read(path, _MAX_IMAGE)


def _stats(paths: Sequence[str], time_of: str) -> np.ndarray:
    """Returns lengths, and times of change in ns, int64 [n, 2]; -1: no file."""
    one = functools.partial(_stat, time_of=time_of)
    pair = np.dtype((np.int64, 2))
    if not any("://" in path for path in paths):
        return np.fromiter(map(one, paths), pair, len(paths))
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return np.fromiter(pool.map(one, paths), pair, len(paths))


def _stat(path: str, time_of: str) -> tuple[int, int]:
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


# ---- The store ---------------------------------------------------------------


def _store(place: str, *options: object) -> str:
    """Returns the file for what is known of a place's images."""
    key = " ".join(map(str, [_VERSION, *options, _absolute(place)]))
    digest = hashlib.sha256(key.encode("utf-8")).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "tf_contrastive", "images", f"{digest}.npy")


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _key(path: str) -> int:
    return digest(_absolute(path).encode("utf-8", "surrogateescape"))


def _load(store: str, form: np.dtype) -> _Known:
    """Reads what is known; nothing, if the store is absent or damaged."""
    try:
        files.size(store)  # Of a regular file.
        with tf.io.gfile.GFile(store, "rb") as file:
            check, *parts = (
                np.lib.format.read_array(file, allow_pickle=False)
                for _ in range(1 + len(_Known._fields))
            )
        known = _Known(*parts)
        if check == _checksum(known) and known.rows.dtype == form:
            return known
    except Exception:  # Damaged files raise errors of any type.
        pass
    numbers = np.zeros([0], np.int64)
    pairs = np.zeros([0, 2], np.int64)
    return _Known(numbers, pairs, numbers, np.zeros([0], form))


def _save(store: str, known: _Known) -> None:
    """Writes what is known, if that is possible."""
    with (
        contextlib.suppress(errors.UserError),
        files.replacing(store) as unfinished,
        tf.io.gfile.GFile(unfinished, "wb") as file,
    ):
        for array in (_checksum(known), *known):
            np.lib.format.write_array(file, array, allow_pickle=False)


def _checksum(known: _Known) -> np.ndarray:
    sums = [zlib.crc32(np.ascontiguousarray(array).data) for array in known]
    return np.array(sum(sums), np.int64)
