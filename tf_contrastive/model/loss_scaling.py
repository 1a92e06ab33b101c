"""Loss scaling for float16, and skipping of non-finite updates."""

import types
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.model.contrastive_step import (
    Batch,
    ContrastiveStep,
    Gradients,
    Results,
)


class LossScaling(ContrastiveStep):
    """Follows optimizers that are `LossScaleOptimizer`s; others are untouched.

    Such an optimizer skips updates that are not finite, as others may. A
    skipped step counts as a step, since data and random numbers follow from
    the step's number; results that are not finite leave the means unchanged.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # In this process. All replicas agree on it. Keras does not look into a
        # namespace: it is no weight of the model.
        self._skipped = types.SimpleNamespace(
            steps=tf.Variable(
                tf.constant(0, tf.int64),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        )

    def objective(self, results: Results) -> tf.Tensor:
        """The sum of the scaled losses."""
        scaled = {
            name: trained.optimizer.get_scaled_loss(results[name])
            for name, trained in self.trained().items()
            if name in results and uses_loss_scaling(trained.optimizer)
        }
        return super().objective({**results, **scaled})

    def update(self, gradients: Gradients, results: Results) -> None:
        """Unscales the gradients, and counts the step."""
        if not _skips_updates(self.optimizer):
            super().update(gradients, results)
            return
        optimizers = {
            name: trained.optimizer
            for name, trained in self.trained().items()
            if name in gradients
        }
        step = tf.identity(self.optimizer.iterations)
        scale = tf.identity(getattr(self.optimizer, "loss_scale", 0.0))
        unscaled = {
            name: optimizer.get_unscaled_gradients(gradients[name])
            for name, optimizer in optimizers.items()
            if uses_loss_scaling(optimizer)
        }
        super().update({**gradients, **unscaled}, results)
        skipped = tf.equal(self.optimizer.iterations, step)
        counter = getattr(self.optimizer, "dynamic_counter", None)
        if counter is not None:
            # Keras counts skipped steps, too; this counts finite ones in a row.
            grown = self.optimizer.loss_scale > scale
            skipped = tf.equal(counter, 0) & ~grown
        self._skipped.steps.assign_add(tf.cast(skipped, tf.int64))
        counters = [x.iterations for x in optimizers.values()]
        distribution.assign(counters, [step + 1] * len(counters))

    def skipped_steps(self) -> int:
        """Returns how many steps of this process did not train the encoder."""
        return int(self._skipped.steps.numpy())

    def record(
        self, results: Results, batch: Batch, features: tf.Tensor | None
    ) -> list[str]:
        """Adds the results that are finite on all replicas to the means."""
        if not _skips_updates(self.optimizer):
            return super().record(results, batch, features)
        finite = tf.math.is_finite(tf.stack([*results.values()]))
        bad = distribution.cross_replica_sum(tf.cast(~finite, tf.float32))
        weights = {
            name: self.weight(name, batch) * tf.cast(bad[i] == 0, tf.float32)
            for i, name in enumerate(results)
        }
        values = {
            name: tf.where(weights[name] > 0, value, 0.0)
            for name, value in results.items()
        }
        return self.means.update(values, weights)


def uses_loss_scaling(optimizer: Any) -> bool:
    """Returns whether an optimizer scales losses and skips bad updates."""
    return isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer)


def _skips_updates(optimizer: Any) -> bool:
    """Whether an optimizer skips updates that are not finite."""
    return uses_loss_scaling(optimizer) or getattr(
        optimizer, "skips_non_finite", False
    )
