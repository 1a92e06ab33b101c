"""Records of TFRecord files; what a file holds, before TensorFlow reads it.

A record is its length (8 bytes), a checksum of that (4), the data, and a
checksum of the data (4). TensorFlow allocates what a length says: a file of 112
bytes that says 2**40 ends the process. Here only the lengths are read. Their
checksums are left to TensorFlow, which compares them first.
"""

import contextlib
import gzip
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files

_LENGTH = struct.Struct("<Q")
_HEADER, _FOOTER = 12, 4
# A message of protocol buffers is not larger.
_MAX_RECORD = (1 << 31) - 1
# Bytes read at a time. Disks skip to the next record at little cost; object
# stores are faster at reading on.
_LOCAL, _REMOTE, _ZIPPED = 1 << 12, 1 << 23, 1 << 16
# Bytes that show what a file is.
_HEAD = 1 << 12
# Other files that people have beside TFRecords, or take for them -> their first
# bytes.
_FORMATS = {
    "a Parquet file": b"PAR1",
    "an Arrow file": b"ARROW1",
    "an Arrow stream": b"\xff\xff\xff\xff",
    "a Riegeli file": b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f",
    "a RecordIO file of MXNet": b"\x0a\x23\xd7\xce",
    "an HDF5 file": b"\x89HDF",
    "a ZIP archive": b"PK\x03\x04",
    "a bzip2 file": b"BZh",
    "an xz file": b"\xfd7zXZ",
    "a Zstandard file": b"\x28\xb5\x2f\xfd",
    "a NumPy array": b"\x93NUMPY",
    "a JPEG image": b"\xff\xd8\xff",
    "a PNG image": b"\x89PNG",
}
_TAR, _TAR_AT = b"ustar", 257


class Contents(NamedTuple):
    """What a file holds.

    Attributes:
      records: their number.
      compression: as of `tf.data.TFRecordDataset`: "", "GZIP" or "ZLIB".
    """

    records: int
    compression: str


class ForeignFileError(errors.UserError):
    """A file that does not start with a record."""


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


def inspect(path: str) -> Contents:
    """Counts the records in a file, which may be compressed; by its bytes.

    Raises:
      ForeignFileError: if it does not start with a record.
      UserError: if a length does not fit the file, or it is no regular file.
    """
    try:
        size = files.size(path)
        with _opened(path) as file:
            head = file.read(_HEAD)
            if not head:
                return Contents(0, "")
            file.seek(0)
            compression, start = _start(head)
            if start and not _is_header(start):
                raise ForeignFileError(_described(path, compression, start))
            if not compression:
                chunk = _REMOTE if files.local_path(path) is None else _LOCAL
                return Contents(_walk(path, file, chunk, size), "")
            if compression == "GZIP":
                content: Any = gzip.GzipFile(fileobj=file)
            else:
                content = _Zlib(file)
            return Contents(_walk(path, content, _ZIPPED, None), compression)
    except (EOFError, zlib.error, OSError, tf.errors.OpError) as error:
        raise errors.UserError(
            f"{path} cannot be read ({errors.first_line(error)}): copy or write"
            " it again"
        ) from error


def foreign(path: str) -> errors.UserError:
    """Returns the error for a file that holds no records."""
    try:
        inspect(path)
    except errors.UserError as error:
        return error
    return errors.UserError(f"{path} has changed: repeat the command")


def reader(
    paths: list[str], contents: list[Contents]
) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """Returns path, string [] -> `tf.data.Dataset` of serialized records."""
    zipped: dict[str, list[str]] = {}
    for path, (_, compression) in zip(paths, contents, strict=True):
        if compression:
            zipped.setdefault(compression, []).append(path)

    def read(file: tf.Tensor) -> tf.data.Dataset:
        kind = tf.constant("")
        for compression, of in zipped.items():
            kind = tf.where(tf.reduce_any(file == of), compression, kind)
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
    if _is_header(head):
        return "", head
    for compression, bits in ("GZIP", 31), ("ZLIB", 15):
        with contextlib.suppress(zlib.error):
            return compression, zlib.decompressobj(bits).decompress(head, _HEAD)
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


def _described(path: str, compression: str, start: bytes) -> str:
    """Describes a file that does not start with a record."""
    kinds = [
        kind for kind, magic in _FORMATS.items() if start.startswith(magic)
    ]
    if start[_TAR_AT:].startswith(_TAR):
        kinds = ["a tar archive"]
    if not kinds and all(byte >= 32 or byte in b"\t\n\r" for byte in start):
        kinds = ["a text file"]
    if not kinds:
        return (
            f"{path} is damaged, or not a TFRecord file: the record at byte 0"
            " has a wrong checksum: copy or write it again"
        )
    zipped = f" compressed by {compression.lower()}" * bool(compression)
    return (
        f"{path} is {kinds[0]}{zipped}, not a TFRecord file: write its images"
        " as TFRecords, or to a folder for folder:PATH"
    )


class _Zlib:
    """The content of a zlib file, read from its start to its end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._position = file, 0
        self._stream = zlib.decompressobj()

    def seek(self, position: int) -> int:
        """Goes forward; returns the place, which is earlier if it ends."""
        while self._position < position:
            if not self.read(min(position - self._position, _ZIPPED)):
                break
        return self._position

    def read(self, size: int) -> bytes:
        """Returns the next bytes; fewer only at the end."""
        content = b""
        while len(content) < size and not self._stream.eof:
            data = self._stream.unconsumed_tail or self._file.read(_ZIPPED)
            if not data:
                raise EOFError("it is cut off")
            content += self._stream.decompress(data, size - len(content))
        if self._stream.eof and (
            self._stream.unused_data or self._file.read(1)
        ):
            raise zlib.error("there are data after its end")
        self._position += len(content)
        return content


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
