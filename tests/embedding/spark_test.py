"""The job of `embed` on Apache Spark, against the one of one process.

Skipped without Java and the extra [spark].
"""

import filecmp
import importlib.util
import os
import shutil

import pytest

from tf_contrastive.base import errors

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (importlib.util.find_spec("pyspark") and shutil.which("java")),
        reason="needs Java and pyspark",
    ),
]


def test_tasks_write_what_one_process_writes(embed, workdir, damaged, tmp_path):
    """Byte for byte, with unreadable images; and go on after a kill."""
    assert damaged
    values = {"split": "train", "shard_size": 3}
    here, spark = tmp_path / "here", tmp_path / "spark"
    embed(workdir, here / "d.npz", **values)
    shutil.copytree(here, spark)
    for number in (0, 1, 2):
        (spark / f"d-{number:05}-of-00004.npz").unlink()
    kept = (spark / "d-00003-of-00004.npz").stat().st_mtime_ns
    embed(
        workdir,
        spark / "d.npz",
        runner="spark",
        runner_options="spark.master=local[2]",
        **values,
    )
    names = sorted(os.listdir(here))
    assert "d.bad.txt" in names and len(names) == 8
    assert sorted(os.listdir(spark)) == names
    for name in names:
        assert filecmp.cmp(here / name, spark / name, shallow=False), name
    assert (spark / "d-00003-of-00004.npz").stat().st_mtime_ns == kept


def test_what_a_worker_lacks_ends_the_job(
    embed, workdir, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.delenv("PYSPARK_PYTHON")
    options = "spark.master=local[1] spark.pyspark.python=/no/python"
    with pytest.raises(errors.UserError, match="/no/python"):
        embed(
            workdir,
            tmp_path / "d.npz",
            shard_size=200,
            runner="spark",
            runner_options=options,
        )
    assert os.listdir(tmp_path) == ["d.json"]


@pytest.mark.parametrize("option", ["master=local", "spark.master"])
def test_wrong_options_end_the_command_first(embed, option, workdir, tmp_path):
    output, values = tmp_path / "new" / "d.npz", {"shard_size": 100}
    with pytest.raises(errors.UserError, match=f"'{option}' is not of"):
        embed(workdir, output, runner="spark", runner_options=option, **values)
    assert not os.listdir(tmp_path)
