"""Embeddings of batches of images, and the checksum of their encoder.

`embed` is for data that fit into memory; `job` embeds any split, on this
machine or (`beam`) on Apache Beam. An encoder is called as
`encoder(images, training=False)` and lists its `variables`: a Keras model, or a
loaded export.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import distribution, errors

__all__ = ["Batches", "checksum", "embed", "embedder", "on_replicas"]

Batches = Iterable[tuple[tf.Tensor, tf.Tensor]]


def embed(
    encoder: Callable[..., tf.Tensor], batches: Batches
) -> tuple[np.ndarray, np.ndarray]:
    """Embeds every image once with the encoder in inference mode.

    Inside a strategy's scope its replicas share each batch; several workers
    pass the same batches, and each gets all embeddings.

    Args:
      encoder: images float32 [b, S, S, K] in [0, 1] -> [b, D], each image by
        itself; made in the strategy's scope.
      batches: yields (images, labels int [b]).

    Returns:
      (embeddings float32 [n, D], labels int32 [n], in the order of `batches`).

    Raises:
      UserError: if there is no image.
    """
    encode = embedder(encoder)
    embedded = [
        (encode(images), np.asarray(labels, np.int32))
        for images, labels in batches
    ]
    if not embedded:
        raise errors.UserError(
            "nothing to embed: the split has no readable image"
        )
    embeddings, labels = zip(*embedded, strict=True)
    return np.concatenate(embeddings), np.concatenate(labels)


def embedder(
    encoder: Callable[..., tf.Tensor],
    strategy: tf.distribute.Strategy | None = None,
) -> Callable[[tf.Tensor], np.ndarray]:
    """Makes a function: images [b, S, S, K] -> embeddings float32 [b, D].

    All batches are encoded in the shape of the first one, by one graph: a
    smaller one is padded with zeros, whose embeddings are dropped. Replicas of
    the strategy (None: the one in scope) share each batch. Where each host has
    its own input, `replicated` is faster.
    """
    strategy = strategy or tf.distribute.get_strategy()
    replicas = strategy.num_replicas_in_sync
    rows = 0  # Of a replica.

    @tf.function
    def encode(parts: Any) -> tf.Tensor:
        return on_replicas(strategy, encoder, (parts,))[0]

    def encode_padded(images: tf.Tensor) -> np.ndarray:
        count = len(images)
        missing = rows * replicas - count
        padded = tf.pad(images, [[0, missing], [0, 0], [0, 0], [0, 0]])

        def part(context: tf.distribute.ReplicaContext) -> tf.Tensor:
            start = context.replica_id_in_sync_group * rows
            return padded[start : start + rows]

        parts = strategy.experimental_distribute_values_from_function(part)
        return encode(parts).numpy()[:count]

    def embed_one(images: tf.Tensor) -> np.ndarray:
        nonlocal rows
        rows = rows or -(-len(images) // replicas)
        starts = range(0, len(images), rows * replicas)
        return np.concatenate(
            [encode_padded(images[i : i + rows * replicas]) for i in starts]
        )

    return embed_one


def on_replicas(
    strategy: tf.distribute.Strategy,
    encoder: Callable[..., tf.Tensor],
    arguments: tuple[Any, ...],
) -> list[tf.Tensor]:
    """Encodes each replica's images, in a graph; passes on what follows them.

    Of (images [b, S, S, K], int32 [b, ...], ...) on each replica it returns [h
    float32 [G, D], int32 [G, ...], ...] of all replicas in order, to each
    worker.
    """
    gathers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)

    def on_replica(images: tf.Tensor, *others: tf.Tensor) -> list[tf.Tensor]:
        h = tf.cast(encoder(images, training=False), tf.float32)
        rows = [h, *others]
        return (
            [*map(distribution.cross_replica_concat, rows)] if gathers else rows
        )

    results = strategy.run(on_replica, args=arguments)
    local = map(strategy.experimental_local_results, results)
    return [tf.concat(x[:1] if gathers else x, 0) for x in local]


def checksum(model: tf.Module) -> str:
    """Returns the SHA-256 of all weights and moving statistics, in order.

    It depends on values and shapes, not on names: a run's encoder and its
    export have the same.
    """
    digest = hashlib.sha256()
    for variable in model.variables:
        value = np.ascontiguousarray(variable.numpy())
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
