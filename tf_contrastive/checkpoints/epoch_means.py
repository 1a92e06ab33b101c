"""An epoch's means, which a checkpoint holds with the weights.

`fit` begins each epoch with means of nothing, and reports them at its end.
Without their sums, a resumed epoch would report the means of its last steps,
and a run that ends after its last checkpoint would report none.
"""

from collections.abc import Mapping

import tensorflow as tf


class EpochMeans:
    """The sums behind the metrics of a model in the present epoch.

    The metrics are `tf.keras.metrics.Mean`. The variable `sums`, float64
    [2 * M, 2], has total and count of each one in training, and in validation.
    """

    def __init__(self, model: tf.keras.Model) -> None:
        self._metrics = {mean.name: mean for mean in model.metrics}
        names = list(self._metrics)
        self._names = names + [f"val_{name}" for name in names]
        with tf.device("CPU:0"):
            zeros = tf.zeros([len(self._names), 2], tf.float64)
            self.sums = tf.Variable(zeros, trainable=False)
        self._is_closed = False

    def begin(self, resumed: bool) -> None:
        """Starts an epoch, or goes on with the one of the restored `sums`."""
        self._is_closed = False
        if resumed:
            for name, total, count in self._rows():
                if name in self._metrics:
                    self._metrics[name].total.assign(total)
                    self._metrics[name].count.assign(count)

    def record(self) -> None:
        """Takes the sums of the epoch's steps so far, unless it is closed.

        A collective, in which all workers take part.
        """
        if not self._is_closed:
            # Of all replicas.
            value = tf.convert_to_tensor
            self._assign(
                {
                    name: (float(value(mean.total)), float(value(mean.count)))
                    for name, mean in self._metrics.items()
                }
            )

    def close(self) -> None:
        """Takes the sums of all steps, before validation has others."""
        self.record()
        self._is_closed = True

    def finish(self, logs: Mapping[str, float]) -> None:
        """Takes the means that `fit` reports at the end of an epoch."""
        self._is_closed = True
        self._assign({name: (float(x), 1.0) for name, x in logs.items()})

    def read(self) -> dict[str, float]:
        """Returns the means by metric; those of validation have `val_`."""
        return {name: total / count for name, total, count in self._rows()}

    def _assign(self, rows: Mapping[str, tuple[float, float]]) -> None:
        self.sums.assign([rows.get(n, (0.0, 0.0)) for n in self._names])

    def _rows(self) -> list[tuple[str, float, float]]:
        """Returns (name, total, count) of the metrics that were measured."""
        pairs = zip(self._names, self.sums.numpy().tolist(), strict=True)
        return [(name, *sums) for name, sums in pairs if sums[1]]
