"""Which experiment a workdir holds, as its `config.flags` says."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import errors, flags
from tf_contrastive.checkpoints import storage
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain


def check_workdir(wanted: Pretrain) -> None:
    """Raises `UserError` if the run cannot be written, or resumed, there.

    Nothing is left behind.

    Args:
      wanted: the resolved config of the run that is to start.
    """
    workdir = wanted.runtime.workdir
    if previous := _read_config(workdir):
        differing = _differing(previous, wanted)
        if differing:
            raise errors.UserError(
                f"{workdir} holds another experiment"
                f" ({'; '.join(differing)}): give these flags as there to"
                " resume it, or another `workdir`"
            )
    # Of a name of its own, since the workers of a run try it all at once.
    probe = os.path.join(_nearest(workdir), f".writable-{uuid.uuid4().hex}")
    with told_if_unwritable(workdir):
        with tf.io.gfile.GFile(probe, "w") as file:
            file.write("")
        tf.io.gfile.remove(probe)


def _nearest(workdir: str) -> str:
    """The folder itself, or the one that is there in which it will be made.

    An object store has no folders: there a file's name is all.
    """
    folder = os.path.normpath(workdir) if "://" not in workdir else workdir
    while "://" not in folder and not tf.io.gfile.exists(folder or "."):
        folder = os.path.dirname(folder)
    return folder


@contextlib.contextmanager
def told_if_unwritable(workdir: str) -> Iterator[None]:
    """Says in one line that nothing can be written to a workdir."""
    try:
        yield
    except tf.errors.OpError as error:
        raise errors.UserError(
            f"workdir={workdir} cannot be written ({error.message}): give a"
            " folder in which you may create files"
        ) from error


def _read_config(workdir: str) -> Pretrain | None:
    path = os.path.join(workdir, storage.CONFIG_FILE)
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path) as file:
            return flags.read(Pretrain, file.read(), workdir)
    except ValueError as error:  # No text, or flags that are wrong.
        raise storage.damaged_file(path, error) from error


def _differing(previous: Pretrain, wanted: Pretrain) -> list[str]:
    """Names the flags that make `wanted` another experiment."""
    return [
        f"{field.name}={_told(new)}, there {_told(old)}"
        for (_, field, old), (_, _, new) in zip(
            fields.fields(previous), fields.fields(wanted), strict=True
        )
        if field.metadata["identity"] and old != new
    ]


def _told(value: Any) -> Any:
    return "(not given)" if value is None else value


def check_run(workdir: str) -> Pretrain:
    """Reads the config of the run in a folder.

    Raises:
      UserError: if it holds no run.
    """
    run_config = _read_config(workdir)
    if run_config is None:
        raise errors.UserError(
            f"no run in {workdir}: there is no {storage.CONFIG_FILE}; give the"
            " `workdir` of a pretrain command"
        )
    return run_config
