"""A saved run, and its networks in float32."""

import dataclasses
import os
from typing import Any

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.checkpoints import networks, storage
from tf_contrastive.checkpoints.workdir import check_run
from tf_contrastive.config.pretrain import Pretrain


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


def load_run(workdir: str) -> Run:
    """Reads a run's folder, at its newest whole checkpoint.

    Raises:
      UserError: if it holds no run, or no checkpoint yet.
    """
    run_config = check_run(workdir)
    directory = os.path.join(workdir, storage.CHECKPOINTS)
    path = storage.newest_whole(directory)
    if path is None:
        raise errors.UserError(
            f"no checkpoint in {directory} yet: the run writes the first one"
            " at the end of its first epoch"
        )
    metadata = storage.read_metadata(directory, run_config.reading.max_classes)
    return Run(run_config, metadata, path, storage.step_of(path))


def load_encoder(
    run: Run, *, trained: bool = True, synchronized: bool = False
) -> tf.keras.Model:
    """Rebuilds a run's encoder in float32, for inference or fine-tuning.

    Args:
      run: of `load_run`.
      trained: whether to load the checkpoint's weights. Otherwise the network
        is random: the run's initial weights with residual branches switched on.
        (They start switched off, which would be too weak a baseline.)
      synchronized: whether its BatchNormalization synchronizes in training.
    """
    with networks.precision("float32"):
        encoder = networks.build_encoder(
            run.config,
            synchronized=synchronized,
            # The trained weights follow.
            zero_init_residual=None if trained else False,
        )
    if trained:
        restore_part(run, encoder=encoder)
    return encoder


def load_heads(
    run: Run, features: int, *, trained: bool = True
) -> tuple[tf.keras.layers.Layer | None, tf.keras.layers.Layer | None]:
    """Rebuilds a run's head on D features in float32, for inference.

    Returns:
      (projection h [n, D] -> z [n, P], classifier h -> logits [n, C]). One is
      None: cross entropy has a classifier, other losses a projection.
    """
    with networks.precision("float32"):
        head = networks.build_head(run.config, run.metadata.get("num_classes"))
        head(tf.keras.Input([features]))
    if trained and head.variables:
        restore_part(run, projection_head=head)
    if run.config.loss.chosen().takes_logits:
        return None, head
    return head, None


def restore_part(run: Run, **parts: tf.Module) -> None:
    """Loads some of a checkpoint's objects, such as `encoder=`, completely."""
    status = tf.train.Checkpoint(**parts).restore(run.checkpoint)
    status.expect_partial().assert_existing_objects_matched()
