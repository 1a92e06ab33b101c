"""Report of what a data service delivered."""

from typing import Any

import tensorflow as tf

from tf_contrastive import datasets, terminal


class DeliveredExamples(tf.keras.callbacks.Callback):
    """Logs how many examples of each epoch the data service delivered.

    Args:
      delivered: the counter of the run's batches.
    """

    def __init__(self, delivered: datasets.DeliveryCounter) -> None:
        super().__init__()
        self._delivered = delivered

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Logs the epoch's count, as a warning if examples were lost."""
        examples = self._delivered.examples(epoch)
        expected = self._delivered.expected(epoch)
        line = (
            f"epoch {epoch + 1}: {examples:,} of {expected:,} examples came"
            " from the data service"
        )
        if examples < expected:
            terminal.warning(f"{line}; the others were lost with a worker")
        else:
            terminal.info(line)
