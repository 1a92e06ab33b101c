"""A run's checkpoints while it trains: written, kept, restored."""

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution, errors, flags
from tf_contrastive import model as models
from tf_contrastive.checkpoints import storage
from tf_contrastive.checkpoints.workdir import told_if_unwritable
from tf_contrastive.config.pretrain import Pretrain


class Checkpoints:
    """Saves and restores all that a run needs to go on bit for bit.

    That is the variables and both optimizers; order and views of the data
    follow from the step. Every worker must call `save`, since reading the
    moving statistics is a collective; only the chief's files are kept. Files
    are written while training goes on, from a copy of the values.

    Args:
      model: the compiled model.
      run_config: the resolved config, written as `config.flags`.
      metadata: what is known of the data, written beside the checkpoints.

    Attributes:
      directory: where the chief writes them.
      last_saved: step of the newest one; None: none yet.

    Raises:
      UserError: from `restore`, `save` and `finish`, if files cannot be read or
        written.
    """

    def __init__(
        self,
        model: models.ContrastiveModel,
        run_config: Pretrain,
        metadata: dict[str, Any],
    ) -> None:
        self._model = model
        workdir = run_config.runtime.workdir
        self.directory = os.path.join(workdir, storage.CHECKPOINTS)
        self._order = _order_of(model)
        self._written_to = self.directory
        if distribution.is_chief(model.distribute_strategy):
            self._prepare(workdir, run_config, metadata)
        else:
            # Gone with this object.
            self._beside = tempfile.TemporaryDirectory(
                prefix="tf_contrastive_worker_", ignore_cleanup_errors=True
            )
            self._written_to = self._beside.name
        self._checkpoint = tf.train.Checkpoint(**_tracked(model))
        runtime = run_config.runtime
        self._manager = tf.train.CheckpointManager(
            self._checkpoint,
            self._written_to,
            max_to_keep=runtime.keep_checkpoints,
            keep_checkpoint_every_n_hours=runtime.keep_checkpoint_every_hours
            or None,
            checkpoint_name=storage.PREFIX,
        )
        self._options = tf.train.CheckpointOptions(enable_async=True)
        self.last_saved: int | None = None

    def _prepare(
        self,
        workdir: str,
        run_config: Pretrain,
        metadata: dict[str, Any],
    ) -> None:
        """Cleans up after the process before, and writes what a run is."""
        with told_if_unwritable(workdir):
            tf.io.gfile.makedirs(self.directory)
        _clear_unfinished(self.directory)
        _list_newest(self.directory)
        self._check_order()
        storage.write_text(
            os.path.join(self.directory, storage.METADATA_FILE),
            json.dumps(metadata | {"variables": self._order}, indent=2),
        )
        storage.write_text(
            os.path.join(workdir, storage.CONFIG_FILE), flags.write(run_config)
        )

    def _check_order(self) -> None:
        path = os.path.join(self.directory, storage.METADATA_FILE)
        if not tf.io.gfile.exists(path):
            return
        written = storage.read_json(path).get("variables")
        if written not in (None, self._order):
            differing = [
                f"{new[0]} {new[1]}, there {old[0]} {old[1]}"
                for old, new in zip(written, self._order, strict=False)
                if old != new
            ] or [f"{len(self._order)}, there {len(written)}"]
            raise errors.UserError(
                f"{self.directory} was written by another version of the"
                f" model, with other variables ({differing[0]}): resume it with"
                " that version, or give another `workdir`"
            )

    @property
    def step(self) -> int:
        """Steps trained so far."""
        return int(self._model.optimizer.iterations.numpy())

    def restore(self) -> int:
        """Restores the newest whole checkpoint, if any; returns the step."""
        path = storage.newest_whole(self.directory)
        if path:
            # Each value must find its variable and each variable its value:
            # anything else would train on from part of a model in silence.
            self._checkpoint.restore(path).assert_consumed()
            self.last_saved = self.step
        return self.step

    def save(self) -> None:
        """Begins to save now, unless this very step is saved already."""
        step = self.step
        if step == self.last_saved:
            return
        with self._told(step):
            self._manager.save(checkpoint_number=step, options=self._options)
        self.last_saved = step

    def finish(self) -> None:
        """Saves now, and waits until all is on disk."""
        self.save()
        self._checkpoint.sync()
        path = os.path.join(self._written_to, f"{storage.PREFIX}-{self.step}")
        if storage.damage_of(path):
            # What went wrong comes to light as the next one begins.
            self.last_saved = None
            self.save()

    @contextlib.contextmanager
    def _told(self, step: int) -> Iterator[None]:
        """Says in one line what keeps a checkpoint from being written."""
        try:
            yield
        except tf.errors.OpError as error:
            kept, _ = storage.newest(self.directory)
            rest = f"step {storage.step_of(kept):,}" if kept else "none"
            raise errors.UserError(
                f"a checkpoint cannot be written to {self.directory} at step"
                f" {step:,} ({errors.first_line(error)}): make room, and repeat"
                f" the command to go on; the newest whole one: {rest}"
            ) from error


def _order_of(model: models.ContrastiveModel) -> list[list[Any]]:
    """[name, shape] of each variable that is pretrained.

    An optimizer's slots are stored by position: another order of the variables
    would give them each other's momentum.
    """
    return [
        # Keras numbers layers without a name anew in every process.
        [re.sub(r"_\d+(?=[/:])", "", v.name), v.shape.as_list()]
        for v in model.pretrained_variables
    ]


def _tracked(model: models.ContrastiveModel) -> dict[str, Any]:
    """What a checkpoint holds, by its name there."""
    tracked = {
        "encoder": model.encoder,
        "projection_head": model.projection_head,
        "optimizer": model.optimizer,
    }
    if model.probe is not None:
        tracked["probe"] = model.probe
        tracked["probe_optimizer"] = model.probe_optimizer
    if model.key_branch is not None:
        tracked["key_branch"] = model.key_branch
    if model.neighbors is not None:
        # So that the number goes on as it would have, too.
        tracked["neighbors"] = model.neighbors
    return tracked


def _list_newest(directory: str) -> None:
    """Enters a checkpoint whose writer was killed before it could do that.

    TensorFlow deletes, once they are old, only those that its list names.
    """
    path, _ = storage.newest(directory)
    state = tf.train.get_checkpoint_state(directory)
    listed = list(state.all_model_checkpoint_paths) if state else []
    if path is None or path in listed:
        return
    times = list(state.all_model_checkpoint_timestamps) if state else []
    tf.compat.v1.train.update_checkpoint_state(
        directory,
        path,
        [*listed, path],
        all_model_checkpoint_timestamps=[*times, time.time()],
        last_preserved_timestamp=state.last_preserved_timestamp
        if state
        else time.time() - 1,
    )


def _clear_unfinished(directory: str) -> None:
    """Removes what a killed process left half written."""
    for pattern in ("*_temp", "*.tempstate*", "*.part"):
        for path in tf.io.gfile.glob(os.path.join(directory, pattern)):
            if tf.io.gfile.isdir(path):
                tf.io.gfile.rmtree(path)
            else:
                tf.io.gfile.remove(path)
