"""The process of lightly, in an interpreter of the user's."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from typing import Any

from lab.benchmarks import peer_program
from tf_contrastive.base import errors

_PACKAGES = ("torch", "torchvision", "lightly")
_NEEDS = (
    f"a Python with {', '.join(_PACKAGES)}; make one by: python3 -m venv peer"
    f" && peer/bin/pip install {' '.join(_PACKAGES)}"
)


def interpreter(given: str) -> str:
    """Returns the path of an interpreter that has the packages.

    Raises:
      UserError: if it cannot be run or lacks one.
    """
    python = shutil.which(os.path.expanduser(given)) or given
    words = [python, "-c", f"import {', '.join(_PACKAGES)}"]
    try:
        subprocess.run(
            words, capture_output=True, check=True, env=_environment()
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise errors.UserError(
            f"{errors.arg('peer_python', given or None)}: must be {_NEEDS}"
        ) from error
    return os.path.abspath(python)


def _environment() -> dict[str, str]:
    """Returns this environment without what is for this interpreter alone."""
    own = ("PYTHONPATH", "PYTHONHOME")
    kept = {name: text for name, text in os.environ.items() if name not in own}
    # It would ask lightly's server for newer versions.
    return {**kept, "LIGHTLY_DID_VERSION_CHECK": "True"}


class Process(contextlib.AbstractContextManager):
    """Runs a case of `peer_program`, which waits between turns.

    Attributes:
      about: what it says of the case.

    Raises:
      UserError: if it fails, here or in a turn.
    """

    def __init__(self, python: str, case: dict[str, Any], folder: str) -> None:
        # A folder without modules whose names other packages use, too.
        program = shutil.copy(peer_program.__file__, folder)
        self._errors = os.path.join(folder, "errors")
        with open(self._errors, "w") as errors_file:
            self._process = subprocess.Popen(
                [python, program, json.dumps(case)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors_file,
                env=_environment(),
                cwd=folder,
                text=True,
            )
        try:
            self.about = self._answer()
        except BaseException as error:
            self.__exit__(type(error))
            raise

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def turn(self) -> float:
        """Measures once: images per second."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        status = self._process.wait()
        with open(self._errors, errors="replace") as file:
            lines = file.read().strip().splitlines() or [f"status {status}"]
        if status < 0:
            lines.append(f"ended by {signal.Signals(-status).name}")
        raise errors.UserError(f"failed: {lines[-1]}")
