"""The version that is served: the newest good one, which a bad one never ends.

A version is good if it can be loaded, its weights are finite, and it takes the
requests that the served version takes.
"""

import asyncio
import contextlib
import ctypes
import gc
import math
import os
import time
from collections.abc import Iterator

import tensorflow as tf

from tf_contrastive import exporting
from tf_contrastive.base import errors, terminal
from tf_contrastive.serving.rest import RestError
from tf_contrastive.serving.saved_model import (
    BadVersionError,
    SavedModel,
    error_message,
)

POLL_SECONDS = 1.0
# Until a version that could not be loaded is tried again although its files are
# the same: the reason may have been a filesystem or a full memory.
_RETRY_SECONDS = 10.0


class _Version:
    """A version that is loaded, or failed.

    Attributes:
      number: its number.
      files: see `_files`.
      model: None if it failed.
      error: why it failed.
      retry: when it is tried again, by the monotonic clock.
      users: number of requests that use it.
    """

    def __init__(self, number: int, files: object) -> None:
        self.number, self.files = number, files
        self.model: SavedModel | None = None
        self.error = ""
        self.retry = 0.0
        self.users = 0


class Versions:
    """Loads, serves and replaces versions.

    Args:
      path: folder of versions, or of one.

    Raises:
      UserError: if none can be served.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._served: _Version | None = None
        # Replaced versions that requests still use.
        self._former: list[_Version] = []
        self._failed: dict[int, _Version] = {}
        self._has_garbage = False
        self._served = self._newer()
        if not self._served:
            reasons = (f"{n}: {v.error}" for n, v in self._failed.items())
            raise errors.UserError(
                f"{errors.arg('saved_model', path)} has no version that can be"
                f" served ({'; '.join(reasons)}): export it again"
            )

    @property
    def number(self) -> int:
        """The version that is served."""
        assert self._served
        return self._served.number

    @contextlib.contextmanager
    def using(self, number: int | None) -> Iterator[tuple[int, SavedModel]]:
        """Gives the served version, which stays loaded until the end.

        Raises:
          RestError: status 404 if `number` is another version.
        """
        version = self._served
        assert version and version.model
        if number not in (None, version.number):
            raise RestError(404, f"version {number} is not served")
        version.users += 1
        try:
            yield version.number, version.model
        finally:
            version.users -= 1
            self._close_former()

    def status(self, number: int | None) -> list[dict[str, object]]:
        """Returns the status of a version or of all, the newest first.

        Raises:
          RestError: status 404 if there is no such version.
        """
        failed = dict(self._failed)  # A thread changes it.
        reasons = {self.number: ""} | {n: v.error for n, v in failed.items()}
        if number is not None and number not in reasons:
            raise RestError(404, f"there is no version {number}")
        return [
            {
                "version": str(n),
                "state": "AVAILABLE" if n == self.number else "END",
                "status": {
                    "error_code": "UNKNOWN" if reasons[n] else "OK",
                    "error_message": reasons[n],
                },
            }
            for n in sorted(reasons, reverse=True)
            if number in (None, n)
        ]

    async def follow(self) -> None:
        """Replaces the served version by newer good ones, forever."""
        warned = ""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self._has_garbage:
                self._has_garbage = False
                await asyncio.to_thread(_free_memory)
            try:
                version = await asyncio.to_thread(self._newer)
            except Exception as error:  # Such as a filesystem that is away.
                if warned != (warned := error_message(error)):
                    terminal.warning(f"{self._path}: {warned}")
                continue
            if version:
                assert self._served
                self._former.append(self._served)
                self._served = version
                for failure in self._failed.values():
                    failure.retry = 0.0  # It may replace this one.
                terminal.info(f"version {version.number} is served")
                self._close_former()

    def _newer(self) -> _Version | None:
        """Loads the newest good version, in any thread; None: it is served.

        A version that is older than the served one is loaded only if the folder
        of the served one was removed.
        """
        served, folders = self._served, self._folders()
        for number in self._failed.keys() - folders.keys():
            del self._failed[number]
        for number in sorted(folders, reverse=True):
            if served and served.number in folders and number < served.number:
                return None
            path = folders[number]
            if not exporting.is_complete(path):
                continue
            version = _Version(number, _files(path))
            same = (number, version.files)
            if served and same == (served.number, served.files):
                self._failed.pop(number, None)
                return None
            former = self._failed.get(number)
            if (
                former
                and former.files == version.files
                and time.monotonic() < former.retry
            ):
                continue
            self._load(version, path)
            if not version.error:
                self._failed.pop(number, None)
                return version
            if former is None or version.error != former.error:
                terminal.warning(f"cannot serve {path}: {version.error}")
            self._failed[number] = version
        return None

    def _load(self, version: _Version, path: str) -> None:
        """Sets a version's model, or the reason why it is not good."""
        try:
            model = SavedModel(path)
            if _files(path) != version.files:
                raise BadVersionError("its files changed while it was loaded")
            served = self._served
            if served and served.model and version.number >= served.number:
                model.check_replaces(served.model)
        except Exception as error:
            version.error = error_message(error)
            version.retry = math.inf
            if not isinstance(error, BadVersionError):
                version.retry = time.monotonic() + _RETRY_SECONDS
            self._has_garbage = True
        else:
            version.model = model

    def _folders(self) -> dict[int, str]:
        """Returns the versions' folders, incomplete ones included."""
        if not exporting.is_complete(self._path):
            return exporting.folders(self._path)
        name = os.path.basename(os.path.abspath(self._path))
        return {int(name) if name.isdecimal() else 1: self._path}

    def _close_former(self) -> None:
        """Closes replaced versions that no request uses."""
        for version in [v for v in self._former if not v.users]:
            self._former.remove(version)
            assert version.model
            version.model.close()
            self._has_garbage = True
            terminal.info(f"version {version.number} is not served any more")


def _files(path: str) -> list[tuple[str, int, int]]:
    """Returns names, lengths and times of a version's graph and weights."""
    folder = os.path.join(path, "variables")
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    paths = [os.path.join(folder, name) for name in sorted(names)]
    files = []
    for file in (os.path.join(path, exporting.GRAPH_FILE), *paths):
        status = tf.io.gfile.stat(file)
        files.append((file, status.length, status.mtime_nsec))
    return files


def _free_memory() -> None:
    """Returns the memory of unloaded versions to the system.

    Graphs refer to themselves, and rarely enough objects are made for Python to
    search for such. The C library keeps what is freed, and not all have
    `malloc_trim`.
    """
    gc.collect()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
