"""Records of TFRecord files; what a file holds, before TensorFlow reads it.

A record is its length (8 bytes), a checksum of that (4), the data, and a
checksum of the data (4). TensorFlow allocates what a length says: a file of 112
bytes that says 2**40 ends the process. Here only the lengths are read. Their
checksums are left to TensorFlow, which compares them first.
"""

import concurrent.futures
import contextlib
import gzip
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

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
_LOCAL, _REMOTE, _ZIPPED = 1 << 12, 1 << 23, 1 << 16
# Bytes that show what a file is.
_HEAD = 1 << 12
# Files that are inspected at a time.
_FILES_AT_A_TIME = 16
# What is found of a file; its compression, or that it holds no records.
_ROW = np.dtype([("records", "<i8"), ("compression", "i1")])
_COMPRESSIONS = ("", "GZIP")


class Contents(NamedTuple):
    """What a file holds.

    Attributes:
      records: their number.
      compression: as of `tf.data.TFRecordDataset`: "" or "GZIP".
    """

    records: int
    compression: str


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


def inspect_all(
    paths: list[str], place: str, read_all: bool = False
) -> list[Contents | None]:
    """Returns what files hold; None of one that does not start with a record.

    Call it before TensorFlow reads the files.

    Args:
      paths: of the files.
      place: what they are of.
      read_all: whether to read files again that are known.

    Raises:
      UserError: if a length does not fit a file, or it is no regular file.
    """

    def one(path: str) -> tuple[int, int]:
        if contents := inspect(path):
            return contents.records, _COMPRESSIONS.index(contents.compression)
        return 0, len(_COMPRESSIONS)

    def read(some: Sequence[str], counts: np.ndarray) -> np.ndarray:
        del counts
        what = f"lengths of {len(some):,} TFRecord files"
        threads = remembered.threads(some, _FILES_AT_A_TIME)
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            return np.array(
                [*remembered.logged(pool.map(one, some), what)], _ROW
            )

    store = remembered.place(place, "contents")
    each = np.ones([len(paths)], np.int64)
    # ctime, which users cannot set, unlike mtime: a file that changed unnoticed
    # could end the process.
    found = remembered.find(
        paths,
        each,
        store,
        read,
        _ROW,
        read_all=read_all,
        time_of="st_ctime_ns",
    )
    return [
        Contents(records, _COMPRESSIONS[kind])
        if kind < len(_COMPRESSIONS)
        else None
        for records, kind in found.tolist()
    ]


def check_counts(
    paths: list[str],
    expected: Sequence[int] | np.ndarray,
    place: str,
    read_all: bool,
    advice: str,
) -> None:
    """Raises `UserError` unless uncompressed files hold so many records."""
    every = inspect_all(paths, place, read_all)
    for path, contents, count in zip(paths, every, expected, strict=True):
        if contents != Contents(count, ""):
            there = f"{contents.records:,}" if contents else "none"
            raise errors.UserError(
                f"{path} has {there} of {count:,} uncompressed records:"
                f" {advice}"
            )


def inspect(path: str) -> Contents | None:
    """Returns what a file holds; None if it does not start with a record."""
    try:
        size = files.size(path)
        with _opened(path) as file:
            head = file.read(_HEAD)
            if not head:
                return Contents(0, "")
            file.seek(0)
            compression, start = _start(head)
            if start and not _is_header(start):
                return None
            if not compression:
                chunk = _REMOTE if files.local_path(path) is None else _LOCAL
                return Contents(_walk(path, file, chunk, size), "")
            content = gzip.GzipFile(fileobj=file)
            return Contents(_walk(path, content, _ZIPPED, None), compression)
    except (EOFError, zlib.error, OSError, tf.errors.OpError) as error:
        raise errors.UserError(
            f"{path} cannot be read ({errors.first_line(error)}): copy or write"
            " it again"
        ) from error


def reader(
    paths: list[str], contents: list[Contents]
) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """Returns path, string [] -> `tf.data.Dataset` of serialized records."""
    pairs = zip(paths, contents, strict=True)
    zipped = [path for path, of_file in pairs if of_file.compression]

    def read(file: tf.Tensor) -> tf.data.Dataset:
        kind = tf.constant("")
        if zipped:
            kind = tf.where(tf.reduce_any(file == zipped), "GZIP", kind)
        return tf.data.TFRecordDataset(file, compression_type=kind)

    return read


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes] | Any]:
    local = files.local_path(path)
    if local is None:
        with tf.io.gfile.GFile(path, "rb") as remote:
            yield remote
    else:
        with open(local, "rb", buffering=0) as file:
            yield file


def _start(head: bytes) -> tuple[str, bytes]:
    """Returns a file's compression, and the first bytes of its content."""
    if not _is_header(head):
        with contextlib.suppress(zlib.error):
            inflate = zlib.decompressobj(31).decompress  # Of gzip.
            return "GZIP", inflate(head, _HEAD)
    return "", head


def _is_header(start: bytes) -> bool:
    """Whether bytes start with a length and its checksum, a masked CRC-32C."""
    crc = 0xFFFFFFFF
    for byte in start[: _LENGTH.size]:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return start[_LENGTH.size : _HEADER] == masked.to_bytes(4, "little")


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
