"""tools/release_check builds a wheel, installs it elsewhere and tests it.

The package is really built and installed. Its dependencies come from this
environment instead of a package index, through a fake Python and pip.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_VERSION = "{}.{}".format(*sys.version_info)

# Creates environments with a fake pip and the packages of this environment.
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
    words += ["--ignore-installed"]
    sys.exit(subprocess.call([*pip, *words, *wheels]))
"""


class _Release:
    """Runs release_check with fake Pythons."""

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        (folder / "pip.py").write_text(
            _PIP.format(python=sys.executable, calls=str(folder / "calls"))
        )

    def fake_python(self, version):
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
            [root / "tools" / "release_check", *words],
            # Only fake Pythons are found.
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
def release(tmp_path):
    return _Release(tmp_path)


@pytest.mark.slow
def test_the_wheel_is_tested_without_the_sources(release):
    release.fake_python(_VERSION)
    done = release.run(
        f"--python={_VERSION}",
        "--keep",
        "--no_audit",
        "--",
        "tests/architecture_test.py",
        "-k",
        "lower_floors or few_floors",
        "-n0",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b2 passed", done.stdout)
    assert done.stderr.splitlines()[-1] == (
        f"release_check: Python {_VERSION}: passed"
    )
    (work,) = release.temporary.glob("tmp.*")
    assert {path.suffix for path in (work / "dist").iterdir()} == {
        ".gz",
        ".whl",
    }
    # The package exists only in the environment.
    package = work / _VERSION / "tf_contrastive"
    (site,) = (work / _VERSION / ".venv").glob("lib/*/site-packages")
    assert package.is_symlink() and package.resolve().parent == site.resolve()
    *_, pins, wheel = (release.folder / "calls").read_text().splitlines()
    assert "--require-hashes" in pins and "-dev.txt" in pins
    assert re.search(r"--no-deps .*\S+\.whl$", wheel)
    shutil.rmtree(work)


@pytest.mark.slow
def test_a_wheel_that_lacks_a_file_fails(release):
    release.fake_python(_VERSION)
    root = release.folder / "project"
    root.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(_ROOT / name, root)
    for name in ("configs", "launch", "tools", "tf_contrastive"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_ROOT / name, root / name, ignore=ignored)
    text = (root / "setup.py").read_text()
    line = r'^ *"tf_contrastive\.encoders\.pretrained": \[.*\n'
    without = re.sub(line, "", text, flags=re.MULTILINE)
    assert without != text
    (root / "setup.py").write_text(without)
    done = release.run(f"--python={_VERSION}", "--no_audit", root=root)
    assert done.returncode == 1
    assert "pretrained" in done.stderr
    assert f"Python {_VERSION}: failed" in done.stderr.splitlines()[-1]
    assert not list(release.temporary.iterdir())
    assert not list(root.glob("*.egg-info")) and not (root / "build").exists()


def test_a_mistake_gets_one_line_before_the_build(release):
    release.fake_python(_VERSION)
    for words, argument, status in (
        (["--python=3.9"], "--python=3.9", 2),
        (["-k", "losses"], "-k", 2),
        # The other version is not installed.
        ([], "Python 3.1", 1),
    ):
        done = release.run(*words)
        assert done.returncode == status
        (line,) = done.stderr.splitlines()
        assert argument in line
        assert done.stdout == "" and not list(release.temporary.iterdir())
