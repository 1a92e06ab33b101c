"""Bulk embedding: the encoder's own outputs, in order, nothing changed."""

import json
import os

import numpy as np
import odd_images
import PIL.Image
import pytest
import saved_run
import tensorflow as tf
from image_helpers import write_records
from pyarrow import parquet

from tf_contrastive import datasets, exporting
from tf_contrastive.base import errors, files
from tf_contrastive.commands import embed as command
from tf_contrastive.commands.embed import Embed
from tf_contrastive.config import fields
from tf_contrastive.config.embed import EMBEDDING_FORMATS
from tf_contrastive.embedding import job, output_files


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    saved_run.make(folder)
    return str(folder)


@pytest.fixture(scope="module")
def digits(workdir):
    """What the encoder makes of the 360 test digits, and their labels."""
    source = datasets.source("digits", "test")
    examples = next(source.examples().batch(999).as_numpy_iterator())
    encoder = exporting.load(workdir)
    images = examples["image"] / np.float32(255)
    return encoder(images, training=False).numpy(), examples["label"]


def _embed(workdir, output, **values):
    options = fields.replace(
        Embed(), workdir=workdir, output=str(output), **values
    )
    options.validate()
    assert command.run(options) == 0


def _columns(path, format):
    """Reads a file by the format's own means."""
    if format == "npz":
        found = np.load(path, allow_pickle=False)
        return {name: found[name] for name in found.files}
    if format == "parquet":
        table = parquet.read_table(path)
        columns = {
            name: table[name].to_numpy(zero_copy_only=False)
            for name in table.column_names
        }
        columns["embedding"] = np.stack(columns["embedding"])
        assert json.loads(table.schema.metadata[b"label_names"])[3] == "3"
    else:
        rows = [
            tf.train.Example.FromString(record).features.feature
            for record in tf.data.TFRecordDataset(path).as_numpy_iterator()
        ]
        columns = {
            "embedding": [row["embedding"].float_list.value for row in rows],
            "label": [row["label"].int64_list.value[0] for row in rows],
            "index": [row["index"].int64_list.value[0] for row in rows],
        }
    plural = {"embedding": "embeddings", "label": "labels", "index": "indices"}
    return {plural[name]: np.array(v) for name, v in columns.items()}


@pytest.mark.parametrize("format", EMBEDDING_FORMATS)
def test_every_format_has_the_same_columns(workdir, digits, format, tmp_path):
    ending = EMBEDDING_FORMATS[format]
    output = tmp_path / f"digits{ending}"
    _embed(workdir, output, embedding_batch_size=100)
    columns = _columns(str(output), format)
    np.testing.assert_allclose(columns["embeddings"], digits[0], atol=1e-5)
    np.testing.assert_array_equal(columns["labels"], digits[1])
    np.testing.assert_array_equal(columns["indices"], np.arange(360))
    assert os.listdir(tmp_path) == [f"digits{ending}"]


@pytest.mark.slow
def test_images_of_every_format_are_those_of_pillow(workdir, tmp_path):
    pixels = []
    for name, (ending, content) in odd_images.files().items():
        image = odd_images.by_pillow(content)
        if image is None or name in odd_images.MISREAD:
            continue
        (tmp_path / f"{len(pixels):03}.{ending}").write_bytes(content)
        pixels.append(job.views.evaluation(8)(image))
    _embed(
        workdir, tmp_path / "a.npz", input=f"folder:{tmp_path}", split="train"
    )
    encoder = exporting.load(workdir)
    np.testing.assert_allclose(
        np.load(tmp_path / "a.npz")["embeddings"],
        encoder(tf.stack(pixels), training=False),
        atol=1e-5,
    )


def test_shards_add_up_to_the_whole(workdir, digits, tmp_path, capsys):
    _embed(workdir, tmp_path / "d.npz", shard_size=100)
    names = [f"d-{i:05}-of-00004.npz" for i in range(4)]
    assert sorted(os.listdir(tmp_path)) == [*names, "d.json"]
    parts = [np.load(tmp_path / name) for name in names]
    assert [len(part["labels"]) for part in parts] == [100, 100, 100, 60]
    for column, expected in (
        ("embeddings", digits[0]),
        ("labels", digits[1]),
        ("indices", np.arange(360)),
    ):
        found = np.concatenate([part[column] for part in parts])
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (
        "360 embeddings of 64 features, in 4 files" in capsys.readouterr().out
    )


@pytest.mark.slow
def test_a_killed_job_continues_at_the_next_shard(
    workdir, tmp_path, monkeypatch, capsys
):
    """What is there already is not made again, and is the same."""
    write = output_files.write
    written = []

    def killed(path, *args, **kwargs):
        if len(written) == 2:
            # Half a file, of a process that has ended, and then nothing.
            suffix = files._suffix().replace(f"-{os.getpid()}-", "-999999999-")
            (tmp_path / f".half{suffix}0").write_text("half")
            raise KeyboardInterrupt
        written.append(path)
        write(path, *args, **kwargs)

    monkeypatch.setattr(output_files, "write", killed)
    output = tmp_path / "d.npz"
    with pytest.raises(KeyboardInterrupt):
        _embed(workdir, output, shard_size=100)
    times = {path: os.stat(path).st_mtime_ns for path in written}
    assert len(times) == 2
    monkeypatch.setattr(output_files, "write", write)
    _embed(workdir, output, shard_size=100)
    assert "2 of 4 files are there already" in capsys.readouterr().err
    for path, before in times.items():
        assert os.stat(path).st_mtime_ns == before
    _embed(workdir, tmp_path / "whole.npz")
    whole = np.load(tmp_path / "whole.npz")["embeddings"]
    parts = [
        np.load(tmp_path / f"d-{i:05}-of-00004.npz")["embeddings"]
        for i in range(4)
    ]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-6)
    assert not list(tmp_path.glob(".half*"))
    _embed(workdir, output, shard_size=100)  # Nothing is left to do.
    captured = capsys.readouterr()
    assert "4 of 4 files are there already" in captured.err
    assert "360 embeddings of 64 features" in captured.out


