"""The job of `embed` on Apache Spark, against the one of one process.

Skipped without Java and the extra [spark].
"""

import filecmp
import importlib.util
import os
import shutil

import numpy as np
import PIL.Image
import pytest
import saved_run

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.commands import embed as command
from tf_contrastive.commands.embed import Embed
from tf_contrastive.config import fields

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (importlib.util.find_spec("pyspark") and shutil.which("java")),
        reason="needs Java and pyspark",
    ),
]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    saved_run.make(folder)
    return str(folder)


def _embed(workdir, output, **values):
    options = fields.replace(
        Embed(), workdir=workdir, output=str(output), **values
    )
    options.validate()
    assert command.run(options) == 0


def test_tasks_write_what_one_process_writes(workdir, tmp_path, monkeypatch):
    """Byte for byte, with unreadable images; and go on after a kill."""
    folder = tmp_path / "images"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for i in range(12):
        pixels = generator.integers(0, 256, [20, 30, 3], np.uint8)
        PIL.Image.fromarray(pixels).save(folder / f"{i:02}.png")
    source = datasets.source(f"folder:{folder}", "train")
    for i in (1, 6, 7, 8):  # Damaged after they were looked through.
        (folder / f"{i:02}.png").write_bytes(b"no image")
    monkeypatch.setattr(datasets, "source", lambda *_, **__: source)
    values = {"split": "train", "shard_size": 3}
    here, spark = tmp_path / "here", tmp_path / "spark"
    _embed(workdir, here / "d.npz", **values)
    shutil.copytree(here, spark)
    for number in (0, 1, 2):
        (spark / f"d-{number:05}-of-00004.npz").unlink()
    kept = (spark / "d-00003-of-00004.npz").stat().st_mtime_ns
    _embed(
        workdir,
        spark / "d.npz",
        runner="spark",
        spark_options="spark.master=local[2]",
        **values,
    )
    names = sorted(os.listdir(here))
    assert "d.bad.txt" in names and len(names) == 8
    assert sorted(os.listdir(spark)) == names
    for name in names:
        assert filecmp.cmp(here / name, spark / name, shallow=False), name
    assert (spark / "d-00003-of-00004.npz").stat().st_mtime_ns == kept


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ("spark.pyspark.python=/no/python", "/no/python"),
    ],
)
def test_what_a_worker_lacks_ends_the_job(
    properties, message, workdir, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.delenv("PYSPARK_PYTHON")
    with pytest.raises(errors.UserError, match=message):
        _embed(
            workdir,
            tmp_path / "d.npz",
            shard_size=200,
            runner="spark",
            spark_options=f"spark.master=local[1] {properties}",
        )
    assert os.listdir(tmp_path) == ["d.json"]


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ("master=local", "'master=local' is not of"),
        ("spark.master", "'spark.master' is not of"),
    ],
)
def test_wrong_options_end_the_command_first(
    properties, message, workdir, tmp_path
):
    with pytest.raises(errors.UserError, match=message):
        _embed(
            workdir,
            tmp_path / "new" / "d.npz",
            shard_size=100,
            runner="spark",
            spark_options=properties,
        )
    assert not os.listdir(tmp_path)
