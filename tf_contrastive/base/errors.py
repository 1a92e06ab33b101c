"""Errors that a command reports in one line.

A message says what was given, what is allowed and what to do. It names
arguments by `arg`, so that the command line can write them as flags.
"""

import contextlib
import difflib
import errno
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator

from tf_contrastive.base import installation

# Exit status of a run that ended early and was saved.
EXIT_RESUME = 42
# Advice for a full disk.
FREE_SPACE = "free some space, and repeat the command"
# Characters of a message, at most. It may quote what a damaged file holds.
_MAX_MESSAGE = 1500
# Before and after an argument in a message. No text of a user can hold it.
_MARK = f"\0{secrets.token_hex(8)}\0"


def arg(name: str, value: object = None) -> str:
    """Names an argument in a message, with a value unless it is None."""
    given = "" if value is None else f"={_typed(value)}"
    return f"{_MARK}{name}{given}{_MARK}"


def _typed(value: object) -> str:
    """Returns a value as a user would type it."""
    if isinstance(value, tuple):
        return ",".join(map(_typed, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def as_argument(name: str, value: str | None) -> str:
    """Returns an argument in the form of Python."""
    return f"`{name}`" if value is None else f"{name}={value}"


def plain(
    message: str, write: Callable[[str, str | None], str] = as_argument
) -> str:
    """Returns a message as text, to which `write` maps its arguments."""
    parts = message.split(_MARK)
    for i in range(1, len(parts), 2):
        name, equals, value = parts[i].partition("=")
        parts[i] = write(name, value if equals else None)
    return "".join(parts)


def shown(
    message: str, write: Callable[[str, str | None], str] = as_argument
) -> str:
    """Returns a message as one line of printable characters; see `plain`."""
    text = "".join(
        c if c.isprintable() else repr(c)[1:-1] for c in plain(message, write)
    )
    if len(text) > _MAX_MESSAGE:
        half = _MAX_MESSAGE // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return text


class UserError(ValueError):
    """Invalid input, described in one line of printable characters.

    Attributes:
      marked: the text with `arg`, for `shown` and for other messages.
    """

    # Exit status of a command that it ends.
    status = 2

    def __init__(self, message: str) -> None:
        self.marked = message
        super().__init__(shown(message))

    def leave(self) -> int:
        """Returns the exit status. A subclass may end the process instead."""
        return self.status


class AbsentDataError(UserError):
    """Data that was not found."""


class AbsentSplitError(UserError):
    """A split that a dataset does not have."""


class UnknownDatasetError(UserError):
    """A name of a dataset that is neither prepared nor known to TFDS."""


class DivergedError(UserError):
    """A training whose loss is not finite."""


class InterruptedRunError(UserError):
    """A run ended early and was saved: the same command resumes it."""

    status = EXIT_RESUME


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Returns a hint with the nearest name, or an empty string."""
    matches = difflib.get_close_matches(given.lower(), list(known), 1, 0.5)
    return f" (did you mean {matches[0]}?)" if matches else ""


def unknown(kind: str, given: object, known: Iterable[str]) -> UserError:
    """Returns the error for a name that is not in `known`."""
    known = list(known)
    hint = did_you_mean(str(given), known)
    return UserError(
        f"unknown {kind} {given!r}{hint}: known: {', '.join(known)}"
    )


def check_package(option: str, package: str, extra: str = "") -> None:
    """Raises `UserError` if an option needs a package that cannot be used.

    See `installation.missing`.
    """
    if problem := installation.missing(package, extra):
        raise UserError(f"{option} needs {problem}")


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or the error's type."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    # Names of a graph's nodes, and of operations.
    return re.sub(r"\{\{.*?\}\}\s*| *\[Op:\w+\] name: *", "", line)


def _mentions(error: Exception, *numbers: int) -> bool:
    """Whether an error is one of these; TensorFlow gives only their text."""
    if isinstance(error, OSError) and error.errno:
        return error.errno in numbers
    return any(os.strerror(number) in str(error) for number in numbers)


def is_full_disk(error: Exception) -> bool:
    """Whether an error of Python or TensorFlow is that of a full disk."""
    return _mentions(error, errno.ENOSPC, errno.EDQUOT)


def is_unreadable(error: Exception) -> bool:
    """Whether a file could not be read, whatever its content."""
    lost = (errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN)
    return _mentions(error, errno.EACCES, errno.EIO, errno.EPERM, *lost)


@contextlib.contextmanager
def write_errors(path: str, advice: str) -> Iterator[None]:
    """Turns a failure to write `path` into a `UserError` with the advice."""
    try:
        yield
    except Exception as error:
        import tensorflow as tf  # Importing this module must stay fast.

        if not isinstance(error, OSError | tf.errors.OpError):
            raise
        if is_full_disk(error):
            advice = FREE_SPACE
        # The rest of Python's message names a temporary file.
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"cannot write {path} ({reason}): {advice}") from error
