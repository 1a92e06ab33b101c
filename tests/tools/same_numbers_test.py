"""tools/same_numbers.py: which differences between two records it shows."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive.config.protocols import PROTOCOLS

_ROOT = Path(__file__).resolve().parents[2]
_TOOL = _ROOT / "tools" / "same_numbers.py"
_SPEC = importlib.util.spec_from_file_location("same_numbers", _TOOL)
same_numbers = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(same_numbers)

_WEIGHTS = {"kernel": np.float32([[1, 2], [3, 4]]), "bias": np.float32([5, 6])}
_ROW = {"top1": 0.5, "variant": "", "seconds": 1.0}


def _tool(*words):
    return subprocess.run(
        [sys.executable, str(_TOOL), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )


def _files(folder, weights=_WEIGHTS, row=_ROW, loss=1.0, speed=2.0):
    """Writes what a run and its evaluation leave, and returns its hashes."""
    root = tf.train.Checkpoint(
        **{name: tf.Variable(value) for name, value in weights.items()}
    )
    root.save(str(folder / "run" / "checkpoints" / "ckpt"))
    np.savez(folder / "run" / "knn.npz", about="{}", correct=[True, False])
    (folder / "run" / "evaluation.json").write_text(
        json.dumps({"step": 3, "results": [row]})
    )
    writer = tf.summary.create_file_writer(str(folder / "run" / "events"))
    with writer.as_default(step=3):
        tf.summary.scalar("loss", loss)
        tf.summary.scalar("input/images_per_second", speed)
        tf.summary.text("command", str(folder))
    writer.close()
    return same_numbers.read(folder)


def _record(path, results, job="moco"):
    machine = {"cores": 2}
    path.write_text(json.dumps({"machine": machine, "jobs": {job: results}}))
    return path


@pytest.mark.parametrize(
    "change,result,kind",
    [
        # Times, and where it ran.
        ({"row": _ROW | {"seconds": 9.0}, "speed": 3.0}, None, None),
        (
            {"weights": _WEIGHTS | {"bias": np.nextafter(_WEIGHTS["bias"], 9)}},
            "run/checkpoints",
            "different: 1 of 2",
        ),
        # Equal bytes in another shape, and of another type.
        (
            {"weights": _WEIGHTS | {"kernel": np.float32([1, 2, 3, 4])}},
            "run/checkpoints",
            "different: 1 of 2",
        ),
        (
            {
                "weights": _WEIGHTS
                | {"kernel": _WEIGHTS["kernel"].view(np.int32)}
            },
            "run/checkpoints",
            "different: 1 of 2",
        ),
        (
            {
                "weights": {
                    "offset": _WEIGHTS["bias"],
                    "kernel": _WEIGHTS["kernel"],
                }
            },
            "run/checkpoints",
            "renamed: 2 of 3",
        ),
        (
            {"row": _ROW | {"top1": 0.5 + 1e-16}},
            "run/evaluation.json",
            "different: 1 of 3",
        ),
        (
            {"loss": 1.0 + 2.0**-23},
            "run/events",
            "different: 1 of 1",
        ),
    ],
)
def test_one_changed_number_is_found(change, result, kind, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    a = _files(tmp_path / "a")
    b = _files(tmp_path / "b", **change)
    files = ("checkpoints", "evaluation.json", "events", "knn.npz")
    assert sorted(a) == [f"run/{name}" for name in files]
    records = [{"jobs": {"moco": results}} for results in (a, b)]
    differences = {
        result: difference
        for _, result, difference in same_numbers.compare(*records, [])
        if difference != "equal"
    }
    assert list(differences) == [result] * (result is not None)
    if result:
        assert differences[result].startswith(kind)


def test_the_status_is_1_if_a_number_differs_or_is_missing(tmp_path):
    results = {"run": {"kernel": "0a", "bias": "0b"}}
    a = _record(tmp_path / "a", results)
    same = _tool("compare", a, _record(tmp_path / "same", results))
    assert same.returncode == 0, same.stderr
    changes = {
        "different": {"run": {"kernel": "0a", "bias": "0c"}},
        "renamed": {"run": {"kernel": "0a", "offset": "0b"}},
        "missing": {},
        "missing in A": results | {"more": {"kernel": "0a"}},
    }
    for kind, changed in changes.items():
        b = _record(tmp_path / "b", changed)
        done = _tool("compare", a, b)
        assert (done.returncode, done.stderr) == (1, "")
        assert f": {kind}" in done.stdout
    # A job that neither file has is not equal.
    assert _tool("compare", a, a, "--only", "moco").returncode == 0
    assert _tool("compare", a, a, "--only", "views").returncode == 1
    assert _tool("compare", a, a, "--only", "moco", "views").returncode == 1


def test_files_that_are_not_records_and_existing_ones_are_refused(tmp_path):
    a = _record(tmp_path / "a", {"run": {"kernel": "0a"}})
    before = a.read_text()
    other = tmp_path / "other.json"
    other.write_text("[]")
    for b in (other, tmp_path / "no.json"):
        done = _tool("compare", a, b)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert str(b) in done.stderr
    for words in (
        (a,),
        (tmp_path / "no" / "b",),
        (tmp_path / "b", "--keep", tmp_path),
        (tmp_path / "b", "--checkout", tmp_path),
    ):
        done = _tool("record", *words, "--only", "views")
        assert done.returncode == 2
        assert str(words[-1]) in done.stderr
    assert a.read_text() == before


def test_the_jobs_have_every_protocol_that_needs_no_other_data():
    flag = "--protocols="
    given = {
        protocol
        for lines in same_numbers.JOBS.values()
        for word in " ".join(lines).split()
        if word.startswith(flag)
        for protocol in word.removeprefix(flag).split(",")
    }
    assert given == {*PROTOCOLS} - {"transfer"}


@pytest.mark.slow
def test_a_job_runs_the_package_of_the_given_checkout(tmp_path):
    checkout = tmp_path / "checkout"
    shutil.copytree(_ROOT / "tf_contrastive", checkout / "tf_contrastive")
    records = []
    for name, version in (("a", "0.2989"), ("b", "0.2990")):
        color = checkout / "tf_contrastive" / "views" / "color.py"
        text = color.read_text()
        assert "0.2989" in text
        color.write_text(text.replace("0.2989", version))
        record = tmp_path / name
        done = _tool(
            "record",
            record,
            "--only",
            "views",
            "--checkout",
            checkout,
            "--keep",
            tmp_path / f"{name}_files",
        )
        assert done.returncode == 0, done.stderr
        records.append(record)
    assert _tool("compare", *records[:1] * 2).returncode == 0
    done = _tool("compare", *records)
    assert done.returncode == 1
    assert "views: views.npz: different" in done.stdout
