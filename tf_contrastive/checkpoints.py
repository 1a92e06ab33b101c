"""A run's folder: which experiment it holds, its checkpoints, its encoder.

Layer 5. A workdir holds one experiment. `config.flags` says which: the same
command resumes it, any other is refused. All paths go through `tf.io.gfile`.
"""

import contextlib
import dataclasses
import json
import os
import re
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import config, distribution, flags, terminal
from tf_contrastive import model as models

CONFIG_FILE = "config.flags"
CHECKPOINTS = "checkpoints"
METADATA_FILE = "metadata.json"
_PREFIX = "ckpt"


def write_text(path: str, text: str) -> None:
    """Writes a small file so that a reader sees the old one or the new one."""
    beside = f"{path}.part"
    with tf.io.gfile.GFile(beside, "w") as file:
        file.write(text)
    tf.io.gfile.rename(beside, path, overwrite=True)


def read_json(path: str) -> dict[str, Any]:
    """Reads an object that this package has written as JSON.

    Raises:
      UserError: if the file holds something else.
    """
    try:
        with tf.io.gfile.GFile(path) as file:
            read = json.load(file)
        if not isinstance(read, dict):
            raise ValueError("it is no JSON object")
    except (tf.errors.OpError, ValueError) as error:
        raise _not_ours(path, error) from error
    return read


def _not_ours(path: str, error: Exception) -> config.UserError:
    return config.UserError(
        f"{path} is not what was written there ({_first_line(error)}): restore"
        " it from a copy, or move it away"
    )


def check_workdir(wanted: config.Pretrain) -> None:
    """Raises `UserError` if the run cannot be written, or resumed, there.

    Args:
      wanted: the resolved config of the run that is to start.
    """
    workdir = wanted.runtime.workdir
    if previous := _read_config(workdir):
        differing = _differing(previous, wanted)
        if differing:
            raise config.UserError(
                f"{workdir} holds another experiment"
                f" ({'; '.join(differing)}): give these flags as there to"
                " resume it, or another --workdir"
            )
    # Of a name of its own, since the workers of a run try it all at once.
    probe = os.path.join(workdir, f".writable-{uuid.uuid4().hex}")
    try:
        tf.io.gfile.makedirs(workdir)
        with tf.io.gfile.GFile(probe, "w") as file:
            file.write("")
        tf.io.gfile.remove(probe)
    except tf.errors.OpError as error:
        raise config.UserError(
            f"--workdir={workdir} cannot be written ({error.message}): give a"
            " folder in which you may create files"
        ) from error


def _read_config(workdir: str) -> config.Pretrain | None:
    path = os.path.join(workdir, CONFIG_FILE)
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path) as file:
            return flags.read(config.Pretrain, file.read(), workdir)
    except ValueError as error:  # No text, or flags that are wrong.
        raise _not_ours(path, error) from error


def _differing(previous: config.Pretrain, wanted: config.Pretrain) -> list[str]:
    """Names the flags that make `wanted` another experiment."""
    return [
        f"--{field.name}={_told(new)}, there {_told(old)}"
        for (_, field, old), (_, _, new) in zip(
            config.fields(previous), config.fields(wanted), strict=True
        )
        if field.metadata["identity"] and old != new
    ]


def _told(value: Any) -> Any:
    return "(not given)" if value is None else value


def newest(directory: str) -> tuple[str | None, dict[str, str]]:
    """Finds the newest checkpoint that can be read to its last byte.

    Returns:
      (its path, or None if there is none; path -> what is wrong with each one
      that is newer).
    """
    damaged = {}
    files = tf.io.gfile.glob(os.path.join(directory, f"{_PREFIX}-*.index"))
    paths = [file.removesuffix(".index") for file in files]
    for path in sorted(paths, key=step_of, reverse=True):
        damage = _damage(path)
        if damage is None:
            return path, damaged
        damaged[path] = damage
    return None, damaged


def step_of(path: str) -> int:
    """The step at which a checkpoint was saved."""
    return int(path.rpartition("-")[2])


