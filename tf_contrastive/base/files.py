"""One way to write a file: readers see the previous one or all of the new one.

A file is written beside its target under a unique name, flushed to the disk,
and renamed. Its writer has a lock on it, so that the next writer in the folder
can remove what a killed one has left. Paths with "://" go through
`tf.io.gfile`, others through Python.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import reprlib
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tf_contrastive.base import errors, installation

ADVICE = "choose a folder that can be written"
# Bytes of a file that is read as a whole; one with holes may be huge.
MAX_BYTES = 1 << 32
# The name of an unfinished file or folder.
_PARTIAL = r"\..*\.partial-[0-9a-f]{32}\w*"

# The form of a JSON value: a type or several, [the form of each item], or
# {key: the form of its value} of an object that may have other keys, too.
Form = Any
NUMBER_OR_NONE = (int, float, type(None))


# ---- Writing -----------------------------------------------------------------


def write(path: str, content: str | bytes, advice: str = ADVICE) -> None:
    """Writes a file whole, and its folder if missing; see `replacing`."""
    with replacing(path, advice) as unfinished, _open(unfinished, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_json(
    path: str, content: Mapping[str, Any], advice: str = ADVICE
) -> None:
    """Writes an object as JSON, in which NaN and infinity become null."""
    text = json.dumps(as_json(content), indent=2, allow_nan=False)
    write(path, f"{text}\n", advice)


def as_json(value: Any) -> Any:
    """Converts NumPy values for JSON; NaN and infinity become None."""
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if hasattr(value, "tolist"):
        return as_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextlib.contextmanager
def replacing(path: str, advice: str = ADVICE) -> Iterator[str]:
    """Yields the name under which a file that replaces `path` is written.

    If it cannot be, that is a `UserError` with the advice.
    """
    with errors.write_errors(path, advice):
        path = _prepared(path)
        with partial(path) as unfinished:
            yield unfinished
            if _is_local(path):
                sync(unfinished)
                os.replace(unfinished, path)
                _sync_entry(os.path.dirname(path) or ".")
            else:
                _gfile().rename(unfinished, path, overwrite=True)


@contextlib.contextmanager
def partial(path: str, is_folder: bool = False) -> Iterator[str]:
    """Yields the name of a new file or folder beside `path`, while it is made.

    A local one is there, empty. What has that name at the end is removed.
    """
    name = f".tf_contrastive.partial-{uuid.uuid4().hex}"
    unfinished = os.path.join(os.path.dirname(path), name)
    with contextlib.ExitStack() as resources:
        if _is_local(path):
            # Without a lock, another process would take it for a leftover.
            unlocked = f"{unfinished}.new"
            if is_folder:
                os.makedirs(unlocked)
            else:
                _open(unlocked, "xb").close()
            with contextlib.suppress(OSError):  # It has no locks.
                resources.callback(os.close, lock(unlocked))
            os.rename(unlocked, unfinished)
        resources.callback(remove, unfinished)
        yield unfinished


def check_writable(path: str, advice: str = ADVICE) -> None:
    """Raises `UserError` if `path` cannot be written; removes leftovers."""
    with (
        errors.write_errors(path, advice),
        partial(_prepared(path)) as unfinished,
        _open(unfinished, "wb") as file,
    ):
        file.write(b"")
    remove_leftovers(os.path.dirname(path) or ".")


def _prepared(path: str) -> str:
    """Makes the folder of a file; returns its path, without a link to it.

    A folder, or a device, which a rename would replace, is an `OSError`.
    """
    if _is_local(path):
        path = os.path.realpath(path)
        if os.path.exists(path) and not os.path.isfile(path):
            raise OSError("it is not a file")
        os.makedirs(os.path.dirname(path), exist_ok=True)
    elif _is_folder(path):
        raise OSError("it is a folder")
    else:
        _gfile().makedirs(os.path.dirname(path))
    return path


def sync(path: str) -> None:
    """Flushes a local file, or all of a folder, to the disk."""
    if not os.path.isdir(path):
        _sync_entry(path)
    for folder, _, names in os.walk(path):
        for name in names:
            _sync_entry(os.path.join(folder, name))
        _sync_entry(folder)


def _sync_entry(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- What killed writers leave -----------------------------------------------


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Context with a new folder for this user; removes those of killed ones."""
    top = tempfile.gettempdir()
    remove_leftovers(top)
    with partial(os.path.join(top, "folder"), is_folder=True) as folder:
        os.chmod(folder, stat.S_IRWXU)
        yield folder


def remove_leftovers(folder: str) -> None:
    """Removes unfinished files and folders whose writer has ended.

    Where there are no locks, such as in object stores, nothing is removed.
    """
    if not _is_local(folder):
        return
    for path in entries(folder, _PARTIAL):
        with contextlib.suppress(OSError), contextlib.ExitStack() as resources:
            resources.callback(os.close, lock(path))
            remove(path)


