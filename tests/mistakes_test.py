"""Wrong inputs get one clear line, before anything is written."""

import importlib.util
import os
import shlex
import string
import subprocess
import sys
from pathlib import Path

import broken
import mistakes
import pytest
import saved_run
import tensorflow as tf

from tf_contrastive import __main__, exporting

_ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.usefixtures("small_encoder")


# What pretrain makes of what was not given: its command resumes the run.
_RESOLVED = {
    "flip": False,
    "color_jitter_strength": 0.5,
    "blur": False,
    "augment_on": "host",
    "learning_rate": 0.3,
    "warmup_epochs": 10.0,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Name -> folder of a run or an export, made when it is asked for."""
    folder = tmp_path_factory.mktemp("made")

    def network(channels):
        inputs = tf.keras.Input([8, 8, channels])
        pooled = tf.keras.layers.GlobalAveragePooling2D()(inputs)
        return tf.keras.Model(inputs, tf.keras.layers.Dense(4)(pooled))

    makers = {
        "run": lambda path: saved_run.make(path, **_RESOLVED),
        "export": lambda path: exporting.export(network(3), path),
        "five_channels": lambda path: exporting.export(network(5), path),
        "foreign": lambda path: tf.saved_model.save(tf.Module(), path),
    }

    def make(name):
        path = folder / name
        if not path.exists():
            makers[name](str(path))
        return path

    return make


def _without(package, monkeypatch):
    find = importlib.util.find_spec

    def found(name, *others):
        return None if name == package else find(name, *others)

    monkeypatch.setattr(importlib.util, "find_spec", found)


def _left(folder):
    """All that is under a folder: path -> contents, None for a folder."""
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize(
    ("line", "told"), mistakes.INPUTS, ids=[line for line, _ in mistakes.INPUTS]
)
def test_a_wrong_input_gets_one_clear_line(
    line, told, made, tmp_path, monkeypatch, capsys
):
    named = string.Formatter().parse(line + told)
    names = [name for _, name, _, _ in named if name]
    places = {name: broken.make(name, tmp_path, made) for name in names}
    words = shlex.split(line.format(**places))
    for name in os.environ:
        if name in ("TF_CONFIG", "TPU_NAME") or name.startswith("SLURM_"):
            monkeypatch.delenv(name)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        if name == "WITHOUT":
            _without(value, monkeypatch)
        else:
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tf_contrastive", *words])
    before = _left(tmp_path)
    capsys.readouterr()
    assert __main__.main() != 0
    said = capsys.readouterr()
    errors = [x for x in said.err.split("\n") if x.startswith("tf_contrastive")]
    assert said.err.endswith(f"{errors[0]}\n") and len(errors) == 1
    assert errors[0].startswith("tf_contrastive: ")
    assert told.format(**places) in errors[0]
    assert said.out == ""
    assert _left(tmp_path) == before


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("quickstart --frsh", "unknown argument --frsh: launch/quickstart"),
        ("install --devel", "unknown argument --devel: launch/install"),
        ("install dev", "unknown argument dev: launch/install"),
    ],
)
def test_scripts_that_no_other_test_misuses(line, told):
    script, *words = line.split()
    done = subprocess.run(
        [_ROOT / "launch" / script, *words], capture_output=True, text=True
    )
    assert done.returncode != 0 and done.stdout == ""
    (said,) = done.stderr.splitlines()
    assert told in said


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
