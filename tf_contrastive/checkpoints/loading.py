"""A saved run, and its networks in float32."""

import dataclasses
import os
from typing import Any

import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.checkpoints import storage
from tf_contrastive.checkpoints.workdir import check_run
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.model import networks
from tf_contrastive.model.averaged_encoder import Averages


class DeletedCheckpointError(errors.UserError):
    """A checkpoint was deleted before it was read."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A saved run: its resolved config, facts of its data, a checkpoint."""

    config: Pretrain
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
        """Returns the same run at another checkpoint, one of `saved`."""
        step = storage.step_of(checkpoint)
        return dataclasses.replace(self, checkpoint=checkpoint, step=step)


def load_run(workdir: str, step: int | None = None) -> Run:
    """Reads a run's folder, at a step's checkpoint; None: the newest whole one.

    A run that goes on may delete the checkpoint before it is read.
    """
    run_config = check_run(workdir)
    directory = os.path.join(workdir, storage.CHECKPOINTS)
    paths = {storage.step_of(p): p for p in storage.saved(workdir)}
    if step is not None and step not in paths:
        raise errors.UserError(
            f"{errors.arg('checkpoint', step)}: {workdir} has none of that"
            f" step, only of {', '.join(map(str, paths))}"
        )
    path = paths[step] if step is not None else storage.newest_whole(directory)
    if path is None:
        raise errors.UserError(
            f"no checkpoint in {directory} yet: the run writes the first one"
            " at the end of its first epoch"
        )
    metadata = storage.read_metadata(directory)
    return Run(run_config, metadata, path, storage.step_of(path))


def load_encoder(
    run: Run, *, trained: bool = True, synchronized: bool = False
) -> tf.keras.Model:
    """Rebuilds a run's encoder in float32, for inference or fine-tuning.

    If it is not `trained`, it is random: the run's initial weights with
    residual branches switched on. (They start switched off, which would be too
    weak a baseline.) Its BatchNormalization may be `synchronized` in training.
    """
    with networks.precision("float32"):
        encoder = networks.build_encoder(
            run.config,
            synchronized=synchronized,
            untrained=not trained,  # Else the trained weights follow.
        )
    if trained:
        restore_part(run, encoder=encoder)
    return encoder


def load_heads(
    run: Run, features: int, *, trained: bool = True
) -> tuple[tf.keras.layers.Layer | None, tf.keras.layers.Layer | None]:
    """Rebuilds a run's head on D features in float32, for inference.

    As (projection h [n, D] -> z [n, P], classifier h -> logits [n, C]). One is
    None: cross entropy has a classifier, other losses a projection.
    """
    with networks.precision("float32"):
        head = networks.build_head(run.config, run.metadata.get("num_classes"))
        head(tf.keras.Input([features]))
    if trained and head.variables:
        restore_part(run, projection_head=head)
    if run.config.loss.takes_logits:
        return None, head
    return head, None


def restore_part(run: Run, **parts: tf.keras.layers.Layer) -> None:
    """Loads some of a checkpoint's networks, such as `encoder=`, completely.

    Of a run with `ema` these are their averages.
    """
    averages = Averages(**parts) if run.config.setup.ema else None
    saved = parts if averages is None else {"averages": averages}
    try:
        status = tf.train.Checkpoint(**saved).restore(run.checkpoint)
        status.expect_partial().assert_existing_objects_matched()
    except storage.READ_ERRORS as error:
        if storage.is_present(run.checkpoint):
            raise
        raise DeletedCheckpointError(
            f"{run.checkpoint} was deleted before it was read: repeat the"
            " command; for a run that saves so often, set a larger"
            " `keep_checkpoints`"
        ) from error
    if averages is not None:
        averages.use()
