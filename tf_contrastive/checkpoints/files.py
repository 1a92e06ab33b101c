"""Files of a run's folder: small ones whole, checkpoints to the last byte."""

import json
import os
from typing import Any

import tensorflow as tf

from tf_contrastive import errors, terminal

# What stands in a workdir, and in its folder of checkpoints.
CONFIG_FILE = "config.flags"
CHECKPOINTS = "checkpoints"
METADATA_FILE = "metadata.json"
PREFIX = "ckpt"


def write_text(path: str, text: str) -> None:
    """Writes a small file so that a reader sees the old one or the new one."""
    beside = f"{path}.part"
    with tf.io.gfile.GFile(beside, "w") as file:
        file.write(text)
    tf.io.gfile.rename(beside, path, overwrite=True)


def read_json(path: str) -> dict[str, Any]:
    """Reads an object that this package has written as JSON.

    Raises:
      UserError: if the file holds something else.
    """
    try:
        with tf.io.gfile.GFile(path) as file:
            read = json.load(file)
        if not isinstance(read, dict):
            raise ValueError("it is no JSON object")
    except (tf.errors.OpError, ValueError) as error:
        raise not_ours(path, error) from error
    return read


def not_ours(path: str, error: Exception) -> errors.UserError:
    """What is told of a file that holds something else."""
    return errors.UserError(
        f"{path} is not what was written there ({first_line(error)}): restore"
        " it from a copy, or move it away"
    )


def first_line(error: Exception) -> str:
    """The first line of what an error says, or else its name."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def newest(directory: str) -> tuple[str | None, dict[str, str]]:
    """Finds the newest checkpoint that can be read to its last byte.

    Returns:
      (its path, or None if there is none; path -> what is wrong with each one
      that is newer).
    """
    damaged = {}
    files = tf.io.gfile.glob(os.path.join(directory, f"{PREFIX}-*.index"))
    paths = [file.removesuffix(".index") for file in files]
    for path in sorted(paths, key=step_of, reverse=True):
        damage = damage_of(path)
        if damage is None:
            return path, damaged
        damaged[path] = damage
    return None, damaged


def saved(workdir: str) -> list[str]:
    """Paths of a run's checkpoints that are there now, oldest first."""
    pattern = os.path.join(workdir, CHECKPOINTS, f"{PREFIX}-*.index")
    paths = [path.removesuffix(".index") for path in tf.io.gfile.glob(pattern)]
    return sorted(paths, key=step_of)


def step_of(path: str) -> int:
    """The step at which a checkpoint was saved."""
    return int(path.rpartition("-")[2])


def is_whole(path: str) -> bool:
    """Whether a checkpoint can be read to its last byte."""
    return damage_of(path) is None


def damage_of(path: str) -> str | None:
    """What is wrong with a checkpoint's files; each value has a checksum.

    Returns:
      One line; None for nothing.
    """
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    # What lies beyond a file's end comes as Python's own errors.
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:
        return first_line(error)
    return None


def newest_whole(directory: str) -> str | None:
    """Path of the newest whole checkpoint; tells of newer, damaged ones.

    Returns:
      None where there is none at all, or only the very first one, whose writer
      was killed before it was through.

    Raises:
      UserError: if every one is damaged.
    """
    path, damaged = newest(directory)
    if path is None and len(damaged) == 1 and not _listed(directory):
        (unfinished,) = damaged
        terminal.warning(
            f"{unfinished} was never finished: nothing is saved before it"
        )
        return None
    for bad, reason in damaged.items():
        terminal.warning(
            f"{bad} is damaged ({reason}):"
            + (f" going back to step {step_of(path):,}" if path else "")
        )
    if damaged and path is None:
        raise errors.UserError(
            f"no checkpoint in {directory} is whole: restore one from a copy,"
            " or give another `workdir` to start afresh"
        )
    return path


def _listed(directory: str) -> bool:
    """Whether TensorFlow's list names any: it enters those that are whole."""
    state = tf.train.get_checkpoint_state(directory)
    return bool(state and state.all_model_checkpoint_paths)
