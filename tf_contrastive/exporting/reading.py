"""Exports and runs, read back."""

import json
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, errors

# What makes a folder a SavedModel; it is written last.
GRAPH_FILE = "saved_model.pb"
# What model servers pass over, but for the warm-up requests.
EXTRA = "assets.extra"
# Facts for people and tools.
DETAILS_FILE = os.path.join(EXTRA, "model.json")


def versions(base: str) -> list[int]:
    """Returns the versions in a folder, those not yet complete included."""
    names = tf.io.gfile.listdir(base) if tf.io.gfile.isdir(base) else []
    # Object stores list folders with a slash at the end.
    names = [name.rstrip("/") for name in names]
    return [int(name) for name in names if name.isdecimal()]


def find(path: str) -> str | None:
    """Returns the SavedModel at `path` or its newest version, or None."""
    candidates = [path]
    candidates += [
        os.path.join(path, str(version))
        for version in sorted(versions(path), reverse=True)
    ]
    for candidate in candidates:
        if tf.io.gfile.exists(os.path.join(candidate, GRAPH_FILE)):
            return candidate
    return None


def details(path: str) -> dict[str, Any]:
    """Reads what an export says of itself.

    Args:
      path: `BASE/<version>`.

    Returns:
      {"image_size", "channels", "embedding_size", "projection_size" (or None),
      "signatures", "label_names", "head" (or None), "step" (of a run, or None),
      "formats": [{"format", "file", "largest_difference", "least_cosine",
      "bytes"}, ...], "package", "tensorflow"}.
    """
    with tf.io.gfile.GFile(os.path.join(path, DETAILS_FILE)) as file:
        return json.load(file)


def load(path: str) -> Callable:
    """Loads the encoder of a run or of an export.

    Args:
      path: folder of a run, of an export (`BASE/<version>`), or of exports
        (`BASE`, of which the newest is taken).

    Returns:
      images float32 [N, S, S, K] in [0, 1] -> float32 [N, D]; also called with
      `training=`, with `variables` and `trainable_variables`.

    Raises:
      UserError: if there is no run and no export of this package.
    """
    path = os.fspath(path)
    if not tf.io.gfile.isdir(path):
        raise errors.UserError(
            f"{path} is no folder: give the folder of a run or of an export"
        )
    saved_model = find(path)
    if saved_model is None:
        return checkpoints.load_encoder(checkpoints.load_run(path))
    encoder = tf.saved_model.load(saved_model)
    if not (callable(encoder) and hasattr(encoder, "trainable_variables")):
        raise errors.UserError(
            f"{saved_model} is a SavedModel, but no export of tf_contrastive:"
            " write one by `python -m tf_contrastive export`"
        )
    return encoder
