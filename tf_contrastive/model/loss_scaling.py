"""Losses scaled for float16, and steps that are passed over."""

from typing import Any

import tensorflow as tf


def is_guarded(optimizer: Any) -> bool:
    """Whether the optimizer passes over gradients that are not finite."""
    return isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer)


def scaled(loss: tf.Tensor, optimizer: Any) -> tf.Tensor:
    """The loss as the optimizer wishes to have it differentiated."""
    return optimizer.get_scaled_loss(loss) if is_guarded(optimizer) else loss


def unscaled(gradients: list[tf.Tensor], optimizer: Any) -> list[tf.Tensor]:
    """Undoes `scaled` in the gradients."""
    if not is_guarded(optimizer):
        return gradients
    return optimizer.get_unscaled_gradients(gradients)


def passing_over(optimizer: Any) -> Any:
    """Makes an optimizer pass over gradients that are not finite."""
    return tf.keras.mixed_precision.LossScaleOptimizer(
        optimizer, dynamic=True, initial_scale=1, dynamic_growth_steps=2**62
    )


def replicas() -> int:
    """What a loss is divided by: gradients are summed over replicas.

    Each replica's loss is a local one, whose mean over replicas is the global
    one.
    """
    return tf.distribute.get_strategy().num_replicas_in_sync