def _damage(path: str) -> str | None:
    """What is wrong with a checkpoint's files; each value has a checksum."""
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    # What lies beyond a file's end comes as Python's own errors.
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _whole(directory: str) -> str | None:
    """Path of the newest whole checkpoint; tells of newer, damaged ones."""
    path, damaged = newest(directory)
    for bad, reason in damaged.items():
        terminal.warn(
            f"{bad} is damaged ({reason}):"
            + (f" going back to step {step_of(path):,}" if path else "")
        )
    if damaged and path is None:
        raise config.UserError(
            f"no checkpoint in {directory} is whole: restore one from a copy,"
            " or give another --workdir to start afresh"
        )
    return path


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
        run_config: config.Pretrain,
        metadata: dict[str, Any],
    ) -> None:
        self._model = model
        workdir = run_config.runtime.workdir
        self.directory = os.path.join(workdir, CHECKPOINTS)
        # An optimizer's slots are stored by position: another order of the
        # variables would give them each other's momentum.
        order = [
            # Keras numbers layers without a name anew in every process.
            [re.sub(r"_\d+(?=[/:])", "", v.name), v.shape.as_list()]
            for v in model.pretrained_variables
        ]
        self._order = {"variables": order}
        self._written_to = self.directory
        if distribution.is_chief(model.distribute_strategy):
            tf.io.gfile.makedirs(self.directory)
            _clear_unfinished(self.directory)
            _list_newest(self.directory)
            self._check_order()
            write_text(
                os.path.join(self.directory, METADATA_FILE),
                json.dumps(metadata | self._order, indent=2),
            )
            write_text(
                os.path.join(workdir, CONFIG_FILE), flags.write(run_config)
            )
        else:
            # Gone with this object.
            self._beside = tempfile.TemporaryDirectory(
                prefix="tf_contrastive_worker_", ignore_cleanup_errors=True
            )
            self._written_to = self._beside.name
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
        self._checkpoint = tf.train.Checkpoint(**tracked)
        runtime = run_config.runtime
        self._manager = tf.train.CheckpointManager(
            self._checkpoint,
            self._written_to,
            max_to_keep=runtime.keep_checkpoints,
            keep_checkpoint_every_n_hours=runtime.keep_checkpoint_every_hours
            or None,
            checkpoint_name=_PREFIX,
        )
        self._options = tf.train.CheckpointOptions(enable_async=True)
        self.last_saved: int | None = None

    def _check_order(self) -> None:
        path = os.path.join(self.directory, METADATA_FILE)
        if not tf.io.gfile.exists(path):
            return
        written = read_json(path).get("variables")
        if written not in (None, self._order["variables"]):
            differing = [
                f"{new[0]} {new[1]}, there {old[0]} {old[1]}"
                for old, new in zip(
                    written, self._order["variables"], strict=False
                )
                if old != new
            ] or [f"{len(self._order['variables'])}, there {len(written)}"]
            raise config.UserError(
                f"{self.directory} was written by another version of the"
                f" model, with other variables ({differing[0]}): resume it with"
                " that version, or give another --workdir"
            )

    @property
    def step(self) -> int:
        """Steps trained so far."""
        return int(self._model.optimizer.iterations.numpy())

    def restore(self) -> int:
        """Restores the newest whole checkpoint, if any; returns the step."""
        path = _whole(self.directory)
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
        path = os.path.join(self._written_to, f"{_PREFIX}-{self.step}")
        if _damage(path):
            # What went wrong comes to light as the next one begins.
            self.last_saved = None
            self.save()

    @contextlib.contextmanager
    def _told(self, step: int) -> Iterator[None]:
        """Says in one line what keeps a checkpoint from being written."""
        try:
            yield
        except tf.errors.OpError as error:
            kept, _ = newest(self.directory)
            rest = f"step {step_of(kept):,}" if kept else "none"
            raise config.UserError(
                f"a checkpoint cannot be written to {self.directory} at step"
                f" {step:,} ({_first_line(error)}): make room, and repeat the"
                f" command to go on; the newest whole one: {rest}"
            ) from error


