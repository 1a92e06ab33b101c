"""A run's checkpoints while it trains: saved and restored."""

import os
import re
import time
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution, errors, files, flags, terminal
from tf_contrastive.checkpoints import storage, workdir
from tf_contrastive.checkpoints.finite import check_finite
from tf_contrastive.config.pretrain import Pretrain


class Checkpoints:
    """Saves and restores what a run needs to resume bit for bit.

    These are the variables and both optimizers; the order and the views of the
    data follow from the step. Every worker must call `save`, since reading
    moving statistics is a collective; only the chief's files stay. Files are
    written while training continues, from a copy of the values.

    Attributes:
      directory: the chief's folder of checkpoints.
      last_saved: step of the newest checkpoint; None: there is none yet.

    Raises:
      UserError: if files cannot be read or written, or what is to be saved is
        not finite; also from the methods.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        run_config: Pretrain,
        metadata: dict[str, Any],
    ) -> None:
        self._model = model
        runtime = run_config.runtime
        self.directory = os.path.join(runtime.workdir, storage.CHECKPOINTS)
        self._own_directory = self.directory
        if distribution.is_chief(model.distribute_strategy):
            self._prepare(run_config, metadata)
        else:
            # Deleted together with this object.
            self._temporary = files.temporary_folder()
            self._own_directory = self._temporary.name
        parts = [
            *("encoder", "projection_head", "optimizer", "probe"),
            *("key_branch", "neighbors"),
        ]
        if model.probe is not None:
            parts.append("probe_optimizer")
        objects = {name: getattr(model, name) for name in parts}
        self._parts = {k: x for k, x in objects.items() if x is not None}
        self._checkpoint = tf.train.Checkpoint(**self._parts)
        self._manager = tf.train.CheckpointManager(
            self._checkpoint,
            self._own_directory,
            max_to_keep=runtime.keep_checkpoints,
            keep_checkpoint_every_n_hours=runtime.keep_checkpoint_every_hours
            or None,
            checkpoint_name=storage.PREFIX,
        )
        self._options = tf.train.CheckpointOptions(enable_async=True)
        self.last_saved: int | None = None

    def _prepare(self, run_config: Pretrain, metadata: dict[str, Any]) -> None:
        """Cleans up after a killed process, and writes config and metadata."""
        folder = run_config.runtime.workdir
        with errors.write_errors(f"workdir={folder}", workdir.ADVICE):
            tf.io.gfile.makedirs(self.directory)
        for place in (folder, self.directory):
            files.remove_leftovers(place)
        unfinished = r".*(_temp|\.tempstate.*)"  # Of TensorFlow.
        for path in files.entries(self.directory, unfinished):
            if tf.io.gfile.isdir(path):
                tf.io.gfile.rmtree(path)
            else:
                tf.io.gfile.remove(path)
        _list_newest(self.directory)
        # An optimizer's slots are stored by position: with another order,
        # variables would get each other's momentum.
        variables = [
            # Keras numbers unnamed layers per process.
            [re.sub(r"_\d+(?=[/:])", "", v.name), v.shape.as_list()]
            for v in self._model.pretrained_variables
        ]
        path = os.path.join(self.directory, storage.METADATA_FILE)
        written = storage.read_metadata(
            self.directory, run_config.reading.max_classes, {}
        )
        if storage.checkpoint_paths(self.directory):
            _check_data(folder, written, metadata, run_config)
            before, now = (x.get("tensorflow") for x in (written, metadata))
            if before != now:
                terminal.warning(
                    f"{folder} was trained by TensorFlow {before} so far, and"
                    f" resumes with {now}: the result is as good, but not equal"
                    " bit for bit"
                )
        previous = written.get("variables")
        if previous not in (None, variables):
            differences = [
                f"{new[0]} {new[1]}, there {old[0]} {old[1]}"
                for old, new in zip(previous, variables, strict=False)
                if old != new
            ] or [f"{len(variables)}, there {len(previous)}"]
            raise errors.UserError(
                f"{self.directory} was written by another version of the"
                f" model, with other variables ({differences[0]}): resume it"
                " with that version, or choose another `workdir`"
            )
        files.write_json(path, metadata | {"variables": variables})
        files.write(
            os.path.join(folder, storage.CONFIG_FILE), flags.record(run_config)
        )

    @property
    def step(self) -> int:
        """Steps trained so far."""
        return int(self._model.optimizer.iterations.numpy())

    def restore(self) -> int:
        """Restores the newest whole checkpoint, if any; returns the step."""
        path = storage.newest_whole(self.directory)
        if path:
            # Otherwise training could silently resume from part of a model.
            self._checkpoint.restore(path).assert_consumed()
            self.last_saved = self.step
        return self.step

    def save(self) -> None:
        """Starts to save, unless the present step is saved already."""
        step = self.step
        if step == self.last_saved:
            return
        check_finite(self._parts, step, self.directory)
        try:
            self._manager.save(checkpoint_number=step, options=self._options)
        except tf.errors.OpError as error:
            path, _ = storage.newest(self.directory)
            newest = f"step {storage.step_of(path):,}" if path else "none"
            raise errors.UserError(
                f"a checkpoint cannot be written to {self.directory} at step"
                f" {step:,} ({errors.first_line(error)}): free some space, and"
                " repeat the command to resume; the newest whole checkpoint:"
                f" {newest}"
            ) from error
        self.last_saved = step

    def finish(self) -> None:
        """Saves, and waits until all is on disk."""
        self.save()
        self._checkpoint.sync()
        path = f"{storage.PREFIX}-{self.step}"
        if storage.damage_of(os.path.join(self._own_directory, path)):
            # The error of an asynchronous save is raised by the next one.
            self.last_saved = None
            self.save()


def _check_data(
    folder: str,
    written: dict[str, Any],
    metadata: dict[str, Any],
    run_config: Pretrain,
) -> None:
    """Checks that a resumed run has the data that it started with.

    Raises:
      UserError: with what changed, by count.
    """
    old, new = (about.get("label_names") or [] for about in (written, metadata))
    counts = [
        f"{metadata.get(key)} {what}, there {written[key]}"
        for key, what in (
            ("num_examples", "images"),
            ("num_classes", "classes"),
        )
        if key in written and written[key] != metadata.get(key)
    ]
    if old != new and not counts:
        counts = [f"{len({*old} ^ {*new})} classes have other names"]
    if not counts:
        return
    changed = f"the data of {folder} has changed ({'; '.join(counts)})"
    if old != new or written.get("num_classes") != metadata.get("num_classes"):
        raise errors.UserError(
            f"{changed}: restore it, or choose another `workdir`, since labels"
            " would have another meaning"
        )
    if not run_config.data.allow_changed_data:
        raise errors.UserError(
            f"{changed}, and with it the order and number of steps: restore"
            " it, or set `allow_changed_data` to go on"
        )


def _list_newest(directory: str) -> None:
    """Adds the newest checkpoint to TensorFlow's list, if it is missing there.

    Its writer was killed before it could do that. TensorFlow deletes old
    checkpoints only if they are listed.
    """
    path, _ = storage.newest(directory)
    state = storage.listed(directory)
    if state is None and (damaged := files.entries(directory, "checkpoint")):
        tf.io.gfile.remove(damaged[0])
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
