"""Which checkpoints of a folder stay: the newest by step.

TensorFlow's `CheckpointManager` goes by the clock: after it was set back, old
checkpoints stay forever.
"""

import contextlib
import os
import re

import tensorflow as tf

from tf_contrastive.base import files
from tf_contrastive.checkpoints import storage


class Retention:
    """Lists a folder's checkpoints for TensorFlow, and removes old ones.

    Checkpoints that are not listed, and older than the newest listed one, are
    those that somebody kept: they stay.

    Args:
      directory: the folder.
      keep: how many of the newest checkpoints stay.

    Attributes:
      newest: step of the newest whole checkpoint that is listed; None: none is.
    """

    def __init__(self, directory: str, keep: int) -> None:
        self._directory = directory
        self._keep = keep
        path, _ = storage.newest(directory)
        newest = self.newest = storage.step_of(path) if path else None
        present = {
            storage.step_of(path)
            for path in storage.checkpoint_paths(directory)
        }
        self._steps = _listed(directory) & present
        if newest is None:
            return
        # The writer of those after the last one was killed before it listed
        # them.
        last = max(self._steps, default=newest)
        self._steps |= {s for s in present if s == newest or s > last}
        self._write(newest)

    def add(self, path: str) -> None:
        """Lists a checkpoint that is whole, and removes those before it."""
        step = storage.step_of(path)
        self._steps.add(step)
        # Before anything is deleted, so that a kill leaves a list of what is
        # there. Later steps are of damaged checkpoints, to be written again.
        self._write(step)
        for old in sorted(s for s in self._steps if s <= step)[: -self._keep]:
            self._steps.discard(old)
            remove(self._directory, old)
        self._write(step)
        self.newest = step

    def _write(self, newest: int) -> None:
        """Writes TensorFlow's list, in which the newest one comes last."""
        if not tf.io.gfile.isdir(self._directory):
            return  # It was moved away: the next save reports that.
        lines = [f'model_checkpoint_path: "{storage.PREFIX}-{newest}"']
        lines += [
            f'all_model_checkpoint_paths: "{storage.PREFIX}-{step}"'
            for step in (*sorted(self._steps - {newest}), newest)
        ]
        files.write(
            os.path.join(self._directory, "checkpoint"),
            "".join(f"{line}\n" for line in lines),
        )


def _listed(directory: str) -> set[int]:
    """Returns the steps in TensorFlow's list."""
    state = storage.listed(directory)
    return {
        storage.step_of(path)
        for path in (state.all_model_checkpoint_paths if state else ())
        if re.fullmatch(rf"{storage.PREFIX}-\d+", os.path.basename(path))
    }


def remove(directory: str, step: int) -> None:
    """Removes a checkpoint, first the file without which it does not exist."""
    name = rf"{storage.PREFIX}-{step}\."
    for pattern in (rf"{name}index", rf"{name}data-\d+-of-\d+"):
        for path in files.entries(directory, pattern):
            with contextlib.suppress(tf.errors.NotFoundError):
                tf.io.gfile.remove(path)
