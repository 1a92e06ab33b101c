"""Files that a list names and that do not exist: how many, which and why."""

import contextlib
import functools
import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import decoding

_WINDOWS = re.compile(r"[A-Za-z]:/|.*\\")


class _Entries(NamedTuple):
    """Names in a folder; the others map their common form to the name."""

    names: set[str]
    by_form: dict[str, str]
    by_stem: dict[str, str]  # Of images, without extension.

    def similar(self, name: str) -> str | None:
        """Returns the name of a file that differs little, or in extension."""
        form = _form(name)
        without = self.by_stem.get(form)
        other = self.by_stem.get(_form(os.path.splitext(name)[0]))
        return self.by_form.get(form) or without or other


def check(
    name: str,
    folder: str,
    paths: Sequence[str],
    unread: np.ndarray,
    reading: Reading,
) -> np.ndarray:
    """Finds the files that do not exist; few are left out with a warning.

    Args:
      name: of the dataset.
      folder: that relative paths start at.
      paths: of all files.
      unread: whether a file could not be read, bool [n].
      reading: `max_bad_images` may be absent, and at most half of all.

    Returns:
      Whether a file is absent, bool [n].

    Raises:
      UserError: with the reasons, if more are absent.
    """
    absent = np.zeros_like(unread)
    by_reason: dict[tuple[str, str], list[str]] = {}
    entries = functools.lru_cache(1024)(_entries)
    for i in np.flatnonzero(unread).tolist():
        if reason := _reason(paths[i], folder, entries):
            absent[i] = True
            by_reason.setdefault(reason, []).append(paths[i])
    if not by_reason:
        return absent
    parts = []
    largest = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    for (problem, advice), those in largest:
        there = _present(those[0], folder, entries)
        parts.append(
            f"{len(those):,} of {len(paths):,} files {problem}, such as"
            f" {_written(those[0], folder)}{there and f' ({there} exists)'}:"
            f" {advice}"
        )
    message = f"{name}: {'; '.join(parts)}"
    count = int(absent.sum())
    if count > reading.max_bad_images or 2 * count > len(paths):
        raise errors.UserError(message)
    terminal.warning(f"{message}; they are left out")
    return absent


def _reason(
    path: str, folder: str, entries: Callable[[str], _Entries | None]
) -> tuple[str, str] | None:
    """Returns what is wrong with a path and what to do; None: it exists."""
    written = _written(path, folder)
    advice = (
        f"write paths that start at the folder of the list, {folder or '.'}"
    )
    scheme, separator, _ = path.partition("://")
    if separator and scheme not in tf.io.gfile.get_registered_schemes():
        copy = f"copy them to a disk, and {advice}"
        return "have addresses that cannot be read here", copy
    parent, base = os.path.split(files.local_path(path) or path)
    present = entries(parent)
    if present is None:  # No permission: they may exist.
        return None
    if base in present.names:
        is_folder = tf.io.gfile.isdir(path)
        return ("are folders", "write paths of images") if is_folder else None
    if _WINDOWS.match(written):
        slashes = f"with /, {advice}"
        return "have backslashes or a drive, as on Windows", slashes
    if near := present.similar(base):
        return f"{_difference(base, near)}", "write the names of the files"
    if os.path.isabs(written):
        return "have absolute paths and do not exist", advice
    return "do not exist", advice


def _difference(written: str, present: str) -> str:
    """Describes how a name differs from a similar one of a file."""
    if _form(written) == _form(present):
        same = written.casefold() == present.casefold()
        kind = "letter case" if same else "form of Unicode"
        return f"have names of another {kind}"
    stem = os.path.splitext(present)[0]
    if _form(written) == _form(stem):
        return "lack their extension"
    return "have another extension"


def _present(
    path: str, folder: str, entries: Callable[[str], _Entries | None]
) -> str:
    """Returns the file that an absent one may be, or an empty text."""
    given = _written(path, folder)
    written = given.replace("\\", "/")
    if near := _similar(written, folder, entries):
        return near if near != given else ""
    for place in _places(written, folder):
        if tf.io.gfile.exists(place):
            return place
    return ""


def _similar(
    written: str, folder: str, entries: Callable[[str], _Entries | None]
) -> str | None:
    """Returns the path of a file whose names differ little."""
    *above, base = written.split("/")
    here = folder
    for name in above:
        present = entries(here)
        if name not in (".", "..") and present and name not in present.names:
            name = present.by_form.get(_form(name), name)
        here = os.path.join(here, name)
    present = entries(here)
    near = present and (
        base if base in present.names else present.similar(base)
    )
    return _written(os.path.join(here, near), folder) if near else None


def _places(written: str, folder: str) -> Iterator[str]:
    """Yields where a file may be instead."""
    parts = written.strip("/").split("/")
    if os.path.isabs(written) or ":" in parts[0] or "//" in written:
        for first in range(len(parts) - 1):  # Many are called 1.png.
            yield os.path.join(folder, *parts[first:])
        return
    above = os.path.dirname(folder.rstrip("/"))
    yield from (os.path.abspath(written), os.path.join(above, written))
    if parts[0] == os.path.basename(folder.rstrip("/")):
        yield os.path.join(folder, *parts[1:])
    with contextlib.suppress(tf.errors.OpError):
        for name in sorted(tf.io.gfile.listdir(folder or "."))[:100]:
            yield os.path.join(folder, name, written)


def _form(name: str) -> str:
    """Returns a name without letter case and form of Unicode."""
    return unicodedata.normalize("NFC", name).casefold()


def _entries(folder: str) -> _Entries | None:
    """Lists a folder, which may be absent; None without permission."""
    try:
        listed = tf.io.gfile.listdir(folder or ".")
    except tf.errors.NotFoundError:
        listed = []
    except tf.errors.OpError:
        return None
    names = {name.rstrip("/") for name in listed}
    images = [n for n in names if n.lower().endswith(decoding.extensions())]
    return _Entries(
        names,
        {_form(name): name for name in names},
        {_form(os.path.splitext(name)[0]): name for name in images},
    )


def _written(path: str, folder: str) -> str:
    """Returns a path as it is in the list."""
    return path.removeprefix(os.path.join(folder, ""))
