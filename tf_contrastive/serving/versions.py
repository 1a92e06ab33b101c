"""The version that is served: the newest good one, which a bad one never ends.

A version is good if it can be loaded, its numbers are finite, and it takes the
requests that the served version takes.
"""

import asyncio
import gc
import os
from typing import NamedTuple

import tensorflow as tf
from starlette.exceptions import HTTPException

from tf_contrastive import exporting
from tf_contrastive.base import errors, terminal
from tf_contrastive.serving.saved_model import SavedModel, error_message

POLL_SECONDS = 1.0
# Names, lengths and times.
_Files = list[tuple[str, int, int]]


class _Version(NamedTuple):
    """A loaded version, and the files of which it was loaded."""

    number: int
    files: _Files
    model: SavedModel


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
        # Number -> files, and why they could not be loaded.
        self._failed: dict[int, tuple[_Files, str]] = {}
        self._served = self._newer()
        if not self._served:
            reasons = (f"{n}: {why}" for n, (_, why) in self._failed.items())
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
          HTTPException: status 404 if `number` is another version.
        """
        assert self._served
        if number not in (None, self.number):
            raise HTTPException(404, f"version {number} is not served")
        return self.number, self._served.model

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
        files change.
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
            failed_files, former = self._failed.get(number, (None, ""))
            if failed_files == files:
                continue
            gc.collect()  # Graphs that are not used refer to themselves.
            try:
                model = SavedModel(path)
                if served and number >= served.number:
                    model.check_replaces(served.model)
                if _files(path) != files:
                    raise ValueError("its files change")
            except Exception as error:
                why = error_message(error)
                if why != former:
                    terminal.warning(f"cannot serve {path}: {why}")
                self._failed[number] = files, why
                continue
            self._failed.pop(number, None)
            return _Version(number, files, model)
        return None

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
    files = []
    for name in (exporting.GRAPH_FILE, *(f"variables/{n}" for n in names)):
        status = tf.io.gfile.stat(os.path.join(path, name))
        files.append((name, status.length, status.mtime_nsec))
    return sorted(files)