def lock(path: str) -> int:
    """Locks a local file or folder until what is returned is closed.

    An `OSError`: another process has the lock, or there are no locks.
    """
    # Some network file systems lock only what may be written.
    mode = os.O_RDONLY if os.path.isdir(path) else os.O_RDWR
    descriptor = os.open(path, mode | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def remove(path: str) -> None:
    """Removes a file, or a folder as far as possible, if it is there."""
    if not _is_local(path):
        if _is_folder(path):
            _gfile().rmtree(path)
        elif _gfile().exists(path):
            _gfile().remove(path)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


# ---- Reading -----------------------------------------------------------------


def local_path(path: str) -> str | None:
    """Returns the path for Python, without file://; None in an object store."""
    if path.startswith("file://"):
        return "/" + path.removeprefix("file://").partition("/")[2]
    return path if _is_local(path) else None


def size(path: str) -> int:
    """Returns the bytes of a file.

    Raises:
      UserError: for a FIFO, a socket, a device or a folder, which may not end.
      OSError, tf.errors.OpError: if there is no such file.
    """
    local = local_path(path)
    if local is None:
        return _gfile().stat(path).length
    status = os.stat(local)
    if not stat.S_ISREG(status.st_mode):
        raise errors.UserError(f"{path} is not a regular file: use one")
    return status.st_size


def read(path: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Returns the content of a file.

    Raises:
      UserError: if it is no regular file, or larger than `max_bytes`.
      OSError, tf.errors.OpError: if it cannot be read.
    """
    if (length := size(path)) > max_bytes:
        raise errors.UserError(
            f"{path} has {length:,} bytes, more than {max_bytes:,}: use a"
            " smaller file"
        )
    with _open(path, "rb") as file:
        return file.read()


def packaged_flagfile(path: str) -> str | None:
    """Returns the file configs/[shared/]NAME.flags of this package."""
    folder, name = os.path.split(path)
    # In a wheel they are in the package, in a clone beside it.
    for top in ("tf_contrastive", ""):
        file = os.path.join(installation.ROOT, top, folder, name)
        if folder in ("configs", "configs/shared") and os.path.exists(file):
            return file
    return None


def read_json(
    path: str, default: dict[str, Any] | None = None, form: Form = dict
) -> dict[str, Any]:
    """Reads an object that this package has written as JSON.

    `default` is that of an absent file, and `form` what the caller relies on.

    Raises:
      UserError: if the file holds something else, or is absent.
    """
    try:
        # Python also takes NaN, which JSON does not have.
        content = json.loads(read(path), parse_constant=lambda _: None)
        if problem := _mismatch(content, form, "the content"):
            raise ValueError(problem)
    except Exception as error:  # Of Python or of TensorFlow.
        if default is not None and not exists(path):
            return default
        raise damaged(path, error) from error
    return content


def _mismatch(value: Any, form: Form, name: str) -> str | None:
    """Returns how a value differs from a form, or None."""
    kind: Any = type(form) if isinstance(form, list | dict) else form
    if not isinstance(value, kind):
        return f"{name} is {reprlib.repr(value)}"
    parts: Iterable[tuple[Any, Form, str]] = ()
    if isinstance(form, list):
        parts = ((item, form[0], f"an item of {name}") for item in value)
    elif isinstance(form, dict):
        if absent := form.keys() - value.keys():
            return f"{name} has no {min(absent)!r}"
        parts = ((value[key], form[key], repr(key)) for key in form)
    return next(filter(None, (_mismatch(*part) for part in parts)), None)


def damaged(path: str, error: Exception) -> errors.UserError:
    """Returns the error for a file with content that nothing here wrote."""
    return errors.UserError(
        f"{path} is not what was written there ({errors.first_line(error)}):"
        " restore it from a copy, or move it away"
    )


def entries(folder: str, pattern: str) -> list[str]:
    """Returns the sorted paths of a folder's entries, by a regular expression.

    A glob would take characters of the folder's name for a pattern, too.
    """
    if not _is_folder(folder):
        return []
    list_names = os.listdir if _is_local(folder) else _gfile().listdir
    return sorted(
        os.path.join(folder, name)
        for name in (name.rstrip("/") for name in list_names(folder))
        if re.fullmatch(pattern, name, re.DOTALL)
    )


# ---- Local files and others --------------------------------------------------


def _is_local(path: str) -> bool:
    return "://" not in path


def _gfile() -> Any:
    import tensorflow as tf  # Importing this module must stay fast.

    return tf.io.gfile


def _open(path: str, mode: str) -> Any:
    return open(path, mode) if _is_local(path) else _gfile().GFile(path, mode)


def exists(path: str) -> bool:
    """Whether there is a file or folder; a `UserError` if it is unknown."""
    if _is_local(path):
        return os.path.exists(path)
    try:
        return _gfile().exists(path)
    except Exception as error:  # Of TensorFlow.
        raise errors.UserError(
            f"{path} cannot be reached ({errors.first_line(error)}): use a"
            " local path, or gs://... and check the network and who may read it"
        ) from error


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) if _is_local(path) else _gfile().isdir(path)
