"""The job of `embed` on Apache Beam, against the one of one machine."""

import os

import numpy as np
import pytest
import tensorflow as tf
from image_helpers import write_prepared, write_records

from tf_contrastive import exporting
from tf_contrastive.base import errors

pytestmark = [pytest.mark.slow, pytest.mark.early]

# Two processes, as a distributed runner has many.
_TWO = "--direct_num_workers=2 --direct_running_mode=multi_processing"


def test_two_workers_write_what_one_machine_writes(embed, workdir, tmp_path):
    names = []
    for folder, values in (
        ("here", {}),
        ("beam", {"runner": "DirectRunner", "runner_options": _TWO}),
    ):
        embed(
            workdir,
            tmp_path / folder / "d.npz",
            shard_size=100,
            embedding_batch_size=32,
            **values,
        )
        names.append(sorted(os.listdir(tmp_path / folder)))
    assert names[0] == names[1]
    assert len(names[0]) == 5
    for name in names[0][:-1]:
        here, beam = (
            np.load(tmp_path / folder / name) for folder in ("here", "beam")
        )
        assert here.files == beam.files
        np.testing.assert_array_equal(here["labels"], beam["labels"])
        np.testing.assert_array_equal(here["indices"], beam["indices"])
        np.testing.assert_allclose(
            here["embeddings"], beam["embeddings"], atol=1e-5
        )


def test_a_failing_image_is_listed_and_left_out(
    workdir, damaged, tmp_path, embed
):
    """Also: of files, with paths, and with shards that are there already."""
    values = {"split": "train", "shard_size": 3}
    embed(workdir, tmp_path / "here.npz", **values)
    embed(workdir, tmp_path / "beam.npz", runner="DirectRunner", **values)
    there = tmp_path / "beam-00000-of-00004.npz"
    before = there.stat().st_mtime_ns
    (tmp_path / "beam-00001-of-00004.npz").unlink()
    embed(workdir, tmp_path / "beam.npz", runner="DirectRunner", **values)
    assert there.stat().st_mtime_ns == before
    for name in ("here", "beam"):
        listed = (tmp_path / f"{name}.bad.txt").read_text().splitlines()
        assert listed == damaged
    for i in range(4):
        here, beam = (
            np.load(tmp_path / f"{name}-{i:05}-of-00004.npz")
            for name in ("here", "beam")
        )
        assert here["paths"].tolist() == beam["paths"].tolist()
        np.testing.assert_allclose(
            here["embeddings"], beam["embeddings"], atol=1e-5
        )
    assert not list(tmp_path.glob("*.model-*"))


def _twelve(folder):
    """A dozen pictures with labels: of TFRecord files, and prepared by TFDS."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, [12, 8, 8, 3], np.uint8)
    rows = [
        {"image": tf.io.encode_png(image).numpy(), "label": row % 3}
        for row, image in enumerate(images)
    ]
    write_records(folder / "0.tfrecord", rows[:5])
    write_records(folder / "1.tfrecord", rows[5:])
    write_prepared(
        folder / "tfds",
        lambda f: {
            "image": f.Image(shape=(8, 8, 3)),
            "label": f.ClassLabel(num_classes=3),
        },
        {"train": {"image": images, "label": np.arange(12) % 3}},
        "twelve",
    )


def test_workers_resolve_relative_paths(embed, workdir, tmp_path, monkeypatch):
    """TFRecord files and a prepared dataset, by workers in another folder."""
    from tf_contrastive.embedding import beam

    (tmp_path / "work").mkdir()
    (tmp_path / "elsewhere").mkdir()
    _twelve(tmp_path / "work")
    os.symlink(workdir, tmp_path / "work" / "run")
    exporting.export(workdir, str(tmp_path / "work" / "export"))
    monkeypatch.chdir(tmp_path / "work")
    start = beam.run

    def run_elsewhere(*args):
        os.chdir(tmp_path / "elsewhere")
        try:
            start(*args)
        finally:
            os.chdir(tmp_path / "work")

    monkeypatch.setattr(beam, "run", run_elsewhere)
    for kind, values in (
        ("record", {"workdir": "run", "input": "tfrecord:./*.tfrecord"}),
        (
            "derived",
            {
                "workdir": "run",
                "input": "subset:fraction=1,of=tfrecord:./*.tfrecord",
            },
        ),
        (
            "tfds",
            {"saved_model": "export", "input": "twelve", "data_dir": "tfds"},
        ),
    ):
        for engine, runner in (("here", ""), ("beam", "DirectRunner")):
            embed(
                output=f"{engine}-{kind}.npz",
                split="train",
                shard_size=7,
                runner=runner,
                **values,
            )
        for shard, rows in ((0, range(7)), (1, range(7, 12))):
            here, beamed = (
                np.load(f"{engine}-{kind}-{shard:05}-of-00002.npz")
                for engine in ("here", "beam")
            )
            assert here["indices"].tolist() == list(rows)
            assert here.files == beamed.files
            np.testing.assert_array_equal(here["indices"], beamed["indices"])
            np.testing.assert_array_equal(here["labels"], beamed["labels"])
            np.testing.assert_allclose(
                here["embeddings"], beamed["embeddings"], atol=1e-5
            )
        # Either engine goes on with the other's files.
        with open(f"here-{kind}.json") as one, open(f"beam-{kind}.json") as two:
            assert one.read() == two.read()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_an_unknown_runner_is_named(embed, workdir, tmp_path):
    output, values = tmp_path / "new" / "d.npz", {"shard_size": 9}
    with pytest.raises(errors.UserError, match="runner=DirctRunner"):
        embed(workdir, output, runner="DirctRunner", **values)
    assert not list(tmp_path.iterdir())
