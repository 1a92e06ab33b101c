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
from pathlib import Path

import dockerfile
import processes
import pytest
import small

_CLEAN = os.environ.get("DRILL_ROOT", "")


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
            with self.start("sh", "-c", text) as build:
                assert build.ended() == 0, build.output
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

    def start(self, *words):
        """Starts a command as process 1 of its own processes."""
        return processes.start(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
                f"--mount-proc={self.root}/proc",
                *("sh", "-c", 'mount --rbind /sys "$0/sys" && exec "$@"'),
                self.root,
                *("env", "--ignore-environment"),
                *(f"{key}={value}" for key, value in self.variables.items()),
                *("chroot", f"--userspec={self.user}:{self.user}", self.root),
                *("env", f"--chdir={self.folder}", *words),
            ]
        )


@pytest.mark.skipif(not _CLEAN, reason="$DRILL_ROOT is not set")
def test_the_container_trains_is_stopped_and_resumes():
    shutil.copy("/etc/resolv.conf", f"{_CLEAN}/etc/resolv.conf")
    shutil.copy(ssl.get_default_verify_paths().cafile, f"{_CLEAN}/certificates")
    device = os.environ.get("DRILL_DEVICE", "cpu")
    container = _Container(_CLEAN, {"DEVICE": device})
    words = [*container.entry, "pretrain", "--workdir=run", *small.words()]
    words += ["--epochs=30", "--image_size=8"]
    with container.start(*words) as run:
        run.until("epoch 2/30")
        # As `docker stop` does: to process 1.
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text()
        os.kill(int(children), signal.SIGTERM)
        assert run.ended() == 42 and "saved" in run.output, run.output
    with container.start(*words) as again:
        again.until("resumed at step")
        assert again.ended() == 0, again.output
    owner = (container.path / "run").stat().st_uid
    assert owner == int(container.user) > 0
