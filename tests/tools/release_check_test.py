"""tools/release_check builds a wheel, installs it elsewhere and tests it.

The package is really built and installed. Its dependencies come from this
environment instead of a package index, through a fake Python and pip.
"""

import re
import shutil
import sys
import sysconfig
from pathlib import Path

import processes
import pytest

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
    """Runs release_check with a fake Python."""

    def __init__(self, folder):
        self.folder = folder
        self.bin, self.temporary = folder / "bin", folder / "temporary"
        self.bin.mkdir()
        self.temporary.mkdir()
        pip = folder / "pip.py"
        calls = str(folder / "calls")
        pip.write_text(_PIP.format(python=sys.executable, calls=calls))
        python = self.bin / f"python{_VERSION}"
        text = _PYTHON.format(
            python=sys.executable,
            borrowed=" ".join(p for p in sys.path if "-packages" in p),
            pip=pip,
            ruff=Path(sysconfig.get_path("scripts")) / "ruff",
        )
        python.write_text(text)
        python.chmod(0o755)
        tools = "bash dirname env sed mktemp mkdir rm tar gzip cat cp ln diff"
        for tool in f"{tools} basename tail mv sh touch".split():
            (self.bin / tool).symlink_to(shutil.which(tool))

    def run(self, *words, root=processes.ROOT):
        folder = str(self.folder)  # Only the fake Python is found.
        variables = {"HOME": folder, "PATH": str(self.bin)}
        variables |= {"PYENV_ROOT": folder, "UV_PYTHON_INSTALL_DIR": folder}
        variables |= {"PYTHONPATH": str(root), "TMPDIR": str(self.temporary)}
        check = [root / "tools" / "release_check", *words]
        return processes.run(check, status=None, variables=variables)


@pytest.fixture
def release(tmp_path):
    return _Release(tmp_path)


@pytest.mark.slow
def test_the_wheel_is_tested_without_the_sources(release):
    words = ("--keep", "--no_audit", "--", "tests/architecture_test.py")
    words += ("-k", "lower_floors or reads_flags", "-n0")
    done = release.run(f"--python={_VERSION}", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b2 passed", done.stdout)
    (work,) = release.temporary.glob("tmp.*")
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
    root = release.folder / "project"
    root.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(processes.ROOT / name, root)
    for name in ("configs", "launch", "tools", "tf_contrastive"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(processes.ROOT / name, root / name, ignore=ignored)
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