@pytest.mark.slow
def test_files_of_another_job_are_not_changed(workdir, tmp_path):
    output = tmp_path / "d.npz"
    _embed(workdir, output, shard_size=200)
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    for values, message in (
        ({"shard_size": 100}, "shard_size is 200 there, 100 here"),
        (
            {"shard_size": 200, "split": "train"},
            "split is test there, train here",
        ),
    ):
        with pytest.raises(errors.UserError, match=message):
            _embed(workdir, output, **values)
    saved_run.make(tmp_path.parent / f"{tmp_path.name}-other", seed=1)
    with pytest.raises(errors.UserError, match=r"another job .*encoder"):
        _embed(f"{tmp_path}-other", output, shard_size=200)
    assert before == {p: p.read_bytes() for p in tmp_path.iterdir()}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """A TFRecord file of 12 images, and the images."""
    path = tmp_path_factory.mktemp("records") / "a.tfrecord"
    images = np.random.default_rng(0).integers(
        0, 256, [12, 16, 16, 3], np.uint8
    )
    rows = [
        {"image": tf.io.encode_png(image).numpy(), "label": i % 3}
        for i, image in enumerate(images)
    ]
    write_records(path, rows)
    return path, images


def _failing(source, rows):
    """The source with images that turn out to be damaged as they are read."""
    import dataclasses

    decode = source.decode

    def failing(record):
        example = decode(record)
        corner = tf.cast(example["image"][0, 0], tf.int32)
        bad = tf.reduce_any(tf.reduce_all(corner == rows, axis=-1))
        good = tf.debugging.Assert(~bad, ["damaged"])
        with tf.control_dependencies([good]):
            return example | {"image": tf.identity(example["image"])}

    return dataclasses.replace(source, decode=failing)


@pytest.mark.slow
@pytest.mark.parametrize("shard_size", [0, 5])
def test_unreadable_images_are_listed_and_left_out(
    workdir, records, shard_size, tmp_path, monkeypatch, capsys
):
    path, images = records
    source = datasets.source(f"tfrecord:{path}", "train")
    bad = [3, 5, 6, 7, 8, 9]  # The second shard of five holds none.
    source = _failing(source, images[bad, 0, 0].astype(np.int32))
    monkeypatch.setattr(datasets, "source", lambda *args, **kwargs: source)
    values = {"split": "train", "shard_size": shard_size}
    with pytest.raises(errors.UserError, match="6 images cannot be read"):
        _embed(workdir, tmp_path / "a.npz", max_bad_images=5, **values)
    assert not (tmp_path / "a.bad.txt").exists()
    _embed(workdir, tmp_path / "a.npz", max_bad_images=6, **values)
    parts = [np.load(path) for path in sorted(tmp_path.glob("a*.npz"))]
    found = np.concatenate([part["indices"] for part in parts])
    good = np.setdiff1d(np.arange(12), bad)
    assert found.tolist() == good.tolist()
    labels = np.concatenate([part["labels"] for part in parts])
    assert labels.tolist() == (good % 3).tolist()
    encoder = exporting.load(workdir)
    preprocess = job.views.evaluation(8)
    pixels = tf.stack([preprocess(image) for image in images[good]])
    embeddings = np.concatenate([part["embeddings"] for part in parts])
    np.testing.assert_allclose(
        embeddings, encoder(pixels, training=False), atol=1e-5
    )
    listed = (tmp_path / "a.bad.txt").read_text().splitlines()
    assert listed == [f"example {row}" for row in bad]
    captured = capsys.readouterr()
    assert "left out, cannot be read: example 5" in captured.err
    assert "6 embeddings of 64 features" in captured.out


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["removed", "cut off"])
def test_a_file_that_changes_ends_the_job(
    damage, workdir, tmp_path, monkeypatch
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
        _embed(workdir, tmp_path / "out.npz", split="train", shard_size=3)
    # Earlier shards are kept.
    assert (tmp_path / "out-00000-of-00002.npz").exists()
    assert not (tmp_path / "out-00001-of-00002.npz").exists()


def test_images_of_a_folder_come_with_their_paths(workdir, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("b.png", "a.jpg", "\u00e4.png"):
        PIL.Image.fromarray(
            np.random.default_rng(0).integers(0, 256, [20, 30, 3], np.uint8)
        ).save(folder / name)
    (folder / "c.png").write_bytes(b"no image")
    output = tmp_path / "out.npz"
    _embed(workdir, output, input=f"folder:{folder}", split="train")
    found = np.load(output, allow_pickle=False)
    assert found["paths"].tolist() == [
        str(folder / name) for name in ("a.jpg", "b.png", "\u00e4.png")
    ]
    assert "labels" not in found
    listed = (tmp_path / "out.bad.txt").read_text().splitlines()
    assert listed == [str(folder / "c.png")]
