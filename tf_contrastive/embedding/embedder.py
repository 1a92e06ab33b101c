"""The embeddings of an encoder on all replicas, and its checksum.

An encoder is called as `encoder(images, training=False)` and lists its
`variables`: a Keras model, or a loaded export.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.base import errors

# An execution of `Embedder.steps` takes about this long at least, and has at
# most as many steps.
_SECONDS = 1.0
_STEPS = 16

# Of (images float32 [b, S, S, K], anything else, ...).
Batches = Iterable[tuple[Any, ...]]
# Input pipeline -> endless batches, one for a replica at a time, of (images
# float32 [b, S, S, K], numbers int32 [b, ...]).
MakeBatches = Callable[[tf.distribute.InputContext], tf.data.Dataset]


class Embedder:
    """Embeds batches of images by one graph for each shape.

    Args:
      encoder: images float32 [b, S, S, K] in [0, 1] -> [b, D], each image by
        itself; made in the strategy's scope.
      strategy: whose replicas share the images; None: the one in scope. Of
        several workers each gets the embeddings of all, and must take part in
        the same steps.
    """

    def __init__(
        self,
        encoder: Callable[..., tf.Tensor],
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        self._encoder = encoder
        self._strategy = strategy or tf.distribute.get_strategy()
        self._one = tf.function(lambda images: self._on_replicas(images)[0])
        self._several = tf.function(self._several_steps)

    def __call__(
        self, batches: Batches, size: int = 0
    ) -> Iterator[tuple[Any, ...]]:
        """Yields batches with h float32 [b, D] in place of their images.

        All are encoded in the shape of `size` images, or of the first batch: a
        smaller one is padded with zeros, whose embeddings are dropped. Several
        workers pass the same batches. See `steps` for faster input.
        """
        replicas = self._strategy.num_replicas_in_sync
        rows = -(-size // replicas)  # Of a replica.
        for images, *others in batches:
            rows = rows or -(-len(images) // replicas)
            starts = range(0, len(images), rows * replicas)
            parts = [
                self._padded(images[i : i + rows * replicas], rows)
                for i in starts
            ]
            yield np.concatenate(parts), *others

    def _padded(self, images: tf.Tensor, rows: int) -> np.ndarray:
        count = len(images)
        missing = rows * self._strategy.num_replicas_in_sync - count
        padded = tf.pad(images, [[0, missing], [0, 0], [0, 0], [0, 0]])

        def part(context: tf.distribute.ReplicaContext) -> tf.Tensor:
            start = context.replica_id_in_sync_group * rows
            return padded[start : start + rows]

        parts = self._strategy.experimental_distribute_values_from_function(
            part
        )
        return self._one(parts).numpy()[:count]

    def steps(
        self, make_batches: MakeBatches
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (h float32 [s, G, D], numbers int32 [s, G, ...]) of s steps.

        Each host makes its own input, and its Python does nothing between two
        steps. Without end; G are the rows of all replicas, in their order.
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
            embedded, numbered = self._on_replicas(*next(batches))
            h = h.write(i, embedded)
            numbers = numbers.write(i, numbered)
        return h.stack(), numbers.stack()

    def _on_replicas(self, *arguments: Any) -> list[tf.Tensor]:
        """Encodes each replica's images, and passes on what follows them.

        Of (images [b, S, S, K], int32 [b, ...], ...) on each replica it returns
        [h float32 [G, D], int32 [G, ...], ...] of all replicas in order, to
        each worker.
        """
        strategy = self._strategy
        gathers = isinstance(
            strategy, tf.distribute.MultiWorkerMirroredStrategy
        )

        def on_replica(images: tf.Tensor, *others: tf.Tensor) -> list[Any]:
            h = tf.cast(self._encoder(images, training=False), tf.float32)
            rows = [h, *others]
            if gathers:
                return [*map(distribution.cross_replica_concat, rows)]
            return rows

        results = strategy.run(on_replica, args=arguments)
        local = map(strategy.experimental_local_results, results)
        return [tf.concat(x[:1] if gathers else x, 0) for x in local]


def embed(
    encoder: Callable[..., tf.Tensor], batches: Batches
) -> tuple[np.ndarray, np.ndarray]:
    """Embeds every image once with the encoder in inference mode.

    Inside a strategy's scope its replicas share each batch; several workers
    pass the same batches, and each gets all embeddings.

    Args:
      encoder: see `Embedder`.
      batches: yields (images float32 [b, S, S, K] in [0, 1], labels int [b]).

    Returns:
      (embeddings float32 [n, D], labels int32 [n], in the order of `batches`).

    Raises:
      UserError: if there is no image.
    """
    embedded = [
        (h, np.asarray(labels, np.int32))
        for h, labels in Embedder(encoder)(batches)
    ]
    if not embedded:
        raise errors.UserError(
            "nothing to embed: the split has no readable image"
        )
    embeddings, labels = zip(*embedded, strict=True)
    return np.concatenate(embeddings), np.concatenate(labels)


def checksum(model: tf.Module) -> str:
    """Returns the SHA-256 of all weights and moving statistics, in order.

    It depends on values and shapes, not on names: a run's encoder and its
    export have the same. Replicas are equal, and their mean would round.
    """
    digest = hashlib.sha256()
    for variable in model.variables:
        first, *_ = getattr(variable, "values", [variable])
        value = np.ascontiguousarray(first.numpy())
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
