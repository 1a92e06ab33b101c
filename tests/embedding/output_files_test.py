"""Files of embeddings: what they hold, and where they cannot be written."""

import gc
import sys

import numpy as np
import pytest
import tensorflow as tf
from pyarrow import parquet

from tf_contrastive.embedding import output_files


@pytest.mark.parametrize("scheme", ["", "ram://"])
def test_npz_has_embeddings_labels_and_names(scheme, tmp_path):
    path = f"{scheme}{tmp_path}/new/out.npz"
    embeddings = np.random.default_rng(0).random([3, 2], np.float32)
    output_files.write(path, embeddings[:1])
    output_files.write(path, embeddings, np.array([1, 0, 1]), ["cat", "dog"])
    with tf.io.gfile.GFile(path, "rb") as file:
        found = np.load(file, allow_pickle=False)
        np.testing.assert_array_equal(found["embeddings"], embeddings)
        assert found["labels"].tolist() == [1, 0, 1]
        assert found["label_names"].tolist() == ["cat", "dog"]
    assert tf.io.gfile.listdir(f"{scheme}{tmp_path}/new") == ["out.npz"]


def test_a_full_disk_is_one_error(monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    columns = {"embeddings": np.zeros([300, 300], np.float32)}
    with pytest.raises(OSError, match="No space left"):
        output_files.write_npz("/dev/full", columns, [])
    gc.collect()
    assert not ignored


def test_a_file_without_rows_has_the_types_of_others(tmp_path):
    schemas = []
    for rows in (0, 2):
        path, h = str(tmp_path / f"{rows}"), np.zeros([rows, 1], "f")
        paths = np.array([b"a", b"b"][:rows])
        output_files.write(path, h, paths=paths, format="parquet")
        schemas.append(parquet.read_schema(path))
    assert schemas[0] == schemas[1]
