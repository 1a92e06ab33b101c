"""Records of TFRecord files, counted before TensorFlow reads them.

A record is its length (8 bytes), a checksum of that (4), the data, and a
checksum of the data (4). TensorFlow allocates what a length says: a file of 112
bytes that says 2**40 ends the process. Here only the lengths are read. Their
checksums are left to TensorFlow, which compares them first.
"""

import concurrent.futures
import contextlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files
from tf_contrastive.datasets import remembered

_LENGTH = struct.Struct("<Q")
_HEADER, _FOOTER = 12, 4
# A message of protocol buffers is not larger.
_MAX_RECORD = (1 << 31) - 1
# Bytes read at a time. Disks skip to the next record at little cost; object
# stores are faster at reading on.
_LOCAL, _REMOTE = 1 << 12, 1 << 23
# Files that are counted at a time.
_FILES_AT_A_TIME = 16
# What is found of a file: the number of its records plus 1; 0: it has none.
_ROW = np.dtype([("records_and_1", "<i8")])


def example(columns: Mapping[str, Any]) -> bytes:
    """Serializes a `tf.train.Example` of bytes, texts, integers and floats."""
    features = {}
    values: dict[str, Any]
    for name, value in columns.items():
        if isinstance(value, str | bytes):
            values = {"bytes_list": {"value": [tf.compat.as_bytes(value)]}}
        elif np.asarray(value).dtype.kind == "f":
            values = {"float_list": {"value": np.ravel(value)}}
        else:
            values = {"int64_list": {"value": np.ravel(value)}}
        features[name] = tf.train.Feature(**values)
    whole = tf.train.Example(features={"feature": features})
    return whole.SerializeToString()


def count_all(paths: list[str], place: str) -> np.ndarray:
    """Counts the records of files, int64 [n]; -1: it is no TFRecord file.

    Call it before TensorFlow reads the files. `place` is what they are of.

    Raises:
      UserError: if a length does not fit a file, or it is no regular file.
    """

    def one(path: str) -> int:
        records = count(path)
        return 0 if records is None else records + 1

    def read(some: Sequence[str]) -> np.ndarray:
        what = f"lengths of {len(some):,} TFRecord files"
        threads = remembered.threads(some, _FILES_AT_A_TIME)
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            found = [*remembered.logged(pool.map(one, some), what)]
        return np.array(found, np.int64).view(_ROW)

    store = remembered.place(place, "records")
    # ctime, which users cannot set, unlike mtime: a file that changed unnoticed
    # could end the process.
    found = remembered.find(paths, store, read, _ROW, time_of="st_ctime_ns")
    return found["records_and_1"] - 1


def check_counts(
    paths: list[str],
    expected: Sequence[int] | np.ndarray,
    place: str,
    advice: str,
) -> None:
    """Raises `UserError` unless files hold so many records."""
    every = count_all(paths, place).tolist()
    for path, records, count in zip(paths, every, expected, strict=True):
        if records != count:
            there = f"{records:,}" if records >= 0 else "none"
            raise errors.UserError(
                f"{path} has {there} of {count:,} records: {advice}"
            )


def count(path: str) -> int | None:
    """Counts a file's records; None: it does not start with one."""
    try:
        size = files.size(path)
        with _opened(path) as file:
            head = file.read(_HEADER)
            if head and not _is_header(head):
                return None
            is_local = files.local_path(path) is not None
            return _walk(path, file, _LOCAL if is_local else _REMOTE, size)
    except (OSError, tf.errors.OpError) as error:
        raise errors.UserError(
            f"{path} cannot be read ({errors.first_line(error)}): copy or write"
            " it again"
        ) from error


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes] | Any]:
    local = files.local_path(path)
    if local is None:
        with tf.io.gfile.GFile(path, "rb") as remote:
            yield remote
    else:
        with open(local, "rb", buffering=0) as file:
            yield file


def _is_header(start: bytes) -> bool:
    """Whether bytes are a length and its checksum, a masked CRC-32C."""
    crc = 0xFFFFFFFF
    for byte in start[: _LENGTH.size]:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return start[_LENGTH.size : _HEADER] == masked.to_bytes(4, "little")


def _walk(path: str, stream: IO[bytes] | Any, chunk: int, size: int) -> int:
    """Counts the records of a stream of `size` bytes, `chunk` at a time."""
    records = offset = start = 0
    part = b""

    def damaged(reason: str) -> errors.UserError:
        return errors.UserError(
            f"{path} is damaged: the record at byte {offset:,} {reason}: copy"
            " or write it again"
        )

    while offset != size:
        if offset + _HEADER > start + len(part):
            stream.seek(offset)
            start, part = offset, stream.read(chunk)
        header = part[offset - start :][:_HEADER]
        if len(header) < _HEADER:
            raise damaged("is cut off")
        if not any(header):  # A hole. The checksum of 0 is not 0.
            raise damaged("is no record")
        (length,) = _LENGTH.unpack_from(header)
        end = offset + _HEADER + length + _FOOTER
        if length > _MAX_RECORD or end > size:
            raise damaged(f"claims {length:,} bytes")
        offset, records = end, records + 1
    return records
