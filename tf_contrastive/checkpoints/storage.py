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


def write_text(
    path: str, text: str, advice: str = "choose a folder that can be written"
) -> None:
    """Writes a small file atomically, and its folder if that is missing.

    Args:
      path: local, or of any filesystem of `tf.io.gfile`.
      text: the whole content.
      advice: what a user should do if it cannot be written.

    Raises:
      UserError: if the file cannot be written.
    """
    partial = f"{path}.part"
    with errors.write_errors(path, advice):
        tf.io.gfile.makedirs(os.path.dirname(path) or ".")
        with tf.io.gfile.GFile(partial, "w") as file:
            file.write(text)
        tf.io.gfile.rename(partial, path, overwrite=True)


def write_json(
    path: str,
    content: dict[str, Any],
    advice: str = "choose a folder that can be written",
) -> None:
    """Writes an object as JSON; see `write_text`."""
    write_text(path, json.dumps(content, indent=2) + "\n", advice)


def read_json(
    path: str, default: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Reads an object that this package has written as JSON.

    Args:
      path: of the file.
      default: returned if the file does not exist.

    Raises:
      UserError: if the file holds something else, or does not exist and there
        is no default.
    """
    if default is not None and not tf.io.gfile.exists(path):
        return default
    try:
        with tf.io.gfile.GFile(path) as file:
            content = json.load(file)
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
    except (tf.errors.OpError, ValueError) as error:
        raise damaged_file(path, error) from error
    return content


def damaged_file(path: str, error: Exception) -> errors.UserError:
    """Returns the error for a file with content that nothing here wrote."""
    return errors.UserError(
        f"{path} is not what was written there ({errors.first_line(error)}):"
        " restore it from a copy, or move it away"
    )


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
        return errors.first_line(error)
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
