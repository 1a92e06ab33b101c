"""Files of embeddings: npz, TFRecord or Parquet, whole or absent."""

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive.base import files

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
      labels: int [n], or [n, C] of several labels per image.
      label_names: name of class 0, 1, ...
      indices: int [n], the example's position in its split.
      paths: bytes or str [n], the file of each image.
      format: one of `config.embed.EMBEDDING_FORMATS`.
    """
    if paths is not None:
        paths = np.array([*map(tf.compat.as_str, paths)], np.str_)
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


def write_npz(path: str, columns: Columns, label_names: list[str]) -> None:
    """Writes a local npz file; see `write`."""
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
            features = dict(zip(names, map(_feature, row), strict=True))
            example = tf.train.Example(features={"feature": features})
            writer.write(example.SerializeToString())


def _feature(value: Any) -> tf.train.Feature:
    """Returns a feature of a text, of integers or of floats."""
    values: dict[str, Any]
    if isinstance(value, str):
        values = {"bytes_list": {"value": [tf.compat.as_bytes(value)]}}
    elif np.asarray(value).dtype.kind == "f":
        values = {"float_list": {"value": np.ravel(value)}}
    else:
        values = {"int64_list": {"value": np.ravel(value)}}
    return tf.train.Feature(**values)


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
            several = np.ndim(values) > 1  # Labels.
            column = pyarrow.array(list(values) if several else values)
            arrays[COLUMNS[name]] = column
    table = pyarrow.table(arrays)
    if label_names:
        metadata = {"label_names": json.dumps(label_names)}
        table = table.replace_schema_metadata(metadata)
    parquet.write_table(table, path)


_WRITERS = {"npz": write_npz, "tfrecord": _tfrecord, "parquet": _parquet}
