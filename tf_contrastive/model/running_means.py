"""Running means of what steps measure."""

from collections.abc import Iterable

import tensorflow as tf


class RunningMeans:
    """Means by name; create it in the strategy's scope.

    `fit` reports them in the order of `names`. It is not a Keras object,
    because its variables are not weights of the model.
    """

    def __init__(self, *names: str) -> None:
        self._means: dict[str, tf.keras.metrics.Mean] = {}
        self.add(*names)

    @property
    def metrics(self) -> list[tf.keras.metrics.Metric]:
        """The means as Keras metrics."""
        return list(self._means.values())

    def add(self, *names: str) -> None:
        """Adds means."""
        for name in names:
            self._means[name] = tf.keras.metrics.Mean(name=name)

    def update(
        self, values: dict[str, tf.Tensor], weights: dict[str, tf.Tensor]
    ) -> list[str]:
        """Adds values [] to the means of their names, and returns the names."""
        for name, value in values.items():
            self._means[name].update_state(value, weights[name])
        return list(values)

    def read(self, names: Iterable[str]) -> dict[str, tf.Tensor]:
        """Returns the means of `names`; in a replica, of all replicas.

        That takes two collectives for each: leave it to the end of a loop.
        """
        return {name: self._means[name].result() for name in names}
