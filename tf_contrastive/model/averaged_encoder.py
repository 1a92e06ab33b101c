"""Exponential moving averages of the weights, for use after training."""

import types
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.model.contrastive_step import Batch, ContrastiveStep

# Steps of the warm-up: after s steps an average keeps at most s / (s + 9).
_WARMUP = 9.0
# The networks that commands read from a run's checkpoint.
_AVERAGED = ("encoder", "projection_head", "probe")


class AveragedEncoder(ContrastiveStep):
    """Averages weights and statistics over the steps (Polyak averaging).

    The averages do not act on training. With `ema=0` there are none.
    """

    arguments: tuple[str, ...] = ("ema",)

    def __init__(self, *args: Any, ema: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not 0 <= ema < 1:
            raise ValueError(f"ema={ema}: must be in [0, 1)")
        parts = {name: getattr(self, name, None) for name in _AVERAGED}
        networks = {name: x for name, x in parts.items() if x is not None}
        self.averages = Averages(**networks) if ema else None
        self.ema = ema

    @classmethod
    def arguments_of_run(
        cls, run: Pretrain, num_classes: int | None
    ) -> dict[str, Any]:
        """The constructor's arguments for a resolved run."""
        arguments = super().arguments_of_run(run, num_classes)
        return arguments | {"ema": run.setup.ema}

    def checkpointed(self) -> dict[str, Any]:
        """The averages, too."""
        parts = super().checkpointed()
        return parts | ({"averages": self.averages} if self.ema else {})

    def learn(self, batch: Batch) -> list[str]:
        """One training step, after which the averages follow."""
        if self.averages is None:
            return super().learn(batch)
        steps = tf.cast(self.optimizer.iterations, tf.float32)
        names = super().learn(batch)
        rate = tf.maximum(1.0 - self.ema, _WARMUP / (steps + _WARMUP))
        self.averages.follow(rate)
        return names


class Averages(tf.keras.layers.Layer):
    """The average of each weight of some networks; it starts as a copy."""

    def __init__(self, **networks: tf.keras.layers.Layer) -> None:
        super().__init__(name="averages", dtype="float32")
        # Keras does not look into a namespace, and cannot clone every network.
        self._followed = types.SimpleNamespace(weights=[])
        for name, network in networks.items():
            self._followed.weights += network.weights
            for i, weight in enumerate(network.weights):
                own = f"{name}_{i}", weight.shape, weight.dtype
                a = self.add_weight(*own, initializer="zeros", trainable=False)
                a.assign(tf.convert_to_tensor(weight))
        self.built = True

    def follow(self, rate: tf.Tensor) -> None:
        """Updates a to a + rate (w - a); counters are copied."""
        values = [
            a + tf.cast(rate, a.dtype) * (w - a) if a.dtype.is_floating else w
            for a, w in zip(self.weights, self._followed.weights, strict=True)
        ]
        distribution.assign(self.weights, values)

    def use(self) -> None:
        """Replaces the weights by their averages, after training."""
        for a, w in zip(self.weights, self._followed.weights, strict=True):
            w.assign(tf.convert_to_tensor(a))
