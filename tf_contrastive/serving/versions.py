"""The version that is served: the newest good one, which a bad one never ends.

A version is good if it can be loaded, its embeddings are finite, and it takes
the requests that the served version takes.
"""

import asyncio
import gc
import math
import os
import time
from typing import NamedTuple

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
# Names, lengths and times.
_Files = list[tuple[str, int, int]]


class _Version(NamedTuple):
    """A version that is loaded, or failed.

    Attributes:
      number: its number.
      files: see `_files`.
      model: None if it failed.
      error: why it failed.
      retry: when it is tried again, by the monotonic clock.
    """

    number: int
    files: _Files
    model: SavedModel | None
    error: str = ""
    retry: float = math.inf


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
        self._failed: dict[int, _Version] = {}
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

    def model(self, number: int | None) -> tuple[int, SavedModel]:
        """Returns the served version: its number, and its model.

        A replaced one is unloaded once no request holds its model.

        Raises:
          RestError: status 404 if `number` is another version.
        """
        version = self._served
        assert version and version.model
        if number not in (None, version.number):
            raise RestError(404, f"version {number} is not served")
        return version.number, version.model

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
            try:
                version = await asyncio.to_thread(self._newer)
            except Exception as error:  # Such as a filesystem that is away.
                if warned != (warned := error_message(error)):
                    terminal.warning(f"{self._path}: {warned}")
                continue
            if version:
                self._served = version
                self._failed.clear()  # One may replace this version.
                terminal.info(f"version {version.number} is served")

    def _newer(self) -> _Version | None:
        """Loads the newest good version, in any thread; None: it is served.

        A version that is older than the served one is loaded only if the folder
        of the served one was removed. One that failed is tried again when its
        files change, or after a while if it is not known to be bad.
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
            files = _files(path)
            if served and (number, files) == (served.number, served.files):
                self._failed.pop(number, None)
                return None
            failed = self._failed.get(number)
            if (
                failed
                and failed.files == files
                and time.monotonic() < failed.retry
            ):
                continue
            gc.collect()  # Graphs that are not used refer to themselves.
            try:
                version = _Version(number, files, self._load(path, number))
                if _files(path) != files:
                    raise BadVersionError("its files change")
            except Exception as error:
                why, retry = error_message(error), math.inf
                if not isinstance(error, BadVersionError):
                    retry = time.monotonic() + _RETRY_SECONDS
                if failed is None or why != failed.error:
                    terminal.warning(f"cannot serve {path}: {why}")
                self._failed[number] = _Version(number, files, None, why, retry)
                continue
            self._failed.pop(number, None)
            return version
        return None

    def _load(self, path: str, number: int) -> SavedModel:
        model, served = SavedModel(path), self._served
        if served and served.model and number >= served.number:
            model.check_replaces(served.model)
        return model

    def _folders(self) -> dict[int, str]:
        """Returns the versions' folders, incomplete ones included."""
        if not exporting.is_complete(self._path):
            return exporting.folders(self._path)
        name = os.path.basename(os.path.abspath(self._path))
        return {int(name) if name.isdecimal() else 1: self._path}


def _files(path: str) -> _Files:
    """Returns names, lengths and times of a version's graph and weights."""
    folder = os.path.join(path, "variables")
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    paths = [os.path.join(folder, name) for name in sorted(names)]
    files = []
    for file in (os.path.join(path, exporting.GRAPH_FILE), *paths):
        status = tf.io.gfile.stat(file)
        files.append((file, status.length, status.mtime_nsec))
    return files
