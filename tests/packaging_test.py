"""Dependencies, the installer and the checks of continuous integration."""

import ast
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from google.protobuf.internal import api_implementation
from packaging import requirements, utils

from tf_contrastive import __main__, flags
from tf_contrastive.base import errors
from tf_contrastive.config.pretrain import Pretrain

ROOT = pathlib.Path(__file__).absolute().parents[1]
# The default of this Python.
_STACK = "card" if sys.version_info < (3, 12) else "current"


def _read(name):
    return (ROOT / name).read_text("utf-8")


def _stacks():
    """Stack -> its requirements, and its pins by package.

    A package has several pins where Python versions differ.
    """
    setup = {}
    tree = ast.parse(_read("setup.py"))
    names = {"_CARD", "_CURRENT", "MARKERS", "INSTALL_REQUIRES"}
    names |= {"EXTRAS_REQUIRE"}
    for node in tree.body:
        name = isinstance(node, ast.Assign) and node.targets[0].id
        if name in names:
            exec(ast.unparse(node), setup)
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
            for line in re.findall(
                r"^[a-z].*", _read(f"tools/pins/{name}"), re.M
            ):
                pin = requirements.Requirement(line.removesuffix("\\"))
                key = utils.canonicalize_name(pin.name)
                pins.setdefault(key, []).append(pin)
        yield stack, needed, pins


def _run(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, **options)


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


def test_every_pin_has_the_hashes_of_its_files():
    for name in ("card", "card-dev", "current", "current-dev"):
        text = _read(f"tools/pins/{name}.txt")
        _, *blocks = re.split(r"^(?=[a-z])", text, flags=re.M)
        assert len(blocks) > 40
        for block in blocks:
            assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", block), block


def test_protobuf_messages_are_read_by_compiled_code():
    # The pure Python implementation, pip's choice where there is no other
    # wheel, makes tracing a step take 1.5 times as long.
    assert api_implementation.Type() != "python"


def _keras_of(*statements):
    """The module of `tf.keras.layers.Layer` after some statements."""
    code = "; ".join([*statements, "print(tf.keras.layers.Layer.__module__)"])
    clean = {k: v for k, v in os.environ.items() if "LEGACY_KERAS" not in k}
    done = _run(sys.executable, "-c", code, cwd=ROOT, env=clean)
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


def test_setup_reads_the_version_of_the_package():
    import tf_contrastive

    done = _run(sys.executable, "setup.py", "--version", cwd=ROOT, check=True)
    assert done.stdout.split()[-1] == tf_contrastive.__version__


# ---- launch/install ---------------------------------------------------------

# Logs the calls of pip, which fails if the file pip.fails exists.
FAKE_PYTHON = r"""#!/usr/bin/env bash
case "$*" in
  "-m venv --clear .venv")
    mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip --version") ;;
  "-m pip install"*)
    echo "$*" >>pip.calls
    echo "Collecting everything"
    [ ! -e pip.fails ] || { echo "ERROR: no room left"; exit 1; } ;;
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
    return _run(
        project / "launch" / "install",
        *arguments,
        env={**os.environ, **variables},
    )


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
    base, dev, again = _pip_calls(project)
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


def test_install_of_a_wheel_ignores_the_package_of_the_folder(project):
    assert _install(project, "--dev").returncode == 0
    # Repeated always: the stamp does not distinguish wheels.
    assert _install(project, "--dev", "--wheel=a/b.whl").returncode == 0
    _, (_, package) = _pip_calls(project)
    assert package == "a/b.whl"


def test_a_failed_install_shows_why_and_is_repeated(project):
    assert _install(project).returncode == 0
    (project / "pip.fails").touch()
    failed = _install(project, "--dev")
    assert failed.returncode == 1
    assert "ERROR: no room left" in failed.stderr
    assert "run the same command again" in failed.stderr
    (project / "pip.fails").unlink()
    before = (project / "pip.calls").read_text()
    assert _install(project).returncode == 0
    assert len((project / "pip.calls").read_text()) > len(before)


def test_install_errors_name_the_argument(project):
    empty = project / "empty"
    empty.mkdir()
    for tool in ("bash", "dirname"):
        (empty / tool).symlink_to(shutil.which(tool))
    compiler = ["--tpu-compile"]
    for done, text, status in (
        (_install(project, "--wheels=a.whl"), "--wheels=a.whl", 2),
        (_install(project, "--wheel=--pre.whl"), "--wheel=--pre.whl", 2),
        (_install(project, "--dev", *compiler), "--tpu-compile", 2),
        (_install(project, PYTHON="/nowhere/python"), "PYTHON=/nowhere", 2),
        (_install(project, *compiler, PYTHON="/no\nway"), "PYTHON=/no?way", 2),
        (_install(project, PYTHON="", PATH=str(empty)), "PYTHON=", 1),
    ):
        assert done.returncode == status
        (line,) = done.stderr.splitlines()
        assert text in line
    assert not _pip_calls(project)


# ---- Skipped tests ----------------------------------------------------------

REPORT = """<testsuites><testsuite>
<testcase file="tests/a_test.py" name="test_ran"/>
<testcase file="tests/a_test.py" name="test_left_out[1]">
<skipped message="no such machine"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("allowed", "status"),
    [
        ("tests/a_test.py::test_ran # another\n", 1),
        ("tests/a_test.py::test_left_out[1] # needs a machine\n", 0),
        ("# note\n\ntests/a_test.py::test_left_out* # needs a machine\n", 0),
        ("tests/a_test.py::test_left_out[1]\n", 1),
    ],
)
def test_skips_outside_the_allow_list_fail_the_run(tmp_path, allowed, status):
    (tmp_path / "junit.xml").write_text(REPORT)
    (tmp_path / "allowed.txt").write_text(allowed)
    done = _run(
        sys.executable,
        ROOT / ".ci" / "check_skips.py",
        tmp_path / "junit.xml",
        tmp_path / "allowed.txt",
    )
    assert done.returncode == status
    assert ("test_left_out" in done.stdout + done.stderr) == bool(status)


