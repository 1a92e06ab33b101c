"""A run that was written, and its networks in float32."""

import dataclasses
import os
from typing import Any

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive import model as models
from tf_contrastive.checkpoints import storage
from tf_contrastive.checkpoints.workdir import check_run
from tf_contrastive.config.pretrain import Pretrain


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that was written: its resolved config, data, newest checkpoint."""

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
        """The same run at another checkpoint, of `saved`."""
        step = storage.step_of(checkpoint)
        return dataclasses.replace(self, checkpoint=checkpoint, step=step)


def load_run(workdir: str) -> Run:
    """Reads a run's folder.

    Raises:
      UserError: if it holds no run, or none that was saved yet.
    """
    run_config = check_run(workdir)
    directory = os.path.join(workdir, storage.CHECKPOINTS)
    latest = storage.newest_whole(directory)
    if latest is None:
        raise errors.UserError(
            f"no checkpoint in {directory} yet: the run writes the first one"
            " at the end of its first epoch"
        )
    metadata = storage.read_json(os.path.join(directory, storage.METADATA_FILE))
    return Run(run_config, metadata, latest, storage.step_of(latest))


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
