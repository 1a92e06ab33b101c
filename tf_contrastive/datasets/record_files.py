"""Records of TFRecord files, and their lengths before the files are read.

A record is its length (8 bytes), a checksum of that (4), the data, and a
checksum of the data (4). TensorFlow allocates what a length says: a file of 112
bytes that says 2**40 ends the process. Here only the lengths are read. Their
checksums are left to TensorFlow, which compares them first.
"""

import contextlib
import gzip
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
import tensorflow as tf

from tf_contrastive import errors, files

_LENGTH = struct.Struct("<Q")
_HEADER, _FOOTER = 12, 4
# A message of protocol buffers is not larger.
_MAX_RECORD = (1 << 31) - 1
# Bytes read at a time. Disks skip to the next record at little cost; object
# stores are faster at reading on.
_LOCAL, _REMOTE, _ZIPPED = 1 << 12, 1 << 23, 1 << 16
ZIPPED = r".*\.gz(ip)?"


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


def count(path: str) -> int:
    """Returns the number of records in a file; gzip by its ending.

    Raises:
      UserError: if a length does not fit the file, or it is no regular file.
    """
    try:
        size = files.size(path)
        with _opened(path) as (stream, chunk, is_zipped):
            return _walk(path, stream, chunk, None if is_zipped else size)
    except (EOFError, zlib.error, OSError, tf.errors.OpError) as error:
        raise errors.UserError(
            f"{path} cannot be read ({errors.first_line(error)}): copy or write"
            " it again"
        ) from error


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[IO[bytes] | Any, int, bool]]:
    """Opens a file: (stream, bytes to read at a time, whether it is gzip)."""
    is_zipped = bool(re.fullmatch(ZIPPED, path))
    local = files.local_path(path)
    if is_zipped or local is None:
        with tf.io.gfile.GFile(path, "rb") as file:
            if not is_zipped:
                yield file, _REMOTE, False
                return
            with gzip.GzipFile(fileobj=file) as unzipped:
                yield unzipped, _ZIPPED, True
    else:
        with open(local, "rb", buffering=0) as file:
            yield file, _LOCAL, False


def _walk(
    path: str, stream: IO[bytes] | Any, chunk: int, size: int | None
) -> int:
    """Counts the records; `size` of the stream is None if it is not known."""
    records = offset = before = start = 0
    part = b""

    def damaged(at: int, reason: str) -> errors.UserError:
        return errors.UserError(
            f"{path} is damaged, or not a TFRecord file: the record at byte"
            f" {at:,} {reason}: copy or write it again"
        )

    while offset != size:
        if offset + _HEADER > start + len(part):
            if stream.seek(offset) not in (offset, None):
                raise damaged(before, "is cut off")
            start, part = offset, stream.read(chunk)
            if not part and size is None:
                break
        if offset + _HEADER > start + len(part):
            raise damaged(offset, "is cut off")
        at = offset - start
        header = part[at : at + _HEADER]
        if not any(header):  # A hole. The checksum of 0 is not 0.
            raise damaged(offset, "is no record")
        (length,) = _LENGTH.unpack_from(header)
        end = offset + _HEADER + length + _FOOTER
        if length > _MAX_RECORD:
            raise damaged(offset, f"claims {length:,} bytes")
        if size is not None and end > size:
            left = max(size - offset - _HEADER - _FOOTER, 0)
            raise damaged(
                offset, f"claims {length:,} bytes, of which {left:,} follow"
            )
        before, offset, records = offset, end, records + 1
    return records
