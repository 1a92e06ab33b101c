"""Bulk embedding: the encoder's own outputs, in order, nothing changed."""

import json
import os
import uuid

import numpy as np
import PIL.Image
import pytest
import saved_run
import tensorflow as tf
from dataset_helpers import encoded, picture
from image_helpers import write_records
from pyarrow import parquet

from tf_contrastive import datasets, exporting
from tf_contrastive.base import errors
from tf_contrastive.config.embed import EMBEDDING_FORMATS
from tf_contrastive.embedding import output_files


@pytest.fixture(scope="module")
def digits(workdir):
    """What the encoder makes of the 360 test digits, and their labels."""
    source = datasets.source("digits", "test")
    examples = next(source.examples().batch(999).as_numpy_iterator())
    encoder = exporting.load(workdir)
    images = examples["image"] / np.float32(255)
    return encoder(images, training=False).numpy(), examples["label"]


def _columns(path, format):
    """Reads a file by the format's own means."""
    if format == "npz":
        found = np.load(path, allow_pickle=False)
        return {name: found[name] for name in found.files}
    if format == "parquet":
        table = parquet.read_table(path)
        columns = {name: table[name].to_pylist() for name in table.column_names}
        assert json.loads(table.schema.metadata[b"label_names"])[3] == "3"
    else:
        records = tf.data.TFRecordDataset(path).as_numpy_iterator()
        examples = map(tf.train.Example.FromString, records)
        rows = [example.features.feature for example in examples]
        columns = {
            "embedding": [row["embedding"].float_list.value for row in rows],
            "label": [
                np.squeeze(row["label"].int64_list.value) for row in rows
            ],
            "index": [row["index"].int64_list.value[0] for row in rows],
        }
    plural = {x: name for name, x in output_files.COLUMNS.items()}
    return {plural[name]: np.array(v) for name, v in columns.items()}


@pytest.mark.parametrize("format", EMBEDDING_FORMATS)
def test_every_format_has_the_same_columns(
    embed, workdir, digits, format, tmp_path
):
    ending = EMBEDDING_FORMATS[format]
    output = tmp_path / f"digits{ending}"
    embed(workdir, output, embedding_batch_size=100)
    columns = _columns(str(output), format)
    np.testing.assert_allclose(columns["embeddings"], digits[0], atol=1e-5)
    np.testing.assert_array_equal(columns["labels"], digits[1])
    np.testing.assert_array_equal(columns["indices"], np.arange(360))
    assert os.listdir(tmp_path) == [f"digits{ending}"]


def test_shards_add_up_to_the_whole(embed, workdir, digits, tmp_path, capsys):
    embed(workdir, tmp_path / "d.npz", shard_size=100)
    names = [f"d-{i:05}-of-00004.npz" for i in range(4)]
    assert sorted(os.listdir(tmp_path)) == [*names, "d.json"]
    parts = [np.load(tmp_path / name) for name in names]
    assert [len(part["labels"]) for part in parts] == [100, 100, 100, 60]
    columns = "embeddings", "labels", "indices"
    for column, expected in zip(columns, (*digits, range(360)), strict=True):
        found = np.concatenate([part[column] for part in parts])
        np.testing.assert_allclose(found, expected, atol=1e-5)
    said = "360 embeddings of 64 features, in 4 files"
    assert said in capsys.readouterr().out


@pytest.mark.slow
def test_a_killed_job_continues_at_the_next_shard(
    embed, workdir, tmp_path, monkeypatch, capsys
):
    """What is there already is not made again, and is the same."""
    write = output_files.write
    written = []

    def killed(path, *args, **kwargs):
        if len(written) == 2:
            # Half a file, of a process that has ended, and then nothing.
            name = f".half.partial-{uuid.uuid4().hex}"
            (tmp_path / name).write_text("half")
            raise KeyboardInterrupt
        written.append(path)
        write(path, *args, **kwargs)

    monkeypatch.setattr(output_files, "write", killed)
    output = tmp_path / "d.npz"
    with pytest.raises(KeyboardInterrupt):
        embed(workdir, output, shard_size=100)
    times = [os.stat(path).st_mtime_ns for path in written]
    monkeypatch.setattr(output_files, "write", write)
    embed(workdir, output, shard_size=100)
    assert "2 of 4 files are there already" in capsys.readouterr().err
    assert [os.stat(path).st_mtime_ns for path in written] == times
    embed(workdir, tmp_path / "whole.npz")
    whole = np.load(tmp_path / "whole.npz")["embeddings"]
    parts = [
        np.load(path)["embeddings"] for path in sorted(tmp_path.glob("d-*"))
    ]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-6)
    assert not list(tmp_path.glob(".half*"))
    embed(workdir, output, shard_size=100)  # Nothing is left to do.
    out, err = capsys.readouterr()
    assert "4 of 4 files are there already" in err
    assert "360 embeddings of 64 features" in out


@pytest.mark.slow
def test_files_of_another_job_are_not_changed(embed, workdir, tmp_path):
    output = tmp_path / "d.npz"
    embed(workdir, output, shard_size=200)
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(errors.UserError, match="shard_size is 200 there, 100"):
        embed(workdir, output, shard_size=100)
    with pytest.raises(errors.UserError, match="split is test there, train"):
        embed(workdir, output, shard_size=200, split="train")
    saved_run.make(tmp_path.parent / f"{tmp_path.name}-other", seed=1)
    with pytest.raises(errors.UserError, match=r"another job .*encoder"):
        embed(f"{tmp_path}-other", output, shard_size=200)
    assert before == {p: p.read_bytes() for p in tmp_path.iterdir()}


