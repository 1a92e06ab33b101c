"""launch/release_check: wheels that are built, installed elsewhere, and tested.

Interpreters are stand-ins whose environments borrow this one's packages instead
of asking an index for them; what is built and installed is the package itself.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_VERSION = "{}.{}".format(*sys.version_info)

# Makes environments with a stand-in for pip, and these packages for all others.
_PYTHON = """#!/usr/bin/env bash
set -e
case "$*" in
  "-m venv "*)
    {python} "$1" "$2" --without-pip "${{@:3}}"
    made=${{@: -1}}
    site=$("$made/bin/python" -c \
      'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '%s\\n' {borrowed} >"$site/borrowed.pth"
    mkdir "$site/pip"
    touch "$site/pip/__init__.py"
    cp {pip} "$site/pip/__main__.py"
    ln -s {ruff} "$made/bin" ;;
  *) exec {python} "$@" ;;
esac
"""
_PIP = """
import subprocess, sys
print(*sys.argv[1:], file=open({calls!r}, "a"))
wheels = [word.partition("[")[0] for word in sys.argv if ".whl" in word]
if wheels:
    pip = [{python!r}, "-m", "pip", "--python", sys.executable]
    words = ["install", "--quiet", "--no-deps", "--no-index"]
    # Whether or not the borrowed ones hold an earlier one.
    words += ["--ignore-installed"]
    sys.exit(subprocess.call([*pip, *words, *wheels]))
"""


class _Checked:
    """A folder with a stand-in Python; runs release_check, and tells of it."""

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        (folder / "pip.py").write_text(
            _PIP.format(python=sys.executable, calls=str(folder / "calls"))
        )

    def stand_in(self, version):
        python = self.bin / f"python{version}"
        scripts = Path(sysconfig.get_path("scripts"))
        python.write_text(
            _PYTHON.format(
                python=sys.executable,
                borrowed=" ".join(p for p in sys.path if "-packages" in p),
                pip=self.folder / "pip.py",
                ruff=scripts / "ruff",
            )
        )
        python.chmod(0o755)

    def run(self, *words, root=_ROOT):
        tools = "bash dirname env sed mktemp mkdir rm tar gzip cat cp ln diff"
        tools += " basename tail mv sh touch"
        for tool in tools.split():
            if not (self.bin / tool).exists():
                (self.bin / tool).symlink_to(shutil.which(tool))
        return subprocess.run(
            [root / "launch" / "release_check", *words],
            # No Python but a stand-in is found.
            env={
                **os.environ,
                "HOME": str(self.folder),
                "PATH": str(self.bin),
                "PYENV_ROOT": str(self.folder),
                "PYTHONPATH": str(_ROOT),
                "TMPDIR": str(self.temporary),
                "UV_PYTHON_INSTALL_DIR": str(self.folder),
            },
            capture_output=True,
            text=True,
        )


@pytest.fixture
def checked(tmp_path):
    return _Checked(tmp_path)


@pytest.mark.slow
def test_tests_of_the_wheel_are_run_without_the_sources(checked):
    checked.stand_in(_VERSION)
    done = checked.run(
        f"--python={_VERSION}",
        "--keep",
        "--",
        *("tests/architecture_test.py", "-k", "layer", "-n0"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b2 passed", done.stdout)
    assert done.stderr.splitlines()[-1] == (
        f"release_check: Python {_VERSION}: passed"
    )
    (work,) = checked.temporary.glob("tmp.*")
    assert {path.suffix for path in (work / "dist").iterdir()} == {
        *(".gz", ".whl")
    }
    # All that is there of the package is what was installed.
    package = work / _VERSION / "tf_contrastive"
    (site,) = (work / _VERSION / ".venv").glob("lib/*/site-packages")
    assert package.is_symlink() and package.resolve().parent == site.resolve()
    # By the pins, and with what the tests need.
    *_, call = (checked.folder / "calls").read_text().splitlines()
    assert re.search(r"-c constraints\.txt \S+\.whl\[dev,beam,onnx\]$", call)
    shutil.rmtree(work)


def test_a_wheel_that_lacks_a_file_fails(checked):
    checked.stand_in(_VERSION)
    root = checked.folder / "project"
    root.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "constraints.txt"):
        shutil.copy(_ROOT / name, root)
    for name in ("launch", "tf_contrastive"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_ROOT / name, root / name, ignore=ignored)
    text = (root / "setup.py").read_text()
    kept = re.sub(r"^ *package_data=.*\n", "", text, flags=re.MULTILINE)
    assert kept != text
    (root / "setup.py").write_text(kept)
    done = checked.run(f"--python={_VERSION}", root=root)
    assert done.returncode == 1
    assert "reproduction: claims.json" in done.stderr
    assert "the wheel is not what stands in tf_contrastive" in done.stderr
    assert f"Python {_VERSION}: failed" in done.stderr.splitlines()[-1]
    assert not list(checked.temporary.iterdir())
    assert not list(root.glob("*.egg-info")) and not (root / "build").exists()


@pytest.mark.parametrize(
    ("words", "told", "status"),
    [
        (
            ["--python=3.12"],
            "--python=3.12 is no supported Python: give one of 3.10 3.11",
            2,
        ),
        (["--python="], "--python= is no supported Python", 2),
        (["-k", "losses"], "unknown argument -k (launch/test's follow", 2),
        # The first of both that is not here; pythons of other versions are.
        ([], "no Python 3.1", 1),
        (
            ["--python=3.11", "--python=3.10"],
            "install it, or name those wanted: --python=VERSION",
            1,
        ),
    ],
)
def test_a_mistake_gets_one_line_before_anything_is_built(
    checked, words, told, status
):
    checked.stand_in(_VERSION)
    done = checked.run(*words)
    assert done.returncode == status
    (line,) = done.stderr.splitlines()
    assert told in line
    assert done.stdout == "" and not list(checked.temporary.iterdir())


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