# ---- The quickstart ---------------------------------------------------------

# Stands for a Python that runs the commands: prints on stderr what TensorFlow
# does when it is imported; a file fails the reading of the export.
QUICKSTART_PYTHON = """#!/bin/sh
for word; do case $word in --workdir=*) workdir=${word#*=} ;; esac; done
case "$*" in
  *serve.py*)
    echo "I0000 port.cc: oneDNN" >&2
    [ ! -e HERE/bad ] || { echo "1-NN is only 0.1" >&2; exit 1; } ;;
  *evaluate*) cp HERE/evaluation.json "$workdir" ;;
  *export*) mkdir -p "$workdir/export/7" "$workdir/export/10" ;;
  *pretrain*) mkdir -p "$workdir"; echo '{"seconds": 7.2}' \
    | tee "$workdir/pretrain.json" ;;
esac
"""


@pytest.fixture
def quickstart(tmp_path, monkeypatch, capfd):
    """Runs the command with a stand-in; returns status, stdout and stderr."""
    results = [
        {"encoder": encoder, "protocol": protocol, "top1": top1}
        for encoder, top1 in {"trained": 0.98, "untrained": 0.76}.items()
        for protocol in ("knn", "prototype", "linear")
    ]
    table = json.dumps({"results": results})
    (tmp_path / "evaluation.json").write_text(table)
    python = tmp_path / "python"
    python.write_text(QUICKSTART_PYTHON.replace("HERE", str(tmp_path)))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.chdir(tmp_path)

    def run(*words):
        words = ["tf_contrastive", "quickstart", "--workdir=runs", *words]
        monkeypatch.setattr(sys, "argv", words)
        return __main__.main(), *capfd.readouterr()

    return run


def test_the_quickstart_compares_methods_with_the_untrained_encoder(quickstart):
    status, out, err = quickstart()
    assert status == 0
    rows = {line[:26].strip(): line[26:].split() for line in out.split("\n")}
    assert rows["untrained encoder"] == ["0.7600"] * 3 + ["-"]
    assert rows["SimCLR (NT-Xent)"] == ["0.9800"] * 3 + ["7"]
    assert rows["SupCon"] == ["0.9800"] * 3 + ["7"]
    # Only lines that concern its user; what is finished is not run again.
    assert len(err.splitlines()) == 8
    assert all(line.startswith("==") for line in err.splitlines())
    assert quickstart()[2] == ""


def test_the_quickstart_names_the_step_that_failed(quickstart, tmp_path):
    (tmp_path / "bad").touch()
    status, _, err = quickstart()
    *_, why, last = err.splitlines()
    assert status != 0 and why == "1-NN is only 0.1"
    assert "serving runs/supcon/export" in last and "runs/log.txt" in last
    (tmp_path / "bad").unlink()
    assert quickstart()[0] == 0


def test_recipes_of_the_package_are_found_from_any_folder(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = ["--flagfile=configs/quickstart.flags", "--workdir=runs"]
    run = flags.parse(Pretrain, words)
    assert run.views.policy.min_crop_area == 0.4
    # A file of one's own comes first.
    (tmp_path / "configs").mkdir()
    own = tmp_path / "configs" / "quickstart.flags"
    own.write_text("--min_crop_area=0.7")
    assert flags.parse(Pretrain, words).views.policy.min_crop_area == 0.7
    with pytest.raises(errors.UserError, match="cannot be read"):
        flags.parse(Pretrain, ["--flagfile=configs/absent.flags"])


def test_an_editable_install_comes_before_a_clone_in_the_current_folder(
    tmp_path,
):
    """A path does; a finder comes after any folder named tf_contrastive."""
    root = tmp_path / "tf_contrastive"
    for name in ("setup.py", "tf_contrastive/base/installation.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    (root / "tf_contrastive" / "__init__.py").touch()
    (root / "configs").mkdir()
    code = "from setuptools import build_meta as b; b.build_editable('.')"
    _run(sys.executable, "-c", code, cwd=root, check=True)
    (wheel,) = root.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (n for n in archive.namelist() if n.endswith(".pth"))
        assert archive.read(path).decode().strip() == str(root)
