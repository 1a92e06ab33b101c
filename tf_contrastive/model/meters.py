"""What a step measures: running means, the wait for input, bad steps."""

import tensorflow as tf

from tf_contrastive.losses import metrics
from tf_contrastive.model import non_finite

# Metrics of the contrastive task whose names alone would not say of what.
_TASK_METRICS = {
    name: f"contrastive_{name}" if name in ("accuracy", "entropy") else name
    for name in metrics.NAMES
}
# The metrics of a step, in the order of the data flow.
METRICS = ("loss", *_TASK_METRICS.values())
PROBE_METRICS = ("probe_loss", "probe_accuracy")
# Not the name of a protocol of `evaluate`, with which it does not compare.
ONLINE_METRIC = "online_knn_top1"


class Meters:
    """Running means by name, and what else a step counts.

    Make it in the strategy's scope. It is no Keras object: what it holds are no
    weights of the model.

    Args:
      names: of the means.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.means = {name: tf.keras.metrics.Mean(name=name) for name in names}
        self.input_wait = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self.guard = non_finite.FiniteGuard()

    def update(
        self,
        values: dict[str, tf.Tensor],
        weights: dict[str, tf.Tensor],
        *,
        finite_only: bool,
    ) -> dict[str, tf.Tensor]:
        """Adds values [] to the means, and returns those.

        Args:
          values: by name.
          weights: how much some of them count; the others count 1.
          finite_only: whether values that are no number do not count.
        """
        for name, value in values.items():
            weight = weights.get(name, 1.0)
            if finite_only:
                weight *= tf.cast(tf.math.is_finite(value), tf.float32)
                value = tf.where(weight > 0, value, 0.0)
            self.means[name].update_state(value, weight)
        return self.read(values)

    def read(self, names) -> dict[str, tf.Tensor]:
        """The means of `names`."""
        return {name: self.means[name].result() for name in names}


def contrastive_task(*args, **kwargs) -> dict[str, tf.Tensor]:
    """`metrics.contrastive_task`, by the names that the means have."""
    task = metrics.contrastive_task(*args, **kwargs)
    return {_TASK_METRICS[name]: value for name, value in task.items()}
