"""Files of embeddings: what they hold, and where they cannot be written."""

import gc
import sys

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive.base import errors, files
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


@pytest.mark.parametrize("format", ["npz", "parquet"])
def test_what_is_written_is_read_again_from_shards_too(format, tmp_path):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    h = np.random.default_rng(0).random([5, 3], np.float32)
    columns = {
        "labels": np.array([1, 0, 1, 1, 0]),
        "indices": np.array([0, 1, 3, 4, 5]),
        "paths": np.array([f"ü/{i}.png" for i in range(5)]),
    }
    names = ("cat", "dog")
    whole, bare = (str(tmp_path / f"{x}.{format}") for x in ("whole", "bare"))
    output_files.write(
        whole, h, label_names=["cat", "dog"], format=format, **columns
    )
    output_files.write(bare, h, format=format)
    for i, part in enumerate((slice(0, 2), slice(2, 5))):
        output_files.write(
            str(tmp_path / f"parts-{i:05}-of-00002.{format}"),
            h[part],
            label_names=["cat", "dog"],
            format=format,
            **{name: values[part] for name, values in columns.items()},
        )
    parts = str(tmp_path / f"parts.{format}")
    for path in (whole, parts):
        found = output_files.read(path)
        np.testing.assert_array_equal(found.embeddings, h)
        for name, values in columns.items():
            assert getattr(found, name).tolist() == values.tolist()
        assert found.label_names == names
    found = output_files.read(bare)
    np.testing.assert_array_equal(found.embeddings, h)
    assert found[1:] == (None, None, None, ())
    # A part of the shards would be a part of the images.
    (tmp_path / f"parts-00000-of-00002.{format}").unlink()
    with pytest.raises(errors.UserError, match="1 of 2 shards"):
        output_files.read(parts)
    for content in (b"", b"\0" * 99, (tmp_path / whole).read_bytes()[:-40]):
        (tmp_path / whole).write_bytes(content)
        with pytest.raises(Exception):  # noqa: B017
            output_files.read(whole)


@pytest.mark.parametrize(
    "rows",
    [
        [["a"], ["b"]],
        ["a", "b"],
        # As many numbers as two rows of two.
        [[1.0], [1.0, 2.0, 3.0]],
        [None, [1.0, 2.0]],
    ],
    ids=["lists of texts", "texts", "ragged", "absent row"],
)
def test_columns_of_other_files_are_refused(rows, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "e.parquet")
    parquet.write_table(pyarrow.table({"embedding": rows}), path)
    with pytest.raises(errors.UserError, match=path):
        output_files.read(path)


@pytest.mark.parametrize("name", ["file/out.npz", "folder"])
def test_a_file_that_cannot_be_written_is_an_error_of_the_user(name, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(errors.UserError, match="cannot write"):
        output_files.write(str(tmp_path / name), np.zeros([1, 2]))
    with pytest.raises(errors.UserError, match="cannot write"):
        files.check_writable(str(tmp_path / name))


def test_a_full_disk_is_one_error(monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    columns = {"embeddings": np.zeros([300, 300], np.float32)}
    with pytest.raises(OSError, match="No space left"):
        output_files._npz("/dev/full", columns, [])
    gc.collect()
    assert not ignored
