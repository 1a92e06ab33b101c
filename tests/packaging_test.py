"""What is installed, pinned, launched and built, apart from the package."""

import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from google.protobuf.internal import api_implementation
from packaging import requirements, utils, version

ROOT = pathlib.Path(__file__).absolute().parents[1]
SCRIPTS = (
    "launch/install",
    "launch/quickstart",
    "launch/test",
    ".ci/run",
)


def read(name):
    return (ROOT / name).read_text("utf-8")


def requirement_lines(name):
    return [
        line
        for line in read(name).splitlines()
        if line and not line.startswith("#")
    ]


def all_pins(name="constraints.txt"):
    """(name, requirement); twice where the Pythons differ."""
    for line in requirement_lines(name):
        parsed = requirements.Requirement(line)
        yield utils.canonicalize_name(parsed.name), parsed


def pins(name="constraints.txt"):
    return dict(all_pins(name))


def setup_constant(name):
    for node in ast.parse(read("setup.py")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)


def bazel_list(name):
    for node in ast.parse(read("tests/BUILD")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)


def names_of_tests():
    return sorted(path.stem for path in (ROOT / "tests").glob("*_test.py"))


# ---- Dependencies -----------------------------------------------------------


def test_every_direct_dependency_is_pinned_within_its_range():
    extras = setup_constant("EXTRAS_REQUIRE")
    extras.pop("gpu")  # Another extra of the same tensorflow.
    lists = [setup_constant("INSTALL_REQUIRES"), *extras.values()]
    for text in [line for lines in lists for line in lines]:
        needed = requirements.Requirement(text)
        name = utils.canonicalize_name(needed.name)
        found = [pin for pinned, pin in all_pins() if pinned == name]
        assert found, text
        for pin in found:
            (exact,) = [s for s in pin.specifier if s.operator == "=="]
            assert needed.specifier.contains(exact.version), (text, str(pin))


def test_constraints_pin_exactly_but_for_what_tensorflow_decides():
    loose = [name for name, pin in pins().items() if "==" not in str(pin)]
    assert loose == ["ml-dtypes"]


def test_tpu_constraints_lack_the_tensorflow_line_and_nothing_else():
    kept = [
        line
        for line in read("constraints.txt").splitlines()
        if not re.match(r"tensorflow(-cpu)?\b(?!-)", line)
    ]
    assert read("constraints-tpu.txt").splitlines() == kept
    assert len(kept) == len(read("constraints.txt").splitlines()) - 1


def test_tpu_constraints_admit_the_tensorflow_of_tpu_images():
    # What tensorflow 2.15.0 asks for where 2.15.1 asks for something else, or
    # where a newer release would push it out.
    needs = {
        "ml-dtypes": "0.2.0",
        "keras": "2.15.0",
        "tensorflow-estimator": "2.15.0",
    }
    pinned = pins("constraints-tpu.txt")
    for name, needed in needs.items():
        assert pinned[name].specifier.contains(needed), name
    assert pinned["wrapt"].specifier.contains("1.14.2")
    tensorflow = requirements.Requirement(setup_constant("INSTALL_REQUIRES")[0])
    assert tensorflow.specifier.contains("2.15.0")


def test_messages_are_read_by_compiled_code():
    # Python's own, which pip takes where there is no other wheel, makes a step
    # take half as long again to be traced.
    assert api_implementation.Type() != "python"


def test_pins_name_no_place_to_download_from():
    for name in ("constraints.txt", "constraints-tpu.txt", "setup.py"):
        assert "://" not in read(name)
        assert not re.search(r"^\s*-", read(name), re.M), name


def test_this_environment_is_of_a_supported_python():
    match = re.search(
        r'python_requires=">=([\d.]+),<([\d.]+)"', read("setup.py")
    )
    lower, upper = map(version.Version, match.groups())
    here = version.Version("{}.{}".format(*sys.version_info))
    assert lower <= here < upper


