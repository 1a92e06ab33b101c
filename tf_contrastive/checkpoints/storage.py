"""Files of a run's folder: atomic small files, and checkpoints on disk."""

import json
import os
import re
import reprlib
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tf_contrastive import errors, terminal

# Names in a workdir, and in its folder of checkpoints.
CONFIG_FILE = "config.flags"
CHECKPOINTS = "checkpoints"
METADATA_FILE = "metadata.json"
PREFIX = "ckpt"
ADVICE = "choose a folder that can be written"

# The form of a JSON value: a type or several, [the form of each item],
# {key: the form of its value} of an object that may have other keys, too, or a
# function that tells whether a value has it.
Form = Any
NUMBER_OR_NONE = (int, float, type(None))
_METADATA = {
    "dataset": str,
    "split": str,
    "num_examples": int,
    "num_classes": (int, type(None)),
    "label_names": [str],
    "tensorflow": str,
    "variables": list,
}


def write_file(path: str, content: str | bytes, advice: str = ADVICE) -> None:
    """Writes a small file, and its folder if that is missing.

    Readers see the previous file or the new one.

    Raises:
      UserError: with the advice, if the file cannot be written.
    """
    partial = f"{path}.part"
    mode = "w" if isinstance(content, str) else "wb"
    with errors.write_errors(path, advice):
        tf.io.gfile.makedirs(os.path.dirname(path) or ".")
        with tf.io.gfile.GFile(partial, mode) as file:
            file.write(content)
        tf.io.gfile.rename(partial, path, overwrite=True)


def write_json(
    path: str, content: dict[str, Any], advice: str = ADVICE
) -> None:
    """Writes an object as JSON; see `write_file`."""
    write_file(path, json.dumps(content, indent=2) + "\n", advice)


def read_json(
    path: str, default: dict[str, Any] | None = None, form: Form = dict
) -> dict[str, Any]:
    """Reads an object that this package has written as JSON.

    Args:
      path: of the file.
      default: returned if the file does not exist.
      form: what the caller relies on; see `Form`.

    Raises:
      UserError: if the file holds something else, or does not exist and there
        is no default.
    """
    if default is not None and not tf.io.gfile.exists(path):
        return default
    try:
        with tf.io.gfile.GFile(path) as file:
            content = json.load(file)
        if problem := _mismatch(content, form, "the content"):
            raise ValueError(problem)
    except (tf.errors.OpError, ValueError, RecursionError) as error:
        raise damaged_file(path, error) from error
    return content


def is_interval_or_none(value: Any) -> bool:
    """Whether a JSON value is a pair of numbers, or null."""
    if value is None:
        return True
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and all(isinstance(end, int | float) for end in value)


def _mismatch(value: Any, form: Form, name: str) -> str | None:
    """Returns how a value differs from a form, or None."""
    parts: Iterable[tuple[Any, Form, str]] = ()
    if isinstance(form, list):
        kind: Any = list
        if isinstance(value, list):
            parts = ((item, form[0], f"an item of {name}") for item in value)
    elif isinstance(form, dict):
        kind = dict
        if isinstance(value, dict):
            if absent := form.keys() - value.keys():
                return f"{name} has no {min(absent)!r}"
            parts = ((value[key], form[key], repr(key)) for key in form)
    elif callable(form) and not isinstance(form, type):
        kind = object if form(value) else ()
    else:
        kind = form
    if not isinstance(value, kind):
        return f"{name} is {reprlib.repr(value)}"
    return next(filter(None, (_mismatch(*part) for part in parts)), None)


def damaged_file(path: str, error: Exception) -> errors.UserError:
    """Returns the error for a file with content that nothing here wrote."""
    return errors.UserError(
        f"{path} is not what was written there ({errors.first_line(error)}):"
        " restore it from a copy, or move it away"
    )


def files_in(folder: str, pattern: str) -> list[str]:
    """Returns the sorted paths of a folder's entries, by a regular expression.

    A glob would also take characters of the folder's own name for a pattern,
    and read or remove the files of other runs. An absent folder is empty.
    """
    if not tf.io.gfile.isdir(folder):
        return []
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(folder))
    return sorted(
        os.path.join(folder, name)
        for name in names
        if re.fullmatch(pattern, name)
    )


def checkpoint_paths(directory: str) -> list[str]:
    """Returns the checkpoints in a folder, whole or not, oldest first."""
    files = files_in(directory, PREFIX + r"-(0|[1-9]\d*)\.index")
    return sorted((f.removesuffix(".index") for f in files), key=step_of)


def saved(workdir: str) -> list[str]:
    """Returns the paths of a run's present checkpoints, oldest first."""
    return checkpoint_paths(os.path.join(workdir, CHECKPOINTS))


def step_of(path: str) -> int:
    """Returns the step at which a checkpoint was saved."""
    return int(path.rpartition("-")[2])


def read_metadata(
    directory: str, max_classes: int, default: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Reads the facts about a run's data that lie beside its checkpoints."""
    path = os.path.join(directory, METADATA_FILE)
    content = read_json(path, default, _METADATA)
    classes = content.get("num_classes")
    if classes is not None and not 0 < classes <= max_classes:
        raise damaged_file(path, ValueError(f"'num_classes' is {classes}"))
    return content


def damage_of(path: str) -> str | None:
    """Returns a checkpoint's damage in one line, or None.

    It is read to its last byte; each value has a checksum.
    """
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    # Reading beyond a file's end raises Python's own errors.
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:
        return errors.first_line(error)
    return None


def newest(directory: str) -> tuple[str | None, dict[str, str]]:
    """Returns the newest whole checkpoint, and newer path -> damage."""
    damages: dict[str, str] = {}
    for path in reversed(checkpoint_paths(directory)):
        damage = damage_of(path)
        if damage is None:
            return path, damages
        damages[path] = damage
    return None, damages


def listed(directory: str) -> Any:
    """Returns TensorFlow's list of checkpoints; None: absent or damaged."""
    try:
        return tf.train.get_checkpoint_state(directory)
    except ValueError:  # Empty, or not text.
        return None


def newest_whole(directory: str) -> str | None:
    """Finds the newest whole checkpoint, and warns about newer, damaged ones.

    Returns:
      Its path; None if there is none, or a first one that was never finished.

    Raises:
      UserError: if every checkpoint is damaged.
    """
    path, damages = newest(directory)
    state = listed(directory)
    # TensorFlow lists a checkpoint once it is whole.
    was_whole = state and state.all_model_checkpoint_paths
    if path is None and len(damages) == 1 and not was_whole:
        terminal.warning(
            f"{next(iter(damages))} was never finished, and nothing is saved"
            " before it"
        )
        return None
    for damaged, reason in damages.items():
        terminal.warning(
            f"{damaged} is damaged ({reason})"
            + (f": going back to step {step_of(path):,}" if path else "")
        )
    if damages and path is None:
        raise errors.UserError(
            f"no checkpoint in {directory} is whole: restore one from a copy,"
            " or choose another `workdir` to start again"
        )
    return path
