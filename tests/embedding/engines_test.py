"""The job of `embed` on Beam and on Spark, against the one of one process.

Spark is skipped without Java and the extra [spark].
"""

import filecmp
import importlib.util
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from image_helpers import write_prepared, write_records

from tf_contrastive import exporting
from tf_contrastive.base import errors

pytestmark = [pytest.mark.slow, pytest.mark.early]

_needs_spark = pytest.mark.skipif(
    not (importlib.util.find_spec("pyspark") and shutil.which("java")),
    reason="needs Java and pyspark",
)
_spark = pytest.param("spark", marks=_needs_spark)
# Each with two processes, as a distributed engine has many.
_PROCESSES = "--direct_num_workers=2 --direct_running_mode=multi_processing"
_ENGINES = {
    "beam": {"runner": "DirectRunner", "runner_options": _PROCESSES},
    "spark": {"runner": "spark", "runner_options": "spark.master=local[2]"},
}


@pytest.mark.parametrize("engine", ["beam", _spark])
def test_workers_write_what_one_process_writes(
    engine, embed, workdir, damaged, tmp_path
):
    """Byte for byte, with unreadable images; and go on after a kill."""
    values = {"split": "train", "shard_size": 3}
    here, there = tmp_path / "here", tmp_path / "there"
    embed(workdir, here / "d.npz", **values)
    assert (here / "d.bad.txt").read_text().splitlines() == damaged
    shutil.copytree(here, there)
    for number in (0, 1, 2):
        (there / f"d-{number:05}-of-00004.npz").unlink()
    kept = (there / "d-00003-of-00004.npz").stat().st_mtime_ns
    embed(workdir, there / "d.npz", **values, **_ENGINES[engine])
    names = sorted(os.listdir(here))
    assert len(names) == 8
    assert sorted(os.listdir(there)) == names
    for name in names:
        assert filecmp.cmp(here / name, there / name, shallow=False), name
    assert (there / "d-00003-of-00004.npz").stat().st_mtime_ns == kept


def _twelve(folder):
    """A dozen pictures with labels: of TFRecord files, and prepared by TFDS."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, [12, 8, 8, 3], np.uint8)
    contents = [tf.io.encode_png(image).numpy() for image in images]
    rows = [{"image": x, "label": i % 3} for i, x in enumerate(contents)]
    write_records(folder / "0.tfrecord", rows[:5])
    write_records(folder / "1.tfrecord", rows[5:])
    labels = {"label": np.arange(12) % 3, "coarse": np.arange(12) % 2}
    write_prepared(
        folder / "tfds",
        lambda f: (
            {"image": f.Image(shape=(8, 8, 3))}
            | {
                k: f.ClassLabel(num_classes=max(x) + 1)
                for k, x in labels.items()
            }
        ),
        {"train": {"image": images, **labels}},
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
    records = "tfrecord:./*.tfrecord"
    prepared = {"saved_model": "export", "input": "twelve", "data_dir": "tfds"}
    for kind, values in {
        "derived": {
            "workdir": "run",
            "input": f"subset:fraction=1,of={records}",
        },
        "tfds": {**prepared, "label_feature": "coarse"},
    }.items():
        values |= {"split": "train", "shard_size": 7}
        for engine, runner in (("here", ""), ("beam", "DirectRunner")):
            embed(output=f"{engine}-{kind}.npz", runner=runner, **values)
        for shard, rows in ((0, range(7)), (1, range(7, 12))):
            here, beamed = (
                np.load(f"{engine}-{kind}-{shard:05}-of-00002.npz")
                for engine in ("here", "beam")
            )
            assert here["indices"].tolist() == list(rows)
            assert here.files == beamed.files
            if kind == "tfds":  # Workers read the label that was chosen.
                assert here["labels"].tolist() == [row % 2 for row in rows]
            for column in here.files:
                if here[column].dtype.kind in "if":
                    one, other = here[column], beamed[column]
                    np.testing.assert_allclose(one, other, atol=1e-5)
        # Either engine goes on with the other's files.
        names = f"here-{kind}.json", f"beam-{kind}.json"
        assert filecmp.cmp(*names, shallow=False)
    assert not list((tmp_path / "elsewhere").iterdir())


@_needs_spark
def test_what_a_worker_of_spark_lacks_ends_the_job(
    embed, workdir, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.delenv("PYSPARK_PYTHON")
    options = "spark.master=local[1] spark.pyspark.python=/no/python"
    values = {"runner": "spark", "runner_options": options, "shard_size": 200}
    with pytest.raises(errors.UserError, match="/no/python"):
        embed(workdir, tmp_path / "d.npz", **values)
    assert os.listdir(tmp_path) == ["d.json"]


@pytest.mark.parametrize(
    ("runner", "options", "named"),
    [
        ("DirctRunner", "", "runner=DirctRunner"),
        *(
            pytest.param("spark", x, f"{x!r} is not of", marks=_needs_spark)
            for x in ("master=local", "spark.master")
        ),
    ],
)
def test_a_wrong_engine_ends_the_command_first(
    runner, options, named, embed, workdir, tmp_path
):
    values = {"runner": runner, "runner_options": options, "shard_size": 100}
    with pytest.raises(errors.UserError, match=named):
        embed(workdir, tmp_path / "new" / "d.npz", **values)
    assert not os.listdir(tmp_path)
