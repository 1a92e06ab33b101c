"""What an interpreter lacks, and the commands that messages name."""

import os
import shlex
import sys

import processes
import pytest

from tf_contrastive.base import installation

_NEEDED = ("absl", "numpy", "tensorflow", "wrapt")


@pytest.mark.parametrize(
    ("packages", "version", "named"),
    [
        ((), "", "absl, numpy, tensorflow, wrapt"),
        (("absl", "numpy", "wrapt"), "", "tensorflow"),
        (_NEEDED, "2.14.1", "TensorFlow 2.14.1"),
        (_NEEDED, "2.16.0rc1", "tf_keras"),
    ],
)
def test_a_wrong_interpreter_gets_one_line(packages, version, named, tmp_path):
    for package in packages:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    if version:
        info = tmp_path / "tensorflow-1.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: tensorflow\nVersion: {version}\n"
        (info / "METADATA").write_text(text)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-S", "-m", "tf_contrastive", "doctor"]
    done = processes.run(words, status=2, env=env)
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    assert named in line and sys.executable in line
    assert "launch/install" in line or ".venv/bin/python" in line
    words = [sys.executable, "-S", "-c", "import tf_contrastive"]
    done = processes.run(words, status=1, env=env)
    assert done.stderr.splitlines()[-1].startswith("ImportError: ")


def test_a_missing_package_comes_with_the_command_that_installs_it(monkeypatch):
    for module, extra, expected in (
        ("onnx", "onnx", ["-e", f"{installation.ROOT}[onnx]"]),
        ("pyarrow", "", ["pyarrow"]),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        problem = installation.missing(module, extra)
        assert problem.startswith(f"{module}, which is not installed")
        words = shlex.split(problem.partition(": run ")[2])
        assert words[words.index("install") + 1 :][-len(expected) :] == expected


def test_a_package_of_another_stack_is_named_with_its_error(
    tmp_path, monkeypatch
):
    (tmp_path / "made_for_numpy_2.py").write_text(
        "raise ImportError('needs NumPy 2\\nor newer')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    problem = installation.missing("made_for_numpy_2")
    assert "\n" not in problem
    assert "cannot be imported (ImportError: needs NumPy 2)" in problem
    assert installation.missing("json") == ""