def _list_newest(directory: str) -> None:
    """Enters a checkpoint whose writer was killed before it could do that.

    TensorFlow deletes, once they are old, only those that its list names.
    """
    path, _ = newest(directory)
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


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that was written: its resolved config, data, newest checkpoint."""

    config: config.Pretrain
    metadata: dict[str, Any]
    checkpoint: str
    step: int

    @property
    def last_step(self) -> int:
        """The step with which the run ends."""
        schedule = self.config.schedule
        steps = self.metadata["num_examples"] // schedule.batch_size
        return schedule.epochs * steps

    def at(self, checkpoint: str) -> "Run":
        """The same run at another checkpoint, of `saved`."""
        step = step_of(checkpoint)
        return dataclasses.replace(self, checkpoint=checkpoint, step=step)


def saved(workdir: str) -> list[str]:
    """Paths of a run's checkpoints that are there now, oldest first."""
    pattern = os.path.join(workdir, CHECKPOINTS, f"{_PREFIX}-*.index")
    paths = [path.removesuffix(".index") for path in tf.io.gfile.glob(pattern)]
    return sorted(paths, key=step_of)


def is_whole(path: str) -> bool:
    """Whether a checkpoint can be read to its last byte."""
    return _damage(path) is None


def check_run(workdir: str) -> config.Pretrain:
    """Reads the config of the run in a folder.

    Raises:
      UserError: if it holds no run.
    """
    run_config = _read_config(workdir)
    if run_config is None:
        raise config.UserError(
            f"no run in {workdir}: there is no {CONFIG_FILE}; give the"
            " --workdir of a pretrain command"
        )
    return run_config


def load_run(workdir: str) -> Run:
    """Reads a run's folder.

    Raises:
      UserError: if it holds no run, or none that was saved yet.
    """
    run_config = check_run(workdir)
    directory = os.path.join(workdir, CHECKPOINTS)
    latest = _whole(directory)
    if latest is None:
        raise config.UserError(
            f"no checkpoint in {directory} yet: the run writes the first one"
            " at the end of its first epoch"
        )
    metadata = read_json(os.path.join(directory, METADATA_FILE))
    return Run(run_config, metadata, latest, step_of(latest))


def load_encoder(
    run: Run, *, trained: bool = True, synchronized: bool = False
) -> tf.keras.Model:
    """Rebuilds a run's encoder in float32, for inference or fine-tuning.

    Args:
      run: of `load_run`.
      trained: the newest checkpoint's weights; False: a random network, the
        run's initial weights with its residual branches switched on. (They
        start switched off, which would make the weakest of all baselines.)
      synchronized: whether its BatchNormalization synchronizes in training.
    """
    with models.precision("float32"):
        encoder = models.build_encoder(
            run.config, synchronized=synchronized, zero_init_residual=trained
        )
    if trained:
        status = tf.train.Checkpoint(encoder=encoder).restore(run.checkpoint)
        # Heads and optimizers stay behind; the encoder must match wholly.
        status.expect_partial().assert_existing_objects_matched()
    return encoder


def load_projection(
    run: Run, features: int, *, trained: bool = True
) -> tf.keras.layers.Layer | None:
    """Rebuilds a run's projection head in float32, for inference.

    Args:
      run: of `load_run`.
      features: D, that the encoder gives.
      trained: the newest checkpoint's weights; False: random ones.

    Returns:
      h [n, D] -> z [n, P]; None where the run has logits in their place.
    """
    if run.config.loss.loss == "cross_entropy":
        return None
    return _load_head(run, features, trained)


def load_classifier(
    run: Run, features: int, *, trained: bool = True
) -> tf.keras.layers.Layer | None:
    """Likewise the classifier of a run of cross entropy.

    Returns:
      h [n, D] -> logits [n, C]; None where the run has projections.
    """
    if run.config.loss.loss != "cross_entropy":
        return None
    return _load_head(run, features, trained)


def _load_head(run, features, trained) -> tf.keras.layers.Layer:
    with models.precision("float32"):
        head = models.build_head(run.config, run.metadata.get("num_classes"))
        head(tf.keras.Input([features]))
    if trained and head.variables:
        status = tf.train.Checkpoint(projection_head=head).restore(
            run.checkpoint
        )
        status.expect_partial().assert_existing_objects_matched()
    return head
