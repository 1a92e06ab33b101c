"""Dependencies, the installer and the checks of continuous integration."""

import ast
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from google.protobuf.internal import api_implementation
from packaging import requirements, utils

ROOT = pathlib.Path(__file__).absolute().parents[1]


def _read(name):
    return (ROOT / name).read_text("utf-8")


def _pins(name="constraints.txt"):
    """Pins by package; several where Python versions differ."""
    pins = {}
    for line in _read(name).splitlines():
        if line and not line.startswith("#"):
            pin = requirements.Requirement(line)
            pins.setdefault(utils.canonicalize_name(pin.name), []).append(pin)
    return pins


def _setup_constant(name):
    for node in ast.parse(_read("setup.py")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)


def _run(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, **options)


# ---- Dependencies -----------------------------------------------------------


def test_every_direct_dependency_is_pinned_within_its_range():
    extras = _setup_constant("EXTRAS_REQUIRE")
    extras.pop("gpu")  # The same tensorflow with another extra.
    lists = [_setup_constant("INSTALL_REQUIRES"), *extras.values()]
    pins = _pins()
    for text in [line for lines in lists for line in lines]:
        needed = requirements.Requirement(text)
        for pin in pins[utils.canonicalize_name(needed.name)]:
            (exact,) = [s for s in pin.specifier if s.operator == "=="]
            assert needed.specifier.contains(exact.version), (text, str(pin))


def test_tpu_constraints_only_lack_the_tensorflow_line():
    lines = _read("constraints.txt").splitlines()
    others = [x for x in lines if not re.match(r"tensorflow(-cpu)?\b(?!-)", x)]
    assert _read("constraints-tpu.txt").splitlines() == others
    assert len(others) == len(lines) - 1


def test_tpu_constraints_admit_the_tensorflow_of_tpu_images():
    pins = _pins("constraints-tpu.txt")
    for name, version in {
        "ml-dtypes": "0.2.0",
        "keras": "2.15.0",
        "tensorflow-estimator": "2.15.0",
        "wrapt": "1.14.2",
    }.items():
        assert pins[name][0].specifier.contains(version), name
    tensorflow = _setup_constant("INSTALL_REQUIRES")[0]
    assert requirements.Requirement(tensorflow).specifier.contains("2.15.0")


def test_protobuf_messages_are_read_by_compiled_code():
    # The pure Python implementation, pip's choice where there is no other
    # wheel, makes tracing a step take 1.5 times as long.
    assert api_implementation.Type() != "python"


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
    for name in ("setup.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "launch" / "install", tmp_path / "launch" / "install")
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
    calls = project / "pip.calls"
    return calls.read_text().splitlines() if calls.exists() else []


def test_install_follows_the_pins_and_repeats_only_after_changes(project):
    assert _install(project).returncode == 0
    assert _install(project).stderr == ""
    assert len(_pip_calls(project)) == 1
    assert _install(project, "--dev").returncode == 0
    # The development environment serves users, too.
    assert _install(project).returncode == 0
    assert len(_pip_calls(project)) == 2
    with (project / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    assert _install(project).returncode == 0
    base, dev, again = _pip_calls(project)
    assert base.endswith("-c constraints.txt -e .")
    assert dev.endswith("-c constraints.txt -e .[dev,beam,onnx]")
    assert again == base


def test_install_of_a_wheel_ignores_the_package_of_the_folder(project):
    assert _install(project, "--dev").returncode == 0
    # Repeated always: the stamp does not distinguish wheels.
    assert _install(project, "--dev", "--wheel=a/b.whl").returncode == 0
    _, call = _pip_calls(project)
    assert call.endswith("-c constraints.txt a/b.whl[dev,beam,onnx]")


def test_a_failed_install_shows_why_and_is_repeated(project):
    assert _install(project).returncode == 0
    (project / "pip.fails").touch()
    failed = _install(project, "--dev")
    assert failed.returncode == 1
    assert "ERROR: no room left" in failed.stderr
    assert "run the same command again" in failed.stderr
    (project / "pip.fails").unlink()
    assert _install(project).returncode == 0
    assert len(_pip_calls(project)) == 3


def test_install_errors_name_the_argument(project):
    empty = project / "empty"
    empty.mkdir()
    for tool in ("bash", "dirname"):
        (empty / tool).symlink_to(shutil.which(tool))
    for done, text in (
        (_install(project, "--wheels=a.whl"), "--wheels=a.whl"),
        (_install(project, PYTHON="/nowhere/python"), "PYTHON=/nowhere"),
        (_install(project, PYTHON="", PATH=str(empty)), "PYTHON="),
    ):
        assert done.returncode == 1
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


# ---- The quickstart's table -------------------------------------------------


def test_the_quickstart_compares_methods_with_the_untrained_encoder(tmp_path):
    results = [
        {"encoder": encoder, "protocol": protocol, "top1": top1}
        for encoder, top1 in {"trained": 0.98, "untrained": 0.76}.items()
        for protocol in ("knn", "prototype", "linear")
    ]
    for run, seconds in (("supcon", "45"), ("simclr", "50")):
        (tmp_path / run / "export" / "7").mkdir(parents=True)
        (tmp_path / run / "export" / "10").mkdir()
        text = json.dumps({"results": results})
        (tmp_path / run / "evaluation.json").write_text(text)
        (tmp_path / f"{run}.seconds").write_text(seconds + "\n")
    script = ROOT / "launch" / "quickstart_report.py"
    done = _run(sys.executable, script, tmp_path, "123", check=True)
    rows = {
        line[:26].strip(): line[26:].split() for line in done.stdout.split("\n")
    }
    assert rows["untrained encoder"] == ["0.7600"] * 3 + ["-"]
    assert rows["SimCLR (NT-Xent)"] == ["0.9800"] * 3 + ["50"]
    assert rows["SupCon"] == ["0.9800"] * 3 + ["45"]
    assert "123 s" in done.stdout
    assert str(tmp_path / "supcon" / "export" / "10") in done.stdout


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
