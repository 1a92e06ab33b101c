"""Runs that diverged: the error, and the check of what a checkpoint holds."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution, errors
from tf_contrastive.checkpoints import storage

_ADVICE = (
    "lower `learning_rate`, raise `temperature` or lengthen `warmup_epochs`"
)


class NonFiniteError(errors.DivergedError):
    """A loss, a gradient or a weight of a run became NaN or infinite.

    Args:
      problem: what happened.
      part: name of the checkpoint's part that is concerned.
      directory: the folder of checkpoints.
    """

    def __init__(self, problem: str, part: str, directory: str) -> None:
        path, _ = storage.newest(directory)
        advice = _ADVICE
        if part.startswith("probe"):
            advice = "lower `probe_learning_rate`"
        super().__init__(
            f"{problem}: {advice}; last good checkpoint:"
            f" {path or 'none was saved yet'}"
        )


def check_finite(parts: Mapping[str, Any], step: int, directory: str) -> None:
    """Raises `NonFiniteError` if a variable of a checkpoint is not finite.

    A step whose gradient is finite may still overflow the weights.
    """
    for name, part in parts.items():
        variables = [tf.convert_to_tensor(v) for v in part.variables]
        if not distribution.all_finite(variables):
            raise NonFiniteError(
                f"step {step:,} left values in the {name.replace('_', ' ')}"
                " that are not finite",
                name,
                directory,
            )