def test_setup_reads_the_version_of_the_package():
    import tf_contrastive

    printed = subprocess.run(
        [sys.executable, "setup.py", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.split()[-1] == tf_contrastive.__version__


# ---- Bazel ------------------------------------------------------------------


def test_bazel_knows_every_test_file():
    assert sorted(bazel_list("QUICK")) == names_of_tests()


def test_bazel_knows_every_file_with_slow_tests():
    marker = "pytest.mark." + "slow"
    slow = [n for n in names_of_tests() if marker in read(f"tests/{n}.py")]
    assert sorted(bazel_list("SLOW")) == slow


def test_every_test_file_runs_as_a_script():
    for name in names_of_tests():
        assert "pytest.main([__file__])" in read(f"tests/{name}.py"), name


# ---- Launch scripts ---------------------------------------------------------


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck here")
@pytest.mark.parametrize("script", SCRIPTS)
def test_script_is_clean_by_shellcheck(script):
    done = subprocess.run(
        ["shellcheck", ROOT / script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


FAKE_PYTHON = r"""#!/usr/bin/env bash
# Stands in for Python, venv and pip; a pip that logs, and fails on demand.
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
    """A project with launch/install and a stand-in for Python and pip."""
    (tmp_path / "launch").mkdir()
    for name in ("setup.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "launch" / "install", tmp_path / "launch" / "install")
    python = tmp_path / "fake-python"
    python.write_text(FAKE_PYTHON.replace("REAL", sys.executable))
    python.chmod(0o755)
    return tmp_path


def install(project, *arguments, **variables):
    variables = {"PYTHON": str(project / "fake-python"), **variables}
    return subprocess.run(
        [project / "launch" / "install", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


def pip_calls(project):
    calls = project / "pip.calls"
    return calls.read_text().splitlines() if calls.exists() else []


def test_install_is_pinned_and_done_once(project):
    assert install(project).returncode == 0
    assert install(project).stderr == ""
    (call,) = pip_calls(project)
    assert call.endswith("-c constraints.txt -e .")


def test_install_for_tests_adds_the_tools_and_serves_the_quickstart(project):
    assert install(project).returncode == 0
    assert install(project, "--dev").returncode == 0
    assert install(project).returncode == 0
    first, second = pip_calls(project)
    assert first.endswith("-e .")
    assert second.endswith("-e .[dev,beam,onnx]")


def test_install_of_a_wheel_leaves_the_folder_s_package_alone(project):
    assert install(project, "--dev").returncode == 0
    # Whatever is installed already: no stamp tells one wheel from another.
    assert install(project, "--dev", "--wheel=a/b.whl").returncode == 0
    assert install(project, "--dev").returncode == 0
    _, call = pip_calls(project)
    assert call.endswith("-c constraints.txt a/b.whl[dev,beam,onnx]")


def test_install_refuses_an_argument_that_it_does_not_know(project):
    done = install(project, "--dev", "--wheels=a.whl")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "unknown argument --wheels=a.whl: launch/install [--dev]" in line
    assert not pip_calls(project)


def test_install_is_repeated_when_a_pin_changes(project):
    install(project)
    with (project / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    install(project)
    assert len(pip_calls(project)) == 2


def test_failed_install_shows_why_and_is_repeated(project):
    (project / "pip.fails").touch()
    failed = install(project)
    assert failed.returncode == 1
    assert "ERROR: no room left" in failed.stderr
    assert "run the same command again" in failed.stderr
    (project / "pip.fails").unlink()
    assert install(project).returncode == 0
    assert len(pip_calls(project)) == 2


def test_failed_update_takes_the_stamp_away(project):
    install(project)
    (project / "pip.fails").touch()
    assert install(project, "--dev").returncode == 1
    (project / "pip.fails").unlink()
    assert install(project).returncode == 0
    assert len(pip_calls(project)) == 3


def test_install_without_a_supported_python_says_what_to_do(project):
    empty = project / "empty"
    empty.mkdir()
    for tool in ("bash", "dirname"):
        (empty / tool).symlink_to(shutil.which(tool))
    done = install(project, PYTHON="", PATH=str(empty))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "no Python 3.10 or 3.11" in line
    assert "PYTHON=" in line


def test_install_refuses_a_given_python_of_another_version(project):
    done = install(project, PYTHON=shutil.which("true") + "-not")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "is no Python 3.10 or 3.11" in line


# ---- Skipped tests ----------------------------------------------------------

REPORT = """<testsuites><testsuite>
<testcase file="tests/a_test.py" name="test_ran"/>
<testcase file="tests/a_test.py" name="test_left_out[1]">
<skipped message="no such machine"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("allowed", "status"),
    [
        ("", 1),
        ("tests/a_test.py::test_ran # another\n", 1),
        ("tests/a_test.py::test_left_out[1] # needs a machine\n", 0),
        ("# note\n\ntests/a_test.py::test_left_out* # needs a machine\n", 0),
        ("tests/a_test.py::test_left_out[1]\n", 1),
    ],
)
def test_skips_outside_the_allow_list_fail_the_run(tmp_path, allowed, status):
    (tmp_path / "junit.xml").write_text(REPORT)
    (tmp_path / "allowed.txt").write_text(allowed)
    done = subprocess.run(
        [
            sys.executable,
            ROOT / ".ci" / "check_skips.py",
            tmp_path / "junit.xml",
            tmp_path / "allowed.txt",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == status
    assert ("test_left_out" in done.stdout + done.stderr) == bool(status)


# ---- The quickstart's table -------------------------------------------------


def test_quickstart_reports_methods_next_to_the_untrained_encoder(tmp_path):
    import json

    top1 = {"trained": 0.98, "untrained": 0.76}
    results = [
        {"encoder": encoder, "protocol": protocol, "top1": value}
        for encoder, value in top1.items()
        for protocol in ("knn", "prototype", "linear")
    ]
    for run, seconds in (("supcon", "45"), ("simclr", "50")):
        (tmp_path / run / "export" / "7").mkdir(parents=True)
        (tmp_path / run / "export" / "10").mkdir()
        text = json.dumps({"results": results})
        (tmp_path / run / "evaluation.json").write_text(text)
        (tmp_path / f"{run}.seconds").write_text(seconds + "\n")
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "launch" / "quickstart_report.py",
            tmp_path,
            "123",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = {
        line[:26].strip(): line[26:].split() for line in done.stdout.split("\n")
    }
    assert rows["untrained encoder"] == ["0.7600"] * 3 + ["-"]
    assert rows["SimCLR (NT-Xent)"] == ["0.9800"] * 3 + ["50"]
    assert rows["SupCon"] == ["0.9800"] * 3 + ["45"]
    assert "123 s in all" in done.stdout
    assert str(tmp_path / "supcon" / "export" / "10") in done.stdout


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
