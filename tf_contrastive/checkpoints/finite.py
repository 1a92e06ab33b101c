"""Runs that diverged: the error, and the check of what a checkpoint holds."""

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.base import errors
from tf_contrastive.checkpoints import storage
from tf_contrastive.model import ContrastiveModel


class NonFiniteError(errors.DivergedError):
    """A loss, a gradient or a weight of a run became NaN or infinite.

    Args:
      problem: what happened, and to what.
      directory: the folder of checkpoints.
    """

    def __init__(self, problem: str, directory: str) -> None:
        path, _ = storage.newest(directory)
        super().__init__(
            f"{problem}: lower {errors.arg('learning_rate')}, raise"
            f" {errors.arg('temperature')}, lengthen"
            f" {errors.arg('warmup_epochs')}, or, where it is the probe's,"
            f" train without {errors.arg('probe')}; last good checkpoint:"
            f" {path or 'none was saved yet'}"
        )


def check_finite(model: ContrastiveModel, step: int, directory: str) -> None:
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
