"""A run's checkpoints while it trains: saved and restored."""

import contextlib
import os
import re
import weakref
from typing import Any

import tensorflow as tf

from tf_contrastive import datasets, distribution, flags
from tf_contrastive.base import errors, files, installation
from tf_contrastive.checkpoints import storage, workdir
from tf_contrastive.checkpoints.epoch_means import EpochMeans
from tf_contrastive.checkpoints.lock import FolderLock
from tf_contrastive.checkpoints.retention import Retention
from tf_contrastive.config.pretrain import Pretrain


class NonFiniteError(errors.DivergedError):
    """A loss, a gradient or a weight of a run became NaN or infinite."""

    def __init__(self, problem: str, directory: str) -> None:
        path, _ = storage.newest(directory)
        super().__init__(
            f"{problem}: lower {errors.arg('learning_rate')}, raise"
            f" {errors.arg('temperature')}, lengthen"
            f" {errors.arg('warmup_epochs')}, or, where it is the probe's,"
            f" train without {errors.arg('probe')}; last good checkpoint:"
            f" {path or 'none was saved yet'}"
        )


class Checkpoints:
    """Saves and restores what a run needs to resume bit for bit.

    These are the variables, the optimizers and the sums of the epoch's `means`;
    the order and the views of the data follow from the step. Every worker must
    call `save`, since reading moving statistics is a collective; only the
    chief's files, in `directory`, stay. They are written while training
    continues, from a copy of the values. `last_saved` is the step of the newest
    one; None: there is none yet.

    Args:
      model: the compiled model of the run.
      run_config: its options.
      info: of its data.
      lock: the lock that the chief has on the run's folder, if any.

    Raises:
      UserError: if files cannot be read or written, what is to be saved is not
        finite, or the folder is no longer that of the run; also from the
        methods. A subclass, such as `distribution.failures.LostWorkerError`,
        for other failures.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        run_config: Pretrain,
        info: datasets.Info,
        lock: FolderLock | None = None,
    ) -> None:
        self._model = model
        self._lock = lock
        self._opened: workdir.OpenedRun | None = None
        runtime = run_config.runtime
        self.directory = os.path.join(runtime.workdir, storage.CHECKPOINTS)
        self._own_directory = self.directory
        if distribution.is_chief(model.distribute_strategy):
            self._prepare(run_config, _metadata(info))
        else:
            temporary = contextlib.ExitStack()
            weakref.finalize(self, temporary.close)
            folder = files.temporary_folder()
            self._own_directory = temporary.enter_context(folder)
        self.means = EpochMeans(model)
        self._checkpoint = tf.train.Checkpoint(
            **model.checkpointed(), epoch_sums=self.means.sums
        )
        self._retention = Retention(
            self._own_directory, runtime.keep_checkpoints
        )
        self._options = tf.train.CheckpointOptions(
            enable_async=True,
            experimental_write_callbacks=[self._retention.add],
        )
        self.last_saved: int | None = None

    def _prepare(self, run_config: Pretrain, metadata: dict[str, Any]) -> None:
        """Cleans up after a killed process, and writes config and metadata."""
        # Another run may have ended here since the lock was free.
        workdir.check_workdir(run_config)
        folder = run_config.runtime.workdir
        with errors.write_errors(errors.arg("workdir", folder), workdir.ADVICE):
            tf.io.gfile.makedirs(self.directory)
        for place in (folder, self.directory):
            files.remove_leftovers(place)
        unfinished = r".*(_temp|\.tempstate.*)"  # Of TensorFlow.
        for path in files.entries(self.directory, unfinished):
            files.remove(path)
        whole = storage.checkpoint_paths(self.directory)
        data = rf"{storage.PREFIX}-\d+\.data-\d+-of-\d+"
        for path in files.entries(self.directory, data):
            if path.rpartition(".")[0] not in whole:
                tf.io.gfile.remove(path)
        # An optimizer's slots are stored by position: with another order,
        # variables would get each other's momentum.
        variables = [
            [_kind(v.name), v.shape.as_list()]
            for v in self._model.pretrained_variables
        ]
        path = os.path.join(self.directory, storage.METADATA_FILE)
        written = storage.read_metadata(self.directory, {})
        if storage.checkpoint_paths(self.directory):
            _check_data(folder, written, metadata, run_config)
        previous = [[_kind(n), s] for n, s in written.get("variables", [])]
        if previous and previous != variables:
            raise errors.UserError(
                f"{self.directory} was written by another version of the model,"
                " with other variables: resume it with that version, or choose"
                f" another {errors.arg('workdir')}"
            )
        if storage.newest(self.directory)[0] is None:
            # Raises for a run of which nothing is whole, before it is changed.
            storage.newest_whole(self.directory)
        files.write_json(path, metadata | {"variables": variables})
        files.write(
            os.path.join(folder, storage.CONFIG_FILE), flags.record(run_config)
        )
        self._opened = workdir.OpenedRun(folder)

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
        self._check_folder()
        step = self.step
        if step == self.last_saved:
            return
        _check_finite(self._model, step, self.directory)
        self.means.record()
        try:
            self._checkpoint.save_counter.assign_add(1)
            self._checkpoint.write(self._path(step), self._options)
        except tf.errors.OpError as error:
            # Of this save's collectives, or of the files of the one before.
            known = distribution.failures.meaning(error)
            if known is None or errors.is_full_disk(error):
                known = self._failure(error)
            raise known from error
        self.last_saved = step

    def finish(self) -> None:
        """Saves, and waits until all is on disk."""
        self.save()
        self._checkpoint.sync()
        if self._damage():
            # The error of an asynchronous save is raised by the next one.
            self.last_saved = None
            self.save()
            self._checkpoint.sync()
            if damage := self._damage():
                raise self._failure(OSError(damage))
        self._check_folder()

    def _damage(self) -> str | None:
        """Returns what is wrong with the checkpoint of the present step."""
        if self._retention.newest != self.step:
            return "it is not listed"
        return storage.damage_of(self._path(self.step))

    def _path(self, step: int) -> str:
        return os.path.join(self._own_directory, f"{storage.PREFIX}-{step}")

    def _check_folder(self) -> None:
        """Raises `UserError` unless the chief's folder is still the run's."""
        if self._opened is None:
            return  # The folder is the chief's, and so is the lock.
        self._opened.check()
        if self._lock:
            self._lock.check()

    def _failure(self, error: Exception) -> errors.UserError:
        path, _ = storage.newest(self.directory)
        newest = f"step {storage.step_of(path):,}" if path else "none"
        full = errors.is_full_disk(error)
        advice = "free some space" if full else "make it writable again"
        return errors.UserError(
            f"a checkpoint cannot be written to {self._own_directory} at step"
            f" {self.step:,} ({errors.first_line(error)}): {advice}, and repeat"
            f" the command to resume; the newest whole checkpoint: {newest}"
        )


def _check_finite(model: Any, step: int, directory: str) -> None:
    """Raises `NonFiniteError` if a variable of a checkpoint is not finite.

    A step whose gradient is finite may still overflow the weights.
    """
    for name, part in model.checkpointed().items():
        variables = [tf.convert_to_tensor(v) for v in part.variables]
        if not distribution.all_finite(variables):
            raise NonFiniteError(
                f"step {step:,} left values in the {name.replace('_', ' ')}"
                " that are not finite",
                directory,
            )


def _metadata(info: datasets.Info) -> dict[str, Any]:
    """Returns what later commands need to know of a run's data."""
    return {
        "dataset": info.name,
        "split": info.split,
        "num_examples": info.num_examples,
        "num_classes": info.num_classes,
        "image_shape": info.image_shape,
        "label_names": list(info.label_names),
        "tensorflow": tf.__version__,
        "version": installation.VERSION,
        "format": storage.FORMAT,
    }


