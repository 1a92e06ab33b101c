"""Which checkpoints of a folder stay: the newest by step.

TensorFlow's `CheckpointManager` goes by the clock: after it was set back, old
checkpoints stay forever.
"""

import contextlib
import os

import tensorflow as tf

from tf_contrastive.base import files
from tf_contrastive.checkpoints import storage


class Retention:
    """Lists a folder's checkpoints for TensorFlow, and keeps the newest ones.

    `newest` is the step of the newest whole checkpoint; None: none is.
    """

    def __init__(self, directory: str, keep: int) -> None:
        self._directory = directory
        self._keep = keep
        path, _ = storage.newest(directory)
        self.newest = storage.step_of(path) if path else None
        if self.newest is not None:
            # Its writer may have been killed before it listed it.
            self._write(self.newest)

    def add(self, path: str) -> None:
        """Lists a checkpoint that is whole, and removes those before it."""
        step = storage.step_of(path)
        # Before anything is deleted, so that a kill leaves a list of what is
        # there. Later steps are of damaged checkpoints, to be written again.
        self._write(step)
        for old in [s for s in self._steps() if s <= step][: -self._keep]:
            # First the file without which it does not exist.
            name = rf"{storage.PREFIX}-{old}\."
            for pattern in (rf"{name}index", rf"{name}data-\d+-of-\d+"):
                for file in files.entries(self._directory, pattern):
                    with contextlib.suppress(tf.errors.NotFoundError):
                        tf.io.gfile.remove(file)
        self._write(step)
        self.newest = step

    def _steps(self) -> list[int]:
        paths = storage.checkpoint_paths(self._directory)
        return [storage.step_of(path) for path in paths]

    def _write(self, newest: int) -> None:
        """Writes TensorFlow's list, in which the newest one comes last."""
        if not tf.io.gfile.isdir(self._directory):
            return  # It was moved away: the next save reports that.
        lines = [f'model_checkpoint_path: "{storage.PREFIX}-{newest}"']
        lines += [
            f'all_model_checkpoint_paths: "{storage.PREFIX}-{step}"'
            for step in (*(s for s in self._steps() if s != newest), newest)
        ]
        files.write(
            os.path.join(self._directory, "checkpoint"),
            "".join(f"{line}\n" for line in lines),
        )
