"""Checks which experiment a workdir holds, and that it still does."""

import os
import sys

import tensorflow as tf

from tf_contrastive import flags
from tf_contrastive.base import errors, files
from tf_contrastive.checkpoints import storage
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain

ADVICE = "choose a folder in which you may create files"
# Of a run, which do not change while it trains.
_FILES = (
    storage.CONFIG_FILE,
    os.path.join(storage.CHECKPOINTS, storage.METADATA_FILE),
)


def check_workdir(run: Pretrain) -> None:
    """Raises `UserError` if a run's workdir holds another experiment."""
    workdir = run.runtime.workdir
    if previous := _read_config(workdir):
        there = fields.values(previous)
        differences = [
            f"{errors.arg(own.name, fields.written(own.value))}, there"
            f" {fields.written(there[own.name])}"
            for own in fields.options(run)
            if own.identity
            # If it has none, another component is chosen, which differs, too.
            and own.value != there.get(own.name, own.value)
            # How data are read may have to be said now: what `auto` read is
            # compared with the data, by its classes.
            and not (own.group == "reading" and there[own.name] is None)
        ]
        if differences:
            raise errors.UserError(
                f"{workdir} holds another experiment"
                f" ({'; '.join(differences)}): set these options as there to"
                f" resume it, or choose another {errors.arg('workdir')}"
            )


def is_run(path: str) -> bool:
    """Whether a folder has files of a run, damaged or incomplete ones too."""
    names = (storage.CONFIG_FILE, storage.CHECKPOINTS)
    return any(files.exists(os.path.join(path, name)) for name in names)


def check_run(workdir: str) -> Pretrain:
    """Reads the config of the run in a folder; an error if it holds none."""
    run = _read_config(workdir)
    if run is None:
        raise errors.UserError(
            f"no run in {workdir}: it has no {storage.CONFIG_FILE}; use the"
            f" {errors.arg('workdir')} of a pretrain command"
        )
    return run


def _read_config(workdir: str) -> Pretrain | None:
    path = os.path.join(workdir, storage.CONFIG_FILE)
    return flags.read_file(Pretrain, path) if files.exists(path) else None


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
    Raises `LostFolderError` if it does not hold a run.
    """

    def __init__(self, workdir: str) -> None:
        self.workdir = workdir
        self._contents = self._read()

    def check(self) -> None:
        """Raises `LostFolderError` unless the folder still holds the run."""
        if self._read() != self._contents:
            raise self._error("its files are others")

    def _read(self) -> list[bytes]:
        try:
            return [files.read(os.path.join(self.workdir, x)) for x in _FILES]
        except (OSError, tf.errors.OpError) as error:
            raise self._error(errors.first_line(error)) from error

    def _error(self, problem: str) -> LostFolderError:
        return LostFolderError(
            f"{self.workdir} is no longer the folder of this run ({problem}):"
            " it was removed, moved or replaced; put it back, and repeat the"
            " command to resume"
        )
