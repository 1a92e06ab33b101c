"""Output for people: progress, warnings and errors on stderr, and tables.

Progress is logged at INFO, to the logger "tf_contrastive". Only the commands
attach a handler to it.
"""

import contextlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, TextIO

from tf_contrastive.base import errors

_LEVELS = {
    "quiet": logging.WARNING,
    "normal": logging.INFO,
    "debug": logging.DEBUG,
}
_logger = logging.getLogger("tf_contrastive")


class _Output:
    """A standard stream whose full disk loses output, and does not end work."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._reported():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._reported():
            self._stream.flush()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # Nobody reads it any more, such as `head`.
            raise
        except OSError as problem:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
            error(f"output is lost ({problem.strerror}): see the files")


def prepare_streams() -> None:
    """Opens the standard streams that are closed; full ones end no work.

    The next file would get the number of a closed one, and with it what C++
    code prints.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest number that is free: that of the stream.
            null = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(null, "w" if number else "r"))
        elif number and getattr(sys, name) is getattr(sys, f"__{name}__"):
            setattr(sys, name, _Output(getattr(sys, name)))


def info(message: str) -> None:
    """Logs progress."""
    _logger.info("%s", errors.plain(message))


def warning(message: str) -> None:
    """Logs a warning."""
    _logger.warning("%s", errors.plain(message))


class _Handler(logging.Handler):
    """Writes records to the present `sys.stderr`, a warning once."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if record.levelno >= logging.WARNING:
            if line in self.written:
                return
            self.written.add(line)
        print(line, file=sys.stderr, flush=True)


def configure(verbosity: str) -> None:
    """Writes log lines to stderr: quiet (warnings only), normal or debug."""
    _logger.setLevel(_LEVELS[verbosity])
    _logger.propagate = False
    for handler in [h for h in _logger.handlers if isinstance(h, _Handler)]:
        _logger.removeHandler(handler)
    _logger.addHandler(_Handler())


@contextlib.contextmanager
def without_start_lines() -> Iterator[None]:
    """Hides what libraries print while they are loaded, unless that fails.

    TensorFlow 2.17 and later do before they read `TF_CPP_MIN_LOG_LEVEL`.
    """
    if _logger.isEnabledFor(logging.DEBUG):
        yield
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except BaseException:
            hidden.seek(0)
            os.write(stderr, hidden.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)


@contextlib.contextmanager
def elapsed(title: str) -> Iterator[None]:
    """Logs that the body begins, and how long it took, in seconds."""
    info(f"{title} ...")
    start = time.monotonic()
    yield
    info(f"{title}: {time.monotonic() - start:.0f} s")


def error(line: str) -> None:
    """Writes the error that ends a command, collapsed to one line."""
    line = " ".join(line.splitlines())
    print(f"tf_contrastive: {line}", file=sys.stderr, flush=True)


def format_table(rows: Sequence[Sequence[str]], texts: Container[int]) -> str:
    """Pads columns to their widths; the columns `texts` start on the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(
            cell.ljust(width) if place in texts else cell.rjust(width)
            for place, (cell, width) in enumerate(cells)
        ).rstrip()

    return "\n".join(map(line, rows))


def print_sections(sections: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints headings, with names and values below each; None as "-".

    The items of a list are on lines of their own.
    """
    width = max(len(name) for part in sections.values() for name in part)
    for heading, part in sections.items():
        print(heading)
        for name, value in part.items():
            lines = value if isinstance(value, list) else [value]
            for line in lines:
                print(f"  {name:{width}}  {_text(line)}")
                name = ""
        print()


def _text(value: str | float | None) -> str:
    if value is None:
        return "-"
    return errors.shown(value) if isinstance(value, str) else f"{value:,}"
