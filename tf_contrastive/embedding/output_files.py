"""Files of embeddings: npz, TFRecord or Parquet, whole or absent."""

import json
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files
from tf_contrastive.config.embed import format_of

ADVICE = "use a file in a writable folder"

Columns = Mapping[str, np.ndarray]

# Column of a file -> name of one of its values, in this order; all columns but
# the first may be absent.
COLUMNS = {
    "embeddings": "embedding",
    "labels": "label",
    "indices": "index",
    "paths": "path",
}


def write(
    path: str,
    embeddings: np.ndarray,
    labels: np.ndarray | None = None,
    label_names: Sequence[str] = (),
    *,
    indices: np.ndarray | None = None,
    paths: np.ndarray | None = None,
    format: str = "npz",
) -> None:
    """Writes embeddings and their metadata, whole or not at all.

    npz: an array of each argument's name. TFRecord: `tf.train.Example`s of
    `embedding`, `label`, `index` and `path`. Parquet: columns of these names,
    and the label names as JSON in the schema's metadata.

    Args:
      path: file to write; an existing one is replaced.
      embeddings: float32 [n, D].
      labels: int [n].
      label_names: name of class 0, 1, ...
      indices: int [n], the example's position in its split.
      paths: bytes or str [n], the file of each image.
      format: one of `config.embed.EMBEDDING_FORMATS`.
    """
    if paths is not None:
        paths = np.array([tf.compat.as_str(path) for path in paths])
    values = (embeddings, labels, indices, paths)
    columns = {
        name: np.asarray(value)
        for name, value in zip(COLUMNS, values, strict=True)
        if value is not None
    }
    names = [str(name) for name in label_names]
    with files.replacing(path, ADVICE) as unfinished:
        if "://" not in path:
            _WRITERS[format](unfinished, columns, names)
            return
        # Some formats are written with seeks, which object stores lack.
        with files.temporary_folder() as folder:
            local = os.path.join(folder, "embeddings")
            _WRITERS[format](local, columns, names)
            tf.io.gfile.copy(local, unfinished)


def _npz(path: str, columns: Columns, label_names: list[str]) -> None:
    arrays: dict[str, Any] = dict(columns)
    if label_names:
        arrays["label_names"] = np.array(label_names)
    # As np.savez does it, but that leaves the archive open after a failed
    # write, and Python then prints a second error.
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, values, allow_pickle=False)


def _tfrecord(path: str, columns: Columns, label_names: list[str]) -> None:
    names = [COLUMNS[name] for name in columns]
    with tf.io.TFRecordWriter(path) as writer:
        for row in zip(*columns.values(), strict=True):
            values = dict(zip(names, row, strict=True))
            writer.write(_example(values))


def _parquet(path: str, columns: Columns, label_names: list[str]) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = columns["embeddings"].astype(np.float32)
    arrays = {
        "embedding": pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(rows.reshape(-1)), rows.shape[1]
        )
    }
    for name, values in columns.items():
        if name != "embeddings":
            arrays[COLUMNS[name]] = pyarrow.array(values)
    table = pyarrow.table(arrays)
    if label_names:
        metadata = {"label_names": json.dumps(label_names)}
        table = table.replace_schema_metadata(metadata)
    parquet.write_table(table, path)


_WRITERS = {"npz": _npz, "tfrecord": _tfrecord, "parquet": _parquet}


# ---- Reading -----------------------------------------------------------------

_UNREADABLE = EOFError, KeyError, OSError, ValueError, zipfile.BadZipFile


class Embeddings(NamedTuple):
    """Embeddings and their metadata; see `write`."""

    embeddings: np.ndarray
    labels: np.ndarray | None
    indices: np.ndarray | None
    paths: np.ndarray | None  # Of str.
    label_names: tuple[str, ...]


def read(path: str) -> Embeddings:
    """Reads a file of `write`, or all of its shards.

    The format follows from the extension, as `embed` chooses it. Of a path that
    does not exist, `NAME.npz`, the shards `NAME-00000-of-00009.npz`, ... are
    read.

    Raises:
      UserError: for an absent or damaged file, an incomplete set of shards, or
        TFRecord files.
    """
    kind = format_of(path)
    if kind not in _READERS:
        raise errors.UserError(
            f"{path}: embeddings are read from files npz or Parquet: write them"
            f" by `embed` with {errors.arg('format', 'npz')}"
        )
    parts = []
    for file in _shards(path):
        try:
            columns, names = _READERS[kind](file)
            rows = {len(values) for values in columns.values()}
            if "embeddings" not in columns or len(rows) != 1:
                raise ValueError(
                    f"it has {', '.join(columns) or 'nothing'}, not embeddings"
                    " with a row for each image"
                )
            if columns["embeddings"].dtype.kind not in "fiu":
                raise ValueError("its embeddings are not numbers")
        except (*_UNREADABLE, tf.errors.OpError) as error:
            raise errors.UserError(
                f"{file} cannot be read as embeddings in the format {kind}"
                f" ({errors.first_line(error)}): use a file that `embed` wrote"
            ) from error
        parts.append((columns, names))
    shared = set.intersection(*(set(columns) for columns, _ in parts))
    joined = {
        name: np.concatenate([columns[name] for columns, _ in parts])
        for name in shared
    }
    return Embeddings(
        joined["embeddings"],
        joined.get("labels"),
        joined.get("indices"),
        joined.get("paths"),
        parts[0][1],
    )


def _shards(path: str) -> list[str]:
    """Returns the files of a path: itself, or its shards."""
    if tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path):
        return [path]
    folder, name = os.path.split(path)
    stem, ending = os.path.splitext(name)
    pattern = rf"{re.escape(stem)}-\d{{5}}-of-(\d{{5}}){re.escape(ending)}"
    shards = files.entries(folder or ".", pattern)
    if not shards:
        raise errors.UserError(
            f"there is no file {path}, and no shards of it: use a file that"
            " `embed` wrote"
        )
    total = int(shards[0].removesuffix(ending)[-5:])
    if len(shards) != total:
        raise errors.UserError(
            f"{path}: {len(shards)} of {total} shards are there: repeat the"
            " command that writes them"
        )
    return shards


def _example(columns: Mapping[str, Any]) -> bytes:
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


_Read = tuple[dict[str, np.ndarray], tuple[str, ...]]


def _read_npz(path: str) -> _Read:
    with tf.io.gfile.GFile(path, "rb") as file:
        arrays = np.load(file, allow_pickle=False)
        if isinstance(arrays, np.ndarray):  # Of NumPy's own format, npy.
            return {"embeddings": arrays}, ()
        columns = {name: arrays[name] for name in COLUMNS if name in arrays}
        names = arrays.get("label_names", ())
        return columns, tuple(map(str, names))


def _read_parquet(path: str) -> _Read:
    import pyarrow
    from pyarrow import parquet

    with tf.io.gfile.GFile(path, "rb") as file:
        table = parquet.read_table(pyarrow.BufferReader(file.read()))
    columns = {
        name: table[key].to_numpy()
        for name, key in COLUMNS.items()
        if key in table.column_names and name != "embeddings"
    }
    if "embedding" in table.column_names:
        # Of rows that differ in length, or that are absent: ValueError.
        columns["embeddings"] = np.stack(table["embedding"].to_numpy())
    metadata = table.schema.metadata or {}
    return columns, tuple(json.loads(metadata.get(b"label_names", b"[]")))


_READERS = {"npz": _read_npz, "parquet": _read_parquet}