def test_a_job_of_other_labels_or_images_does_not_resume(
    embed, workdir, images, tmp_path
):
    rows = [f"images/{i}.png,{i % 2},{i % 3}" for i in range(6)]
    table = tmp_path / "t.csv"

    def again(rows, **given):
        table.write_text("\n".join(["path,label,color", *rows]))
        given |= {"input": f"csv:{table}", "split": "train", "shard_size": 3}
        embed(workdir, tmp_path / "d.npz", **given)

    again(rows)
    again(rows, max_bad_images=3)
    with pytest.raises(
        errors.UserError, match=r"another job .*label_feature is"
    ):
        again(rows, label_feature="color")
    for other in (rows[::-1], [*rows[:5], "images/5.png,0,2"]):
        with pytest.raises(errors.UserError, match=r"another job .*digest is"):
            again(other)
    PIL.Image.new("RGB", (10, 12)).save(images / "5.png")
    with pytest.raises(errors.UserError, match=r"another job .*content is"):
        again(rows)


def test_a_job_of_changed_records_does_not_resume(embed, workdir, tmp_path):
    path = tmp_path / "r"
    given = {"input": f"tfrecord:{path}", "split": "train", "shard_size": 1}
    write_records(path, [{"image": encoded(picture(0))}])
    embed(workdir, tmp_path / "d.npz", **given)
    write_records(path, [{"image": encoded(picture(1))}])
    with pytest.raises(errors.UserError, match=r"another job .*digest is"):
        embed(workdir, tmp_path / "d.npz", **given)


@pytest.mark.parametrize("format", EMBEDDING_FORMATS)
def test_images_have_all_their_labels(
    embed, workdir, format, data_dir, tmp_path
):
    path = f"{tmp_path}/d{EMBEDDING_FORMATS[format]}"
    name = "multidigits:count=2,canvas=20,digit=8"
    embed(workdir, path, input=name, data_dir=data_dir)
    expected = datasets.source(name, "test", data_dir=data_dir).label_rows()
    np.testing.assert_array_equal(_columns(path, format)["labels"], expected)


def test_images_of_the_run_are_read_as_it_did(embed, images, tmp_path):
    name, path = f"folder:{images}", tmp_path / "d.npz"
    saved_run.make(tmp_path / "run", dataset=name, test_fraction=0.5)
    embed(tmp_path / "run", path, input=f"{name}/")
    assert len(np.load(path)["embeddings"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["removed", "cut off"])
def test_a_file_that_changes_ends_the_job(
    embed, damage, workdir, tmp_path, monkeypatch
):
    """An unreadable image is left out; an unreadable file is an error."""
    files = [tmp_path / f"{number}.tfrecord" for number in range(2)]
    png = tf.io.encode_png(np.zeros([8, 8, 3], np.uint8)).numpy()
    for file in files:
        write_records(file, [{"image": png}] * 3)
    source = datasets.source(f"tfrecord:{tmp_path}/*.tfrecord", "train")
    if damage == "removed":
        files[1].unlink()
    else:
        files[1].write_bytes(files[1].read_bytes()[:-7])
    monkeypatch.setattr(datasets, "source", lambda *_, **__: source)
    with pytest.raises(errors.UserError, match="can no longer be read"):
        embed(workdir, tmp_path / "out.npz", split="train", shard_size=3)
    # Earlier shards are kept.
    assert (tmp_path / "out-00000-of-00002.npz").exists()
    assert not (tmp_path / "out-00001-of-00002.npz").exists()


def test_images_of_a_folder_come_with_their_paths(embed, workdir, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("b.png", "a.jpg", "\u00e4.png"):
        PIL.Image.new("RGB", (30, 20)).save(folder / name)
    (folder / "c.png").write_bytes(b"no image")
    output = tmp_path / "out.npz"
    embed(workdir, output, input=f"folder:{folder}", split="train")
    found = np.load(output, allow_pickle=False)
    names = "a.jpg", "b.png", "\u00e4.png"
    assert found["paths"].tolist() == [str(folder / name) for name in names]
    assert "labels" not in found
    listed = (tmp_path / "out.bad.txt").read_text().splitlines()
    assert listed == [str(folder / "c.png")]


@pytest.mark.slow
@pytest.mark.parametrize("shard_size", [0, 3])
def test_unreadable_images_are_listed_and_left_out(
    embed, workdir, damaged, shard_size, tmp_path
):
    values = {"split": "train", "shard_size": shard_size}
    with pytest.raises(errors.UserError, match="4 images cannot be read"):
        embed(workdir, tmp_path / "a.npz", max_bad_images=3, **values)
    assert not (tmp_path / "a.bad.txt").exists()
    embed(workdir, tmp_path / "a.npz", max_bad_images=4, **values)
    parts = [np.load(path) for path in sorted(tmp_path.glob("a*.npz"))]
    counts = [len(part["indices"]) for part in parts]
    assert counts == ([2, 3, 0, 3] if shard_size else [8])
    for part in parts:
        assert part["embeddings"].shape == (len(part["indices"]), 64)
        assert part["labels"].dtype == np.int32
    indices = np.concatenate([part["indices"] for part in parts])
    assert indices.tolist() == [0, 2, 3, 4, 5, 9, 10, 11]
    assert (tmp_path / "a.bad.txt").read_text().splitlines() == damaged
