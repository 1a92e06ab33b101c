"""Processes: commands of this package in their own, and which one is which."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tf_contrastive.base import errors, installation

# As `python -m tf_contrastive`, without the present folder before Python's own
# in `sys.path`, where a user's json.py may be.
_START = (
    "import sys; sys.path[:1] = []; sys.path.append(sys.argv.pop(1));"
    "import runpy; runpy.run_module('tf_contrastive', None, '__main__', True)"
)


def command(*words: str) -> list[str]:
    """Returns the words that run a command of this package in a process."""
    return [sys.executable, "-c", _START, installation.ROOT, *words]


def run(words: Sequence[str]) -> tuple[int, str]:
    """Runs a command of this package in a process of its own.

    It is waited for when this process is interrupted, since it may save first:
    the terminal sends SIGINT to both, and SIGTERM is passed on.

    Returns:
      (exit status, last line on stderr); `EXIT_RESUME` if it was interrupted.
    """
    process = subprocess.Popen(
        command(*words),
        stdout=sys.stderr,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    interrupted = False

    def pass_on(number: int, frame: Any) -> None:
        nonlocal interrupted
        interrupted = True
        if number == signal.SIGTERM:
            process.terminate()

    before = {
        number: signal.signal(number, pass_on)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    last = ""
    try:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(line)
            sys.stderr.flush()
            last = line.strip() or last
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if status < 0:
        last = f"ended by {signal.Signals(-status).name}"
    return errors.EXIT_RESUME if interrupted else status, last


# ---- Which process is which --------------------------------------------------


def identity(process: int) -> dict[str, Any]:
    """Identifies a process among those of other machines, boots, containers.

    Its "place" is a boot of the machine, and what numbers processes there.
    """
    host = place = socket.gethostname()
    with contextlib.suppress(OSError):  # Linux has these files.
        with open("/proc/sys/kernel/random/boot_id") as file:
            place = file.read().strip()
        place += f" {os.readlink('/proc/self/ns/pid')}"
    born = birth(process)
    return {"host": host, "place": place, "process": process, "born": born}


def birth(process: int) -> str | None:
    """Returns the start time of a process since the boot; None: it has ended.

    It differs for a later process of the same number.
    """
    try:
        with open(f"/proc/{process}/stat") as file:
            # The name, in parentheses, may hold anything; field 22 follows.
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return None if os.path.exists("/proc/self/stat") else "unknown"
