"""Compiled programs are kept, in a folder that only the user can write to."""

import os
import stat
from pathlib import Path

import processes
import pytest
import tensorflow as tf

from tf_contrastive.distribution import compiled

# The compiler of the CPU takes the place of the GPU's. The second argument: how
# many functions are traced before, as in a resumed run.
_PROGRAM = """
import sys
from pathlib import Path
import tensorflow as tf
from tf_contrastive import distribution
from tf_contrastive.distribution import compiled

compiled.DRIVER, compiled.DEVICES = Path(sys.argv[1]), "CPU"
distribution.strategy("default")
for _ in range(int(sys.argv[2])):
    tf.function(lambda x: x + 1)(1.0)
compiled.align_names()
matrix = tf.Variable(tf.eye(8))
step = tf.function(lambda x: tf.reduce_sum(matrix @ x), jit_compile=True)
print(float(step(tf.ones([8, 3]))))
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with a GPU and an account's empty cache."""
    driver = tmp_path / "driver"
    (driver / "gpus" / "0").mkdir(parents=True)
    (driver / "version").write_text("version: 580.1\nbuilt: today\n")
    (driver / "gpus" / "0" / "information").write_text("Model: A\nIRQ: 3\n")
    monkeypatch.setattr(compiled, "DRIVER", driver)
    monkeypatch.setattr(tf, "__version__", "2.21.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    return driver


def _kept():
    """Starts as a process without own flags; returns what it sets."""
    names = ("TF_XLA_FLAGS", "XLA_FLAGS")
    for name in names:
        os.environ.pop(name, None)
    compiled.keep()
    return tuple(os.environ.get(name, "") for name in names)


def _folder():
    programs, tuned = _kept()
    folder = tuned.partition("=")[2]
    assert f"cache_directory={folder} " in programs
    return folder


@pytest.mark.skipif(
    tf.__version__.startswith("2.15"), reason="programs are not kept"
)
def test_the_next_process_compiles_nothing(machine):
    variables = {
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "device_executable_persistor=2",
        "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"],
    }
    folder, seen = machine.parent / "cache", []
    for traced in (0, 3):
        words = processes.python(_PROGRAM, machine, traced)
        done = processes.run(words, variables=variables)
        [program] = folder.rglob("*.pb")
        seen.append((done.stdout, program.name, program.stat().st_mtime_ns))
    assert "Loading cached entry" in done.stderr
    assert seen[0] == seen[1] and seen[0][0] == "24.0\n"


def test_a_folder_for_each_machine_which_only_the_user_can_use(machine):
    old = os.umask(0)
    try:
        folder = _folder()
    finally:
        os.umask(old)
    os.chmod(os.path.dirname(folder), 0o777)
    assert _folder() == folder
    for place in (folder, os.path.dirname(folder)):
        assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
    (machine / "gpus" / "0" / "information").write_text("Model: B\nIRQ: 3\n")
    assert _folder() != folder


@pytest.mark.parametrize("above", [0, 1, 2])
def test_folders_of_others_are_refused(machine, monkeypatch, above):
    folder = _folder()
    place = folder
    for _ in range(above):
        place = os.path.dirname(place)
    os.rename(place, f"{place}.theirs")
    os.symlink(f"{place}.theirs", place)
    assert _kept() == ("", "")
    os.unlink(place)
    os.rename(f"{place}.theirs", place)
    assert _folder() == folder
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert _kept() == ("", "")


def test_own_flags_take_precedence(machine, monkeypatch):
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    os.environ.pop("XLA_FLAGS", None)
    compiled.keep()
    assert not os.environ["TF_XLA_FLAGS"] and "XLA_FLAGS" not in os.environ
    del os.environ["TF_XLA_FLAGS"]
    os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"
    compiled.keep()
    assert os.environ["XLA_FLAGS"] == "--xla_gpu_autotune_level=0"
    assert os.environ["TF_XLA_FLAGS"]


@pytest.mark.parametrize("case", ["TensorFlow 2.15", "no GPU", "a space"])
def test_programs_that_cannot_be_kept(machine, monkeypatch, case):
    if case == "TensorFlow 2.15":
        monkeypatch.setattr(tf, "__version__", "2.15.1")
    elif case == "no GPU":
        (machine / "gpus" / "0" / "information").unlink()
    else:
        os.environ["XDG_CACHE_HOME"] = str(machine / "a b")
    assert _kept() == ("", "")


def test_empty_and_unused_programs_are_deleted(machine):
    folder = Path(_folder())
    (folder / "empty.pb").touch()
    (folder / "whole.pb").write_bytes(b"program")
    for name, days in ("recent", 59), ("unused", 61):
        (folder / name).touch()
        seconds = (folder / name).stat().st_mtime - days * 24 * 3600
        os.utime(folder / name, (seconds, seconds))
    assert _folder() == str(folder)
    assert {*os.listdir(folder)} == {"whole.pb", "recent"}
