"""Flagfiles: one flag a line, with quotes, comments and other flagfiles."""

import itertools
import os
import re
import shlex

from tf_contrastive.base import errors, installation

# Increases with a change by which older files would be misread.
_FORMAT = 4
_FIRST_LINE = re.compile(
    r"# All options of a run, format (\d+), tf_contrastive ([^,\s]+).*\n"
)
# Characters of a flagfile.
_MAX_FLAGFILE = 1 << 20
# Marks of comments.
_COMMENTS = ("#", "//")


def inlined(arguments: list[str], files: tuple[str, ...] = ()) -> list[str]:
    """Replaces `--flagfile` by the lines of the file.

    absl would resolve paths by the working directory only, and take quotes and
    comments after a flag as parts of the value. `files` are the flagfile of the
    arguments, after those that include it.
    """
    result: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, path = word.partition("=")
        if name not in ("--flagfile", "-flagfile") or not (equals or rest):
            result.append(word)
            continue
        path = os.path.expanduser((path if equals else rest.pop(0)).strip())
        if files:
            relative = os.path.join(os.path.dirname(files[-1]), path)
            path = relative if os.path.exists(relative) else path
        path = os.path.normpath(path)
        if not os.path.exists(path):
            path = packaged_flagfile(path) or path
        if path in files:
            raise errors.UserError(f"--flagfile={path} includes itself")
        result += inlined(_read_flagfile(path), (*files, path))
    return result


def packaged_flagfile(path: str) -> str | None:
    """Returns the file configs/[shared/]NAME.flags of this package."""
    folder, name = os.path.split(path)
    # In a wheel they are in the package, in a clone beside it.
    for top in ("tf_contrastive", ""):
        file = os.path.join(installation.ROOT, top, folder, name)
        if folder in ("configs", "configs/shared") and os.path.exists(file):
            return file
    return None


def _read_flagfile(path: str) -> list[str]:
    try:
        # Editors may write a mark before the text, which "utf-8-sig" removes.
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(_MAX_FLAGFILE + 1)
        if len(text) > _MAX_FLAGFILE:  # Devices never end.
            raise ValueError(f"more than {_MAX_FLAGFILE:,} characters")
        return flags_in(text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise errors.UserError(
            f"--flagfile={path} cannot be read ({reason}): use a text file with"
            " one flag per line, --name=value"
        ) from error


def flags_in(text: str) -> list[str]:
    """Returns the flags in a flagfile, without quotes and comments.

    Raises:
      ValueError: for a line that is not one flag, or a damaged record of a run.
    """
    if text.startswith("# All options of a run"):
        check_record(text)
    flags = []
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith(_COMMENTS):
            continue
        lexer = shlex.shlex(line, posix=True)
        lexer.whitespace_split = True
        lexer.commenters = lexer.escape = ""  # A # may be in a value.
        try:
            words = [*itertools.takewhile(lambda w: w not in _COMMENTS, lexer)]
        except ValueError:  # A quote is not closed.
            words = []
        if len(words) != 1 or not re.match(r"--?\w", words[0]):
            raise ValueError(
                f"line {number}, {line}: it is not one flag, --name=value: put"
                " quotes around a value with spaces, and a space after the # of"
                " a comment"
            )
        flags += words
    return flags


def line_of(name: str, value: str) -> str:
    """Returns the line of a flagfile for a flag, in quotes if needed."""
    return f"--{name}={shlex.quote(value) if value else ''}"


# ---- The options that a run records ------------------------------------------


def record_of(text: str) -> str:
    """Returns a flagfile between two lines that show that it is whole."""
    return (
        f"# All options of a run, format {_FORMAT}, tf_contrastive"
        f" {installation.VERSION}\n{text}{_last_line(text)}\n"
    )


def check_record(text: str) -> None:
    """Raises `ValueError` for something else than `record_of` returned."""
    first = _FIRST_LINE.match(text)
    if not first:
        raise ValueError("it is not whole, or was not written by a run")
    if first[1] != str(_FORMAT):
        raise ValueError(
            f"version {first[2]} of tf_contrastive wrote it in format"
            f" {first[1]}, and this is version {installation.VERSION}, which"
            f" reads format {_FORMAT}: use that version"
        )
    if not text.endswith(f"\n{_last_line(text)}\n"):
        raise ValueError("it is cut off, or lacks options")


def _last_line(text: str) -> str:
    count = sum(line.startswith("--") for line in text.splitlines())
    return f"# End: {count} options."
