"""Embeddings by all replicas of a strategy, each host with its own input."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.embedding import on_replicas

# An execution takes about this long at least, and has at most as many steps.
_SECONDS = 1.0
_STEPS = 16

# Input pipeline -> endless batches, one for a replica at a time, of (images
# float32 [b, S, S, K], numbers int32 [b, ...]).
MakeBatches = Callable[[tf.distribute.InputContext], tf.data.Dataset]


class ReplicatedEmbedder:
    """Embeds batches without the host's Python between two steps.

    Args:
      encoder: images float32 [b, S, S, K] in [0, 1] -> [b, D], each image by
        itself; made in the strategy's scope.
      strategy: whose replicas share the images. Of several workers each gets
        the embeddings of all, and must take part in the same steps.
    """

    def __init__(
        self,
        encoder: Callable[..., tf.Tensor],
        strategy: tf.distribute.Strategy,
    ) -> None:
        self._encoder = encoder
        self._strategy = strategy
        self._several = tf.function(self._several_steps)

    def __call__(
        self, make_batches: MakeBatches
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (h float32 [s, G, D], numbers int32 [s, G, ...]) of s steps.

        Without end; G are the rows of all replicas, in their order.
        """
        batches = iter(
            self._strategy.distribute_datasets_from_function(make_batches)
        )
        steps = 1
        while True:
            start = time.monotonic()
            h, numbers = self._several(batches, tf.constant(steps))
            yield h.numpy(), numbers.numpy()
            if time.monotonic() - start < _SECONDS:
                steps = min(2 * steps, _STEPS)
            # The same on all workers, whose hosts meet between executions.
            steps = distribution.mean_over_workers(self._strategy, steps)

    def _several_steps(
        self, batches: Any, steps: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        h = tf.TensorArray(tf.float32, steps)
        numbers = tf.TensorArray(tf.int32, steps)
        for i in tf.range(steps):
            embedded, numbered = on_replicas(
                self._strategy, self._encoder, next(batches)
            )
            h = h.write(i, embedded)
            numbers = numbers.write(i, numbered)
        return h.stack(), numbers.stack()
