"""A run's folder: which experiment it holds, its checkpoints, its encoder.

Layer 5. A workdir holds one experiment. `config.flags` says which: the same
command resumes it, any other is refused. All paths go through `tf.io.gfile`.
"""

import dataclasses
import json
import os
import tempfile
from typing import Any

import tensorflow as tf

from tf_contrastive import config, distribution, flags
from tf_contrastive import model as models

CONFIG_FILE = "config.flags"
CHECKPOINTS = "checkpoints"
METADATA_FILE = "metadata.json"


def write_text(path: str, text: str) -> None:
    """Writes a small file so that a reader sees the old one or the new one."""
    beside = f"{path}.part"
    with tf.io.gfile.GFile(beside, "w") as file:
        file.write(text)
    tf.io.gfile.rename(beside, path, overwrite=True)


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
    probe = os.path.join(workdir, ".writable")
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
    with tf.io.gfile.GFile(path) as file:
        return flags.read(config.Pretrain, file.read(), workdir)


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


class Checkpoints:
    """Saves and restores all that a run needs to go on bit for bit.

    That is the variables and both optimizers; order and views of the data
    follow from the step. Every worker must call `save`, since reading the
    moving statistics is a collective; only the chief's files are kept.

    Args:
      model: the compiled model.
      run_config: the resolved config, written as `config.flags`.
      metadata: what is known of the data, written beside the checkpoints.
    """

    def __init__(
        self,
        model: models.ContrastiveModel,
        run_config: config.Pretrain,
        metadata: dict[str, Any],
    ) -> None:
        self._model = model
        workdir = run_config.runtime.workdir
        directory = os.path.join(workdir, CHECKPOINTS)
        self._readable = directory
        if distribution.is_chief(model.distribute_strategy):
            tf.io.gfile.makedirs(directory)
            write_text(
                os.path.join(directory, METADATA_FILE),
                json.dumps(metadata, indent=2),
            )
            write_text(
                os.path.join(workdir, CONFIG_FILE), flags.write(run_config)
            )
        else:
            directory = tempfile.mkdtemp(prefix="tf_contrastive_worker_")
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
        self._checkpoint = tf.train.Checkpoint(**tracked)
        self._manager = tf.train.CheckpointManager(
            self._checkpoint,
            directory,
            max_to_keep=run_config.runtime.keep_checkpoints,
        )
        self.last_saved: int | None = None

    @property
    def step(self) -> int:
        """Steps trained so far."""
        return int(self._model.optimizer.iterations.numpy())

    @property
    def latest(self) -> str | None:
        """Path of the newest checkpoint."""
        return tf.train.latest_checkpoint(self._readable)

    def restore(self) -> int:
        """Restores the newest checkpoint, if there is one; returns the step."""
        if self.latest:
            # Each value must find its variable and each variable its value:
            # anything else would train on from part of a model in silence.
            self._checkpoint.restore(self.latest).assert_consumed()
            self.last_saved = self.step
        return self.step

    def save(self) -> None:
        """Saves now, unless this very step is saved already."""
        step = self.step
        if step != self.last_saved:
            self._manager.save(checkpoint_number=step)
            self.last_saved = step


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that was written: its resolved config, data, newest checkpoint."""

    config: config.Pretrain
    metadata: dict[str, Any]
    checkpoint: str
    step: int


def load_run(workdir: str) -> Run:
    """Reads a run's folder.

    Raises:
      UserError: if it holds no run, or none that was saved yet.
    """
    run_config = _read_config(workdir)
    if run_config is None:
        raise config.UserError(
            f"no run in {workdir}: there is no {CONFIG_FILE}; give the"
            " --workdir of a pretrain command"
        )
    directory = os.path.join(workdir, CHECKPOINTS)
    latest = tf.train.latest_checkpoint(directory)
    if latest is None:
        raise config.UserError(
            f"no checkpoint in {directory} yet: the run writes the first one"
            " at the end of its first epoch"
        )
    with tf.io.gfile.GFile(os.path.join(directory, METADATA_FILE)) as file:
        metadata = json.load(file)
    step = int(latest.rpartition("-")[2])
    return Run(run_config, metadata, latest, step)


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
