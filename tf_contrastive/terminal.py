"""What a command tells beside its result: lines on stderr.

Layer 1: imports nothing of the package. Progress is silent with
`--verbosity=quiet`; warnings and errors never are. Colours are for people:
a terminal gets them, unless NO_COLOR is set or it says that it has none.
"""

import os
import sys
from typing import TextIO

QUIET, NORMAL, DEBUG = "quiet", "normal", "debug"

_STYLES = {"bold": "1", "good": "32", "warning": "33", "error": "31"}
_chosen = NORMAL


def set_verbosity(name: str) -> None:
    """Chooses what is told from now on: quiet, normal or debug."""
    global _chosen
    _chosen = name


def verbosity() -> str:
    """What was chosen."""
    return _chosen


def tell(line: str) -> None:
    """Writes a line of progress, unless the user wants to be spared."""
    if _chosen != QUIET:
        print(line, file=sys.stderr, flush=True)


def warn(line: str) -> None:
    """Writes a line that something may go wrong, or has."""
    print(paint(line, "warning", sys.stderr), file=sys.stderr, flush=True)


def fail(line: str) -> None:
    """Writes why the command ends here, in one line whatever is in it."""
    line = " ".join(line.splitlines())
    name = paint("tf_contrastive:", "error", sys.stderr)
    print(f"{name} {line}", file=sys.stderr, flush=True)


def paint(text: str, style: str, stream: TextIO) -> str:
    """Returns the text as `stream` should show it.

    Args:
      text: of any length.
      style: bold, good, warning or error.
      stream: where it is about to go.
    """
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if colours(stream) else text


def colours(stream: TextIO) -> bool:
    """Whether a stream is a terminal that wants colours."""
    return (
        stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )
