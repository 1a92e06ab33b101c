"""Records of TFRecord files, counted before TensorFlow reads them.

A record is its length (8 bytes), a checksum of that (4), the data, and a
checksum of the data (4). TensorFlow allocates what a length says: a file of 112
bytes that says 2**40 ends the process. Here only the lengths are read. Their
checksums are left to TensorFlow, which compares them first.
"""

import struct
from collections.abc import Callable, Sequence
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
# What is found of a file.
_ROW = np.dtype([("is_counted", "i1"), ("records", "<i8")])


def find(
    paths: list[str],
    place: str,
    read: Callable[[str], tuple[int, ...]],
    form: np.dtype,
    options: tuple[object, ...],
) -> np.ndarray:
    """Returns what is found in each file; see `remembered.find`."""
    # ctime, which users cannot set, unlike mtime: a file that changed unnoticed
    # could end the process.
    return remembered.find(
        paths,
        place,
        read,
        form,
        what="TFRecord files",
        threads=_FILES_AT_A_TIME,
        options=options,
        time_of="st_ctime_ns",
    )


def count_all(paths: list[str], place: str) -> np.ndarray:
    """Counts the records of files, int64 [n].

    Call it before TensorFlow reads the files. `place` is what they are of.

    Raises:
      UserError: if a length does not fit a file, or it is no regular file.
    """
    rows = find(paths, place, lambda p: (1, count(p)), _ROW, ("records",))
    return rows["records"]


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
            raise errors.UserError(
                f"{path} has {records:,} of {count:,} records: {advice}"
            )


def count(path: str) -> int:
    """Counts a file's records; `UserError` if it is no whole TFRecord file."""
    local = files.local_path(path)
    try:
        size = files.size(path)
        if local is not None:
            with open(local, "rb", buffering=0) as file:
                return _walk(path, file, _LOCAL, size)
        with tf.io.gfile.GFile(path, "rb") as remote:
            return _walk(path, remote, _REMOTE, size)
    except (OSError, tf.errors.OpError) as error:
        raise errors.UserError(
            f"{path} cannot be read ({errors.first_line(error)}): copy or write"
            " it again"
        ) from error


def _walk(path: str, stream: IO[bytes] | Any, chunk: int, size: int) -> int:
    """Counts the records of a stream of `size` bytes, `chunk` at a time."""
    records = offset = start = 0
    part = b""

    def damaged(reason: str) -> errors.UserError:
        return errors.UserError(
            f"{path} is no TFRecord file, compressed, or damaged: the record at"
            f" byte {offset:,} {reason}: copy or write it again"
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
