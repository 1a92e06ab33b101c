"""Embeddings of batches of images, and the checksum of what embeds them.

Encoders are anything that is called as `encoder(images, training=False)` and
lists its `variables`: a Keras model, or a loaded export.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf

from tf_contrastive import errors

Batches = Iterable[tuple[tf.Tensor, tf.Tensor]]


def embed(encoder: Callable, batches: Batches) -> tuple[np.ndarray, np.ndarray]:
    """Embeds every image once with the encoder in inference mode.

    One batch of images is in memory at a time. All are encoded in the shape of
    the first one, which a compiler needs: a smaller one is filled up with
    zeros, whose embeddings are left out. Inside of a strategy's scope its
    replicas, of one host, share each batch.

    Args:
      encoder: images float32 [b, S, S, K] in [0, 1] -> [b, D], each image by
        itself; made in the strategy's scope.
      batches: yields (images, labels int [b]).

    Returns:
      (embeddings float32 [n, D], labels int32 [n], in the order of `batches`).

    Raises:
      UserError: if there is no image.
    """
    embedded = list(embed_batches(encoder, batches))
    if not embedded:
        raise errors.UserError(
            "nothing to embed: the split holds no readable image"
        )
    embeddings, labels = zip(*embedded, strict=True)
    return np.concatenate(embeddings), np.concatenate(labels)


def embed_batches(
    encoder: Callable, batches: Batches
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Embeds batch after batch, each when it is asked for.

    Args:
      encoder, batches: see `embed`; there may be no end of batches. The
        strategy is that of the call, wherever they are asked for.

    Returns:
      An iterator of (embeddings float32 [b, D], labels int32 [b]).
    """
    return _embedded(encoder, batches, tf.distribute.get_strategy())


def _embedded(
    encoder: Callable, batches: Batches, strategy: tf.distribute.Strategy
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    encode = embedder(encoder, strategy)
    for images, labels in batches:
        yield encode(images), np.asarray(labels, np.int32)


def embedder(
    encoder: Callable, strategy: tf.distribute.Strategy | None = None
) -> Callable[[tf.Tensor], np.ndarray]:
    """Makes a function of batches of images, of one graph for all of them.

    Args:
      encoder: see `embed`.
      strategy: whose replicas share each batch; None: that of the call.

    Returns:
      images float32 [b, S, S, K], b at least 1 -> embeddings float32 [b, D].
      The first call decides the size in which all are encoded.
    """
    strategy = strategy or tf.distribute.get_strategy()
    encode = _encode_function(encoder, strategy)
    replicas = strategy.num_replicas_in_sync
    rows = 0

    def embed_one(images: tf.Tensor) -> np.ndarray:
        nonlocal rows
        rows = rows or -(-len(images) // replicas)
        parts = [
            _encode_padded(
                encode, strategy, images[start : start + rows * replicas], rows
            )
            for start in range(0, len(images), rows * replicas)
        ]
        return np.concatenate(parts)

    return embed_one


def _encode_function(
    encoder: Callable, strategy: tf.distribute.Strategy
) -> Callable:
    """Makes images, a part per replica -> embeddings, likewise."""

    def of_replica(images):
        return tf.cast(encoder(images, training=False), tf.float32)

    return tf.function(lambda parts: strategy.run(of_replica, args=(parts,)))


def _encode_padded(
    encode: Callable,
    strategy: tf.distribute.Strategy,
    images: tf.Tensor,
    rows: int,
) -> np.ndarray:
    """Embeds images [n, S, S, K] in parts of exactly `rows`: [n, D]."""
    count = len(images)
    missing = rows * strategy.num_replicas_in_sync - count
    padded = tf.pad(images, [[0, missing], [0, 0], [0, 0], [0, 0]])

    def part(context):
        start = context.replica_id_in_sync_group * rows
        return padded[start : start + rows]

    parts = strategy.experimental_distribute_values_from_function(part)
    made = strategy.experimental_local_results(encode(parts))
    return np.concatenate([part.numpy() for part in made])[:count]


def checksum(model: tf.Module) -> str:
    """Returns the SHA-256 of all weights and moving statistics, in order.

    Equal for a run's encoder and its export: only values and shapes count, not
    names.
    """
    digest = hashlib.sha256()
    for variable in model.variables:
        value = np.ascontiguousarray(variable.numpy())
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