def _kind(name: str) -> str:
    """Returns a variable's name without the numbers of layers.

    Keras numbers those without a name in the whole process ("conv2d_37").
    """
    return re.sub(r"_?\d+", "", name.rpartition(":")[0] or name)


def _check_data(
    folder: str,
    written: dict[str, Any],
    metadata: dict[str, Any],
    run_config: Pretrain,
) -> None:
    """Raises `UserError` unless a resumed run has the data as it started."""
    kinds = {"num_examples": "images", "num_classes": "classes"}
    keys = (*kinds, "label_names")
    changed = {k for k in keys if k in written and written[k] != metadata[k]}
    same_labels = changed == {"num_examples"}
    if not changed or (same_labels and run_config.data.allow_changed_data):
        return
    numbers = [
        f"{metadata[key]} {kind}, there {written[key]}"
        for key, kind in kinds.items()
        if key in changed
    ]
    otherwise = (
        f"set {errors.arg('allow_changed_data', True)} to go on with another"
        " order and number of steps"
        if same_labels
        else f"choose another {errors.arg('workdir')}, since labels would have"
        " another meaning"
    )
    raise errors.UserError(
        f"the data of {folder} has changed"
        f" ({'; '.join(numbers) or 'names of classes'}): restore it, or"
        f" {otherwise}"
    )
