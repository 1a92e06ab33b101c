"""Output for people: progress, warnings and errors on stderr, and tables.

Progress is logged at INFO, to the logger "tf_contrastive"; the commands attach
a handler to it, in a notebook Python's defaults hold. Colours are for terminals
only, unless NO_COLOR is set or TERM is dumb.
"""

import logging
import os
import sys
from collections.abc import Container, Sequence
from typing import TextIO

_STYLES = {"bold": "1", "good": "32", "warning": "33", "error": "31"}
_LEVELS = {
    "quiet": logging.WARNING,
    "normal": logging.INFO,
    "debug": logging.DEBUG,
}
_logger = logging.getLogger("tf_contrastive")

info = _logger.info
warning = _logger.warning


class _Handler(logging.Handler):
    """Writes records to the present `sys.stderr`, warnings in colour."""

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if record.levelno >= logging.WARNING:
            line = paint(line, "warning", sys.stderr)
        print(line, file=sys.stderr, flush=True)


def configure(verbosity: str) -> None:
    """Writes log lines to stderr, as the commands do.

    Args:
      verbosity: quiet (warnings only), normal (progress, too) or debug.
    """
    _logger.setLevel(_LEVELS[verbosity])
    _logger.propagate = False
    if not any(isinstance(h, _Handler) for h in _logger.handlers):
        _logger.addHandler(_Handler())


def shows_progress() -> bool:
    """Returns whether lines of progress are wanted."""
    return _logger.isEnabledFor(logging.INFO)


def error(line: str) -> None:
    """Writes the error that ends a command, collapsed to one line."""
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


def format_table(rows: Sequence[Sequence[str]], texts: Container[int]) -> str:
    """Pads columns to their widths.

    Args:
      rows: of cells, the headings first.
      texts: which columns, from 0, are text and start on the left; the others
        are numbers.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(
            cell.ljust(width) if place in texts else cell.rjust(width)
            for place, (cell, width) in enumerate(cells)
        ).rstrip()

    return "\n".join(map(line, rows))
