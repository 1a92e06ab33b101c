"""Which checkpoints of a folder stay: the newest by step, and one per hours.

TensorFlow's `CheckpointManager` goes by the clock: after it was set back, old
checkpoints stay forever.
"""

import contextlib
import os
import re
import time

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
      every_hours: time between two of the others that stay; 0: none stays.

    Attributes:
      newest: step of the newest whole checkpoint that is listed; None: none is.
    """

    def __init__(
        self, directory: str, keep: int, every_hours: float = 0.0
    ) -> None:
        self._directory = directory
        self._keep = keep
        self._every_seconds = every_hours * 3600.0
        self._clock = time.time()
        path, _ = storage.newest(directory)
        newest = self.newest = storage.step_of(path) if path else None
        present = list(
            map(storage.step_of, storage.checkpoint_paths(directory))
        )
        times, permanent = _listed(directory)
        self._permanent = permanent or self._clock
        self._now = max(self._clock, self._permanent, *times.values())
        # Step -> time of each listed checkpoint.
        self._times = {s: times[s] for s in present if s in times}
        if newest is None:
            return
        # The writer of those after the last one was killed before it listed
        # them.
        last = max(self._times, default=newest)
        for step in present:
            if step == newest or step > last:
                self._times.setdefault(step, self._now)
        self._write(newest)

    def add(self, path: str) -> None:
        """Lists a checkpoint that is whole, and removes those before it."""
        # A clock that is set back costs one interval.
        clock = time.time()
        self._now += max(clock - self._clock, 0.0)
        self._clock = clock
        step = storage.step_of(path)
        self._times[step] = self._now
        # Before anything is deleted, so that a kill leaves a list of what is
        # there. Later steps are of damaged checkpoints, to be written again.
        self._write(step)
        steps = sorted(s for s in self._times if s <= step)
        for old in steps[: -self._keep]:
            saved_at = self._times.pop(old)
            if (
                self._every_seconds
                and saved_at - self._permanent >= self._every_seconds
            ):
                self._permanent = saved_at
            else:
                remove(self._directory, old)
        self._write(step)
        self.newest = step

    def _write(self, newest: int) -> None:
        """Writes TensorFlow's list, in which the newest one comes last."""
        if not tf.io.gfile.isdir(self._directory):
            return  # It was moved away: the next save reports that.
        steps = sorted(self._times.keys() - {newest})
        lines = [f'model_checkpoint_path: "{storage.PREFIX}-{newest}"']
        for step in (*steps, newest):
            name = f'"{storage.PREFIX}-{step}"'
            lines += [
                f"all_model_checkpoint_paths: {name}",
                f"all_model_checkpoint_timestamps: {self._times[step]!r}",
            ]
        lines.append(f"last_preserved_timestamp: {self._permanent!r}\n")
        files.write(
            os.path.join(self._directory, "checkpoint"), "\n".join(lines)
        )


def _listed(directory: str) -> tuple[dict[int, float], float]:
    """Returns step -> time, and the time of the last one that stays."""
    state = storage.listed(directory)
    if state is None:
        return {}, 0.0
    steps = [
        storage.step_of(path)
        for path in state.all_model_checkpoint_paths
        if re.fullmatch(rf"{storage.PREFIX}-\d+", os.path.basename(path))
    ]
    times = list(state.all_model_checkpoint_timestamps)
    if len(times) != len(steps):
        times = [time.time()] * len(steps)
    return dict(zip(steps, times, strict=True)), state.last_preserved_timestamp


def remove(directory: str, step: int) -> None:
    """Removes a checkpoint, first the file without which it does not exist."""
    name = rf"{storage.PREFIX}-{step}\."
    for pattern in (rf"{name}index", rf"{name}data-\d+-of-\d+"):
        for path in files.entries(directory, pattern):
            with contextlib.suppress(tf.errors.NotFoundError):
                tf.io.gfile.remove(path)
