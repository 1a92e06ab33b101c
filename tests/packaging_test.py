"""Dependencies, the installer and the checks of continuous integration."""

import os
import re
import runpy
import shutil
import sys
from unittest import mock

import processes
import pytest
from packaging import requirements, utils
from processes import ROOT

# The default of this Python.
_STACK = "card" if sys.version_info < (3, 12) else "current"


def _stacks():
    """Stack -> its requirements, and its pins by package.

    A package has several pins where Python versions differ.
    """
    with mock.patch("setuptools.setup"):
        setup = runpy.run_path(str(ROOT / "setup.py"))
    names = ("dev", "beam", "onnx", "serve")
    extras = [setup["EXTRAS_REQUIRE"][name] for name in names]
    for stack, marker in setup["MARKERS"].items():
        needed = [
            requirements.Requirement(line.partition(";")[0])
            for lines in (setup["INSTALL_REQUIRES"], *extras)
            for line in lines
            if line.partition("; ")[2] in ("", marker)
        ]
        pins = {}
        for name in (f"{stack}.txt", f"{stack}-dev.txt"):
            text = (ROOT / "tools" / "pins" / name).read_text("utf-8")
            for line in re.findall(r"^[a-z].*", text, re.M):
                pin = requirements.Requirement(line.removesuffix("\\"))
                key = utils.canonicalize_name(pin.name)
                pins.setdefault(key, []).append(pin)
        yield stack, needed, pins


# ---- Dependencies -----------------------------------------------------------


def test_every_direct_dependency_is_pinned_within_its_range():
    for stack, needed, pins in _stacks():
        for need in needed:
            found = pins[utils.canonicalize_name(need.name)]
            for pin in found:
                (exact,) = [x for x in pin.specifier if x.operator == "=="]
                assert need.specifier.contains(exact.version), (stack, need)
        assert ("tensorflow-addons" in pins) == (stack == "card")
        assert ("tf-keras" in pins) == (stack == "current")


def _keras_of(*statements):
    """The module of `tf.keras.layers.Layer` after some statements."""
    code = "; ".join([*statements, "print(tf.keras.layers.Layer.__module__)"])
    clean = {k: v for k, v in os.environ.items() if "LEGACY_KERAS" not in k}
    done = processes.run(processes.python(code), status=None, env=clean)
    return (done.stdout or done.stderr).splitlines()[-1]


@pytest.mark.slow
def test_keras_is_that_of_the_stack_whatever_is_imported_first():
    ours, tensorflow = "import tf_contrastive", "import tensorflow as tf"
    expected = "keras.src." if _STACK == "card" else "tf_keras.src."
    for statements in ([ours, tensorflow], [tensorflow, ours]):
        assert _keras_of(*statements).startswith(expected)
    last = _keras_of(tensorflow, "tf.keras.layers", ours)
    if _STACK == "card":
        assert last.startswith(expected)
    else:
        assert last.startswith("ImportError") and "TF_USE_LEGACY_KERAS" in last


# ---- launch/install ---------------------------------------------------------

# Logs the calls of pip.
FAKE_PYTHON = r"""#!/usr/bin/env bash
case "$*" in
  "-m venv --clear .venv")
    mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip --version") ;;
  "-m pip install"*)
    echo "$*" >>pip.calls
    echo "Collecting everything" ;;
  *) exec REAL "$@" ;;
esac
"""


@pytest.fixture
def project(tmp_path):
    """A project with launch/install and a fake Python."""
    (tmp_path / "launch").mkdir()
    scripts = ("launch/install", "launch/commands.sh")
    for name in ("setup.py", "pyproject.toml", *scripts):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "tools" / "pins", tmp_path / "tools" / "pins")
    python = tmp_path / "fake-python"
    python.write_text(FAKE_PYTHON.replace("REAL", sys.executable))
    python.chmod(0o755)
    return tmp_path


def _install(project, *arguments, **variables):
    variables = {"PYTHON": str(project / "fake-python"), **variables}
    words = [project / "launch" / "install", *arguments]
    return processes.run(words, status=None, variables=variables)


def _pip_calls(project):
    """Of each installation: the arguments for the pins and for the package."""
    calls = project / "pip.calls"
    if not calls.exists():
        return []
    lines = [
        line.partition(" --no-build-isolation ")[2]
        for line in calls.read_text().splitlines()
    ]
    # The first call is for the tools that build packages.
    assert all("build.txt" in line for line in lines[::3])
    return [lines[i + 1 : i + 3] for i in range(0, len(lines), 3)]


def test_install_follows_the_pins_and_repeats_only_after_changes(project):
    assert _install(project).returncode == 0
    assert _install(project).stderr == ""
    assert len(_pip_calls(project)) == 1
    assert _install(project, "--dev").returncode == 0
    # The development environment serves users, too.
    assert _install(project).returncode == 0
    assert len(_pip_calls(project)) == 2
    with (project / "tools" / "pins" / f"{_STACK}.txt").open("a") as file:
        file.write("# changed\n")
    assert _install(project).returncode == 0
    # Repeated always: the stamp does not distinguish wheels.
    assert _install(project, "--wheel=a/b.whl").returncode == 0
    base, dev, again, (_, package) = _pip_calls(project)
    assert package == "a/b.whl"
    pins = f"--requirement=tools/pins/{_STACK}.txt"
    assert base == again == [f"--require-hashes {pins}", "-e ."]
    more = f"--requirement=tools/pins/{_STACK}-dev.txt"
    assert dev == [f"--require-hashes {pins} {more}", "-e ."]


def test_the_stack_that_was_asked_for_stays(project):
    for arguments in (["--stack=current"], [], ["--dev"]):
        assert _install(project, *arguments).returncode == 0
    for pinned, _ in _pip_calls(project):
        assert "tools/pins/current.txt" in pinned
    for stack in ("addons", *(["card"] if _STACK == "current" else [])):
        refused = _install(project, f"--stack={stack}")
        assert refused.returncode == (2 if stack == "addons" else 1)
        assert f"--stack={stack}" in refused.stderr.splitlines()[-1]
