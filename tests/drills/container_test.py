"""The commands of launch/Dockerfile, in a clean root.

Needs root, a network, and a folder with a minimal Debian, which is filled:

  debootstrap --variant=minbase bookworm FOLDER
  DRILL_ROOT=FOLDER DRILL_DEVICE=cpu pytest -o faulthandler_timeout=0 \\
    tests/drills/container_test.py
"""

import os
import re
import shutil
import signal
import ssl
import subprocess
import time
from pathlib import Path

import dockerfile
import pytest

_CLEAN = os.environ.get("DRILL_ROOT", "")
_RUN = """pretrain --dataset=digits --image_size=8 --augmentation=crop
--encoder=resnet10 --width=0.0625 --projection_output=16 --loss=supcon
--batch_size=64 --epochs={} --warmup_epochs=0 --workdir=run"""


class _Container:
    """What a builder and a runtime do of it, by chroot."""

    def __init__(self, root, arguments):
        self.root, self.user, self.folder = root, "0", "/"
        # This machine's own way to the package index.
        self.variables = {
            name: value
            for name, value in os.environ.items()
            if name.lower().endswith("_proxy")
        } | {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/bin",
            "PIP_CERT": "/certificates",
            "HOME": "/root",
        }
        for name, text in dockerfile.instructions():
            self._follow(name, text, arguments)

    def _follow(self, name, text, arguments):
        def expand(word):
            return re.sub(
                r"\$\{?(\w+)\}?", lambda m: self.variables[m[1]], word
            )

        if name in ("ARG", "ENV"):
            for word in text.split():
                key, _, value = word.partition("=")
                given = arguments.get(key) if name == "ARG" else None
                self.variables[key] = expand(given or value)
        elif name == "WORKDIR":
            self.folder = text
            self.path.mkdir(parents=True, exist_ok=True)
        elif name == "USER":
            self.user, self.variables["HOME"] = text, "/home/user"
        elif name == "COPY":
            *sources, target = text.split()
            for source in sources:
                self._copy(dockerfile.ROOT / source, target, len(sources))
        elif name == "RUN":
            assert self.start("sh", "-c", text).wait() == 0, text
        elif name == "ENTRYPOINT":
            self.entry = eval(text)

    @property
    def path(self):
        return Path(self.root + self.folder)

    def _copy(self, source, target, number):
        if source.is_dir():
            shutil.copytree(source, self.path / target, dirs_exist_ok=True)
            return
        target = self.path / target
        if number > 1:
            target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)

    def start(self, *words, **options):
        """Starts a command as process 1 of its own processes."""
        return subprocess.Popen(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
                f"--mount-proc={self.root}/proc",
                *("sh", "-c", 'mount --rbind /sys "$0/sys" && exec "$@"'),
                self.root,
                *("env", "--ignore-environment"),
                *(f"{key}={value}" for key, value in self.variables.items()),
                *("chroot", f"--userspec={self.user}:{self.user}", self.root),
                *("env", f"--chdir={self.folder}", *words),
            ],
            **options,
        )

    def run(self, *words):
        return self.start(
            *self.entry,
            *words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.mark.skipif(not _CLEAN, reason="$DRILL_ROOT is not set")
def test_the_container_trains_is_stopped_and_resumes():
    shutil.copy("/etc/resolv.conf", f"{_CLEAN}/etc/resolv.conf")
    shutil.copy(ssl.get_default_verify_paths().cafile, f"{_CLEAN}/certificates")
    device = os.environ.get("DRILL_DEVICE", "cpu")
    container = _Container(_CLEAN, {"DEVICE": device})
    assert "pretrain" in container.run("--help").communicate()[0]
    words = _RUN.format(30).split()
    run = container.run(*words)
    for line in run.stdout:
        if "step 32" in line or "epoch 2" in line:
            break
    # As `docker stop` does: to process 1.
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text()
    os.kill(int(children), signal.SIGTERM)
    rest = run.communicate(timeout=100)[0]
    assert run.returncode == 42 and "saved" in rest, rest
    again = container.run(*words)
    out = again.communicate(timeout=600)[0]
    assert again.returncode == 0 and "resum" in out, out
    # Before a run handles it, the signal ends the process at once, too.
    early = container.run(*words)
    time.sleep(0.5)
    children = Path(f"/proc/{early.pid}/task/{early.pid}/children").read_text()
    os.kill(int(children), signal.SIGTERM)
    assert early.wait(timeout=30) == 128 + signal.SIGTERM
    owner = (container.path / "run").stat().st_uid
    assert owner == int(container.user) > 0
