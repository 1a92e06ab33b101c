"""The names of a run's files, and its checkpoints on disk."""

import contextlib
import os
from typing import Any

import tensorflow as tf

from tf_contrastive.base import errors, files, installation, terminal
from tf_contrastive.config.data import MAX_CLASSES

# Names in a workdir, and in its folder of checkpoints.
CONFIG_FILE = "config.flags"
CHECKPOINTS = "checkpoints"
METADATA_FILE = "metadata.json"
PREFIX = "ckpt"
# Of the files in that folder, in METADATA_FILE.
FORMAT = 1
# What reading a checkpoint raises; beyond a file's end, Python's own errors.
READ_ERRORS = (tf.errors.OpError, IndexError, RuntimeError, ValueError)

_METADATA = {
    "dataset": str,
    "split": str,
    "num_examples": int,
    "num_classes": (int, type(None)),
    "label_names": [str],
    "tensorflow": str,
    "variables": list,
}


def checkpoint_paths(directory: str) -> list[str]:
    """Returns the checkpoints in a folder, whole or not, oldest first."""
    paths = files.entries(directory, PREFIX + r"-(0|[1-9]\d*)\.index")
    return sorted((p.removesuffix(".index") for p in paths), key=step_of)


def saved(workdir: str) -> list[str]:
    """Returns the paths of a run's present checkpoints, oldest first."""
    return checkpoint_paths(os.path.join(workdir, CHECKPOINTS))


def step_of(path: str) -> int:
    """Returns the step at which a checkpoint was saved."""
    return int(path.rpartition("-")[2])


def read_metadata(
    directory: str, default: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Reads the facts about a run's data that lie beside its checkpoints."""
    path = os.path.join(directory, METADATA_FILE)
    content = files.read_json(path, default)
    if content and content.get("format") != FORMAT:
        version = content.get("version", "0.2.0 or older")
        raise errors.UserError(
            f"{path} was written by version {version} of tf_contrastive, and"
            f" version {installation.VERSION} reads checkpoints of format"
            f" {FORMAT}: use that version, or train again in another folder"
        )
    content = files.read_json(path, default, _METADATA)
    classes = content.get("num_classes")
    if classes is not None and not 0 < classes <= MAX_CLASSES:
        raise files.damaged(path, ValueError(f"'num_classes' is {classes}"))
    return content


def damage_of(path: str) -> str | None:
    """Returns a checkpoint's damage in one line, or None.

    It is read to its last byte; each value has a checksum. What cannot be read,
    whatever its content, is an error: training must not go back because of it.
    """
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except READ_ERRORS as error:
        if errors.is_unreadable(error):
            raise errors.UserError(
                f"{path} cannot be read ({errors.first_line(error)}): make it"
                " readable again, and repeat the command"
            ) from error
        return errors.first_line(error)
    return None


def is_present(path: str) -> bool:
    """Whether a checkpoint is there, whole or not."""
    return tf.io.gfile.exists(f"{path}.index")


def newest(directory: str) -> tuple[str | None, dict[str, str]]:
    """Returns the newest whole checkpoint, and newer path -> damage."""
    damages: dict[str, str] = {}
    for path in reversed(checkpoint_paths(directory)):
        damage = damage_of(path)
        if damage is None:
            return path, damages
        if not is_present(path):
            # A run that goes on has deleted it, and written newer ones.
            return newest(directory)
        damages[path] = damage
    return None, damages


def newest_whole(directory: str) -> str | None:
    """Finds the newest whole checkpoint, and warns about newer, damaged ones.

    None: there is none, or a first one that was never finished. All damaged
    ones are an error.
    """
    path, damages = newest(directory)
    state = None
    with contextlib.suppress(ValueError):  # The list is empty, or not text.
        state = tf.train.get_checkpoint_state(directory)
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
            f" or choose another {errors.arg('workdir')} to start again"
        )
    return path
