"""Commands of this package, each in a process of its own."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tf_contrastive.base import errors, installation

# What `-m` does, but for the current folder: it would be the first on the path,
# and a json.py in it would be run. The package may be a clone's.
_START = (
    "import sys; sys.path[:] = [p for p in sys.path if p];"
    f" sys.path.append({installation.ROOT!r});"
    " from tf_contrastive.__main__ import main; sys.exit(main())"
)


def run(words: Sequence[str]) -> tuple[int, str]:
    """Runs `python -m tf_contrastive` with the words, away from this folder.

    What it prints goes to stderr. Its end is waited for when this process is
    interrupted, since it may save first: the terminal sends SIGINT to both, and
    SIGTERM is passed on.

    Returns:
      (exit status, last line on stderr); `EXIT_RESUME` if it was interrupted.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _START, *words],
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
