"""The job of `embed` on Apache Beam, against the one of one machine."""

import os

import numpy as np
import PIL.Image
import pytest
import saved_run
import tensorflow as tf
from image_helpers import write_prepared, write_records

from tf_contrastive import datasets, exporting
from tf_contrastive.base import errors
from tf_contrastive.commands import embed as command
from tf_contrastive.commands.embed import Embed
from tf_contrastive.config import fields

pytestmark = [pytest.mark.slow, pytest.mark.early]

# Two processes, as a distributed runner has many.
_SHARD = "d-00000-of-00001.npz"
_TWO = "--direct_num_workers=2 --direct_running_mode=multi_processing"


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    saved_run.make(folder)
    return str(folder)


def _embed(workdir="", output="", **values):
    options = fields.replace(
        Embed(), workdir=workdir, output=str(output), **values
    )
    options.validate()
    assert command.run(options) == 0


def test_two_workers_write_what_one_machine_writes(workdir, tmp_path):
    names = []
    for folder, values in (
        ("here", {}),
        ("beam", {"runner": "DirectRunner", "beam_options": _TWO}),
    ):
        _embed(
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


def test_a_failing_image_is_listed_and_left_out(workdir, tmp_path, monkeypatch):
    """Also: of files, with paths, and with shards that are there already."""
    folder = tmp_path / "images"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for i in range(12):
        pixels = generator.integers(0, 256, [20, 30, 3], np.uint8)
        PIL.Image.fromarray(pixels).save(folder / f"{i:02}.png")
    source = datasets.source(f"folder:{folder}", "train")
    # Damaged after they were looked through.
    for i in (1, 6, 7, 8):
        (folder / f"{i:02}.png").write_bytes(b"no image")
    monkeypatch.setattr(datasets, "source", lambda *_, **__: source)
    values = {"split": "train", "shard_size": 3}
    _embed(workdir, tmp_path / "here.npz", **values)
    _embed(workdir, tmp_path / "beam.npz", runner="DirectRunner", **values)
    there = tmp_path / "beam-00000-of-00004.npz"
    before = there.stat().st_mtime_ns
    (tmp_path / "beam-00001-of-00004.npz").unlink()
    _embed(workdir, tmp_path / "beam.npz", runner="DirectRunner", **values)
    assert there.stat().st_mtime_ns == before
    listed = (tmp_path / "here.bad.txt").read_text().splitlines()
    assert listed == [str(folder / f"{i:02}.png") for i in (1, 6, 7, 8)]
    assert (tmp_path / "beam.bad.txt").read_text().splitlines() == listed
    counts = []
    for i in range(4):
        here, beam = (
            np.load(tmp_path / f"{name}-{i:05}-of-00004.npz")
            for name in ("here", "beam")
        )
        counts.append(len(here["paths"]))
        assert here["paths"].tolist() == beam["paths"].tolist()
        np.testing.assert_allclose(
            here["embeddings"], beam["embeddings"], atol=1e-5
        )
    assert counts == [2, 3, 0, 3]
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


def test_workers_resolve_relative_paths(workdir, tmp_path, monkeypatch):
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
            _embed(
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


@pytest.mark.parametrize("of_package", [False, True])
def test_an_encoder_that_is_no_export_is_exported_for_workers(
    of_package, workdir, tmp_path
):
    name = "pretrained:digits-supcon-resnet10" if of_package else workdir
    for folder, runner in (("here", ""), ("beam", "DirectRunner")):
        _embed(
            output=tmp_path / folder / "d.npz",
            saved_model=name,
            input="digits",
            shard_size=999,
            runner=runner,
        )
    here, beam = (np.load(tmp_path / x / _SHARD) for x in ("here", "beam"))
    np.testing.assert_allclose(
        here["embeddings"], beam["embeddings"], rtol=1e-4, atol=1e-5
    )
    assert not list((tmp_path / "beam").glob("d.model-*"))


@pytest.mark.parametrize(
    "name",
    [
        "randbit:bits=4,of=digits",
        "digit_on_image:of=digits",
        "subset:fraction=0.5,of=digits",
    ],
)
def test_workers_read_derived_datasets(name, tmp_path):
    for folder, runner in (("here", ""), ("beam", "DirectRunner")):
        _embed(
            output=tmp_path / folder / "d.npz",
            saved_model="pretrained:digits-supcon-resnet10",
            input=name,
            split="test[:40]",
            shard_size=999,
            runner=runner,
            beam_options=_TWO if runner else "",
        )
    here, beam = (np.load(tmp_path / x / _SHARD) for x in ("here", "beam"))
    np.testing.assert_array_equal(here["labels"], beam["labels"])
    np.testing.assert_allclose(
        here["embeddings"], beam["embeddings"], rtol=1e-4, atol=1e-5
    )


def test_an_unknown_runner_is_named(workdir, tmp_path):
    output, values = tmp_path / "new" / "d.npz", {"shard_size": 9}
    with pytest.raises(errors.UserError, match="runner=DirctRunner"):
        _embed(workdir, output, runner="DirctRunner", **values)
    assert not list(tmp_path.iterdir())
