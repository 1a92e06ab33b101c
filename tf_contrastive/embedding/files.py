"""Files of embeddings: npz, TFRecord or Parquet, each there whole or not."""

import contextlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_contrastive import errors

# Of a file, in this order; all but the first may be absent.
COLUMNS = ("embeddings", "labels", "indices", "paths")


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
    """Writes embeddings, and what is known of each.

    The file appears whole or not at all, on any filesystem that `tf.io.gfile`
    writes. npz: an array of each argument's name. TFRecord: `tf.train.Example`s
    of `embedding`, `label`, `index` and `path`. Parquet: columns of these
    names, and the label names as JSON in the schema's metadata.

    Args:
      path: file to write; an existing one is replaced.
      embeddings: float32 [n, D].
      labels: int [n], or None.
      label_names: name of class 0, 1, ...
      indices: int [n], the example's place in its split; or None.
      paths: bytes or str [n], the file of each image; or None.
      format: one of `config.EMBEDDING_FORMATS`.

    Raises:
      UserError: if it cannot be written.
    """
    columns = dict(
        zip(COLUMNS, (embeddings, labels, indices, paths), strict=True)
    )
    columns = {k: np.asarray(v) for k, v in columns.items() if v is not None}
    if "paths" in columns:
        columns["paths"] = _as_text(columns["paths"])
    label_names = [str(name) for name in label_names]
    with _writing(path) as partial:
        # Some are written with seeks, which object stores do not have.
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, "embeddings")
            _WRITERS[format](local, columns, label_names)
            tf.io.gfile.copy(local, partial, overwrite=True)
        tf.io.gfile.rename(partial, path, overwrite=True)


def _as_text(paths: np.ndarray) -> np.ndarray:
    return np.array([p.decode() if isinstance(p, bytes) else p for p in paths])


def _npz(
    path: str, columns: Mapping[str, np.ndarray], label_names: list[str]
) -> None:
    names = {"label_names": np.array(label_names)} if label_names else {}
    # To an open file: a name would get an ending.
    with open(path, "wb") as file:
        np.savez(file, **columns, **names)


def _tfrecord(
    path: str, columns: Mapping[str, np.ndarray], label_names: list[str]
) -> None:
    del label_names

    def numbers(value):
        return tf.train.Feature(
            int64_list=tf.train.Int64List(value=[int(value)])
        )

    makers = {
        "embeddings": lambda row: tf.train.Feature(
            float_list=tf.train.FloatList(value=row)
        ),
        "labels": numbers,
        "indices": numbers,
        "paths": lambda text: tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[text.encode()])
        ),
    }
    with tf.io.TFRecordWriter(path) as writer:
        for row in zip(*columns.values(), strict=True):
            feature = {
                _singular(name): makers[name](value)
                for name, value in zip(columns, row, strict=True)
            }
            example = tf.train.Example(
                features=tf.train.Features(feature=feature)
            )
            writer.write(example.SerializeToString())


def _parquet(
    path: str, columns: Mapping[str, np.ndarray], label_names: list[str]
) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = columns["embeddings"].astype(np.float32)
    arrays = {
        _singular(name): pyarrow.array(values)
        for name, values in columns.items()
        if name != "embeddings"
    }
    arrays = {
        "embedding": pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(rows.reshape(-1)), rows.shape[1]
        ),
        **arrays,
    }
    table = pyarrow.table(arrays)
    if label_names:
        metadata = {"label_names": json.dumps(label_names)}
        table = table.replace_schema_metadata(metadata)
    parquet.write_table(table, path)


_WRITERS = {"npz": _npz, "tfrecord": _tfrecord, "parquet": _parquet}
_SINGULAR = {"indices": "index"}


def _singular(name: str) -> str:
    return _SINGULAR.get(name, name.removesuffix("s"))


def check_format(format: str) -> None:
    """Raises `UserError` if a format needs what is not installed."""
    if format == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise errors.UserError(
            "format=parquet needs pyarrow, which is not installed: pip"
            " install 'tf_contrastive[beam]', or give format=npz"
        )


def check_writable(path: str) -> None:
    """Raises `UserError` if `write` could not write to `path`."""
    with _writing(path) as partial:
        with tf.io.gfile.GFile(partial, "w") as file:
            file.write("")
        tf.io.gfile.remove(partial)


@contextlib.contextmanager
def _writing(path: str) -> Iterator[str]:
    """Makes the folder; yields the name to write under until all is there."""
    try:
        if tf.io.gfile.isdir(path):
            raise IsADirectoryError("it is a folder")
        tf.io.gfile.makedirs(os.path.dirname(path) or ".")
        yield f"{path}.partial"
    except (OSError, tf.errors.OpError) as error:
        raise errors.cannot_write(
            path, error, "give a file in a folder that can be written"
        ) from error
