"""A lock on a folder, so that one process at a time writes there.

File systems have no lock in common, and object stores have none. The lock is a
small file that names its owner, and that the owner renews every minute.
"""

import contextlib
import datetime
import fcntl
import os
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive.base import errors, files, processes, terminal

RENEW_SECONDS = 60.0
# An owner on another machine, whose clock may differ, or in another container,
# that has not renewed the lock for this long is taken for gone.
_STALE_SECONDS = 10 * RENEW_SECONDS
# An object store has no exclusive creation: the last of two writers owns the
# lock, which both see after this time.
SETTLE_SECONDS = 2.0
# "JOB/ATTEMPT", from whoever starts a job again only after it has ended.
_ATTEMPT = "TF_CONTRASTIVE_ATTEMPT"
# How long a network file system may hide what another machine has written.
_VISIBLE_SECONDS = 30.0
# Of a lock file.
_FORM = {
    **dict.fromkeys(
        ("host", "place", "born", "since", "token", "attempt"), str
    ),
    "process": int,
    "renewed": float,
}


class FolderLock:
    """Context in which no other process has the lock of a folder.

    A lock is taken over, with a warning, if its process has ended, if it is of
    an earlier attempt of the same job (by `$TF_CONTRASTIVE_ATTEMPT`), or if
    another machine has not renewed it for ten minutes. In one process a new
    lock replaces an older one.

    Args:
      folder: the folder; it is created.
      name: what the lock is for, which names the file `<name>.lock`.
      wait_seconds: how long to wait for the present owner.

    Raises:
      UserError: if another process has the lock, or its file is damaged.
    """

    def __init__(
        self, folder: str, name: str = "pretrain", wait_seconds: float = 0.0
    ) -> None:
        self._folder, self._wait_seconds = folder, wait_seconds
        self._path = os.path.join(folder, f"{name}.lock")
        now = datetime.datetime.now().astimezone()
        self._owner: dict[str, Any] = {
            **processes.identity(os.getpid()),
            "since": now.isoformat(sep=" ", timespec="seconds"),
            "token": uuid.uuid4().hex,
            "attempt": os.environ.get(_ATTEMPT, ""),
        }
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> "FolderLock":
        until = time.monotonic() + self._wait_seconds
        while other := self._try_to_own():
            if time.monotonic() >= until:
                raise self._refusal(other)
            time.sleep(1.0)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._closed.set()
        self._thread.join()
        with contextlib.suppress(tf.errors.OpError, errors.UserError):
            if self._is_owner():
                tf.io.gfile.remove(self._path)

    def check(self) -> None:
        """Raises `UserError` if another process has the lock now."""
        other = self._read()
        if other and not self._is_gone(other):
            raise self._refusal(other)

    def is_visible(self) -> bool:
        """Whether a lock of any owner is seen; waits for slow file systems."""
        until = time.monotonic() + _VISIBLE_SECONDS
        while not self._read():
            if time.monotonic() >= until:
                return False
            time.sleep(1.0)
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.listdir(self._folder)  # NFS then looks again.
        return True

    def _refusal(self, other: dict[str, Any]) -> errors.UserError:
        return errors.UserError(
            f"{self._folder} is in use by process {other['process']} on"
            f" {other['host']} since {other['since']}: wait for its end; if it"
            f" is gone, delete {self._path}"
        )

    def _try_to_own(self) -> dict[str, Any] | None:
        """Becomes the owner, or returns the present one."""
        with errors.write_errors(self._path, files.ADVICE):
            tf.io.gfile.makedirs(self._folder)
        with _exclusively(self._folder):
            other = self._read()
            if other and not self._is_gone(other):
                return other
            if other and other["process"] != self._owner["process"]:
                terminal.warning(
                    f"{self._folder}: the lock of process {other['process']} on"
                    f" {other['host']} since {other['since']} is taken over,"
                    " since that process is gone"
                )
            self._write()
        if "://" in self._folder:
            time.sleep(SETTLE_SECONDS)
            return None if self._is_owner() else self._read()
        return None

    def _is_gone(self, other: dict[str, Any]) -> bool:
        """Whether the owner of a lock has ended, as far as can be known."""
        own = self._owner
        job, _, attempt = own["attempt"].rpartition("/")
        its_job, _, its_attempt = other["attempt"].rpartition("/")
        if job and job == its_job and attempt != its_attempt:
            return True
        if other["place"] != own["place"]:
            return time.time() - other["renewed"] > _STALE_SECONDS
        if other["process"] == own["process"]:
            return True
        return processes.birth(other["process"]) != other["born"]

    def _read(self) -> dict[str, Any] | None:
        """Returns the owner; None: there is none."""
        return files.read_json(self._path, {}, _FORM) or None

    def _write(self) -> None:
        files.write_json(self._path, self._owner | {"renewed": time.time()})

    def _is_owner(self) -> bool:
        owner = self._read()
        return owner is not None and owner["token"] == self._owner["token"]

    def _renew(self) -> None:
        while not self._closed.wait(RENEW_SECONDS):
            # A full disk or a lost connection does not end the run.
            with contextlib.suppress(tf.errors.OpError, errors.UserError):
                if self._is_owner():
                    self._write()


@contextlib.contextmanager
def _exclusively(folder: str) -> Iterator[None]:
    """Excludes other processes of this machine, where the file system can."""
    if "://" in folder:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
