"""The folder of a run, as it was when it was opened."""

import os
import sys

import tensorflow as tf

from tf_contrastive.base import errors, files
from tf_contrastive.checkpoints import storage

_FILES = (
    storage.CONFIG_FILE,
    os.path.join(storage.CHECKPOINTS, storage.METADATA_FILE),
)


class LostFolderError(errors.UserError):
    """A run's folder was removed, moved away or replaced."""

    def leave(self) -> int:
        """Ends the process with the exit status.

        At a usual end TensorFlow would print the error of an asynchronous save.
        """
        sys.stdout.flush()
        os._exit(self.status)


class OpenedRun:
    """Notices that a run's folder was removed, moved away or replaced.

    Whatever is written next would create it again, without what it needs.

    Attributes:
      workdir: the folder.

    Raises:
      LostFolderError: if it does not hold a run.
    """

    def __init__(self, workdir: str) -> None:
        self.workdir = workdir
        self._contents = {name: self._read(name) for name in _FILES}

    def check(self) -> None:
        """Raises `LostFolderError` unless the folder still holds the run."""
        for name, content in self._contents.items():
            if self._read(name) != content:
                raise self._error(f"{name}: its content is another")

    def _read(self, name: str) -> bytes:
        path = os.path.join(self.workdir, name)
        try:
            return files.read(path)
        except (OSError, tf.errors.OpError) as error:
            reason = getattr(error, "strerror", None)
            reason = reason or errors.first_line(error)
            raise self._error(f"{name}: {reason}") from error

    def _error(self, problem: str) -> LostFolderError:
        return LostFolderError(
            f"{self.workdir} is no longer the folder of this run ({problem}):"
            " it was removed, moved or replaced; put it back, and repeat the"
            " command to resume"
        )
