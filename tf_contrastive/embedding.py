"""Embeddings of a dataset, and the file they go into.

Layer 6. Encoders are anything that is called as `encoder(images,
training=False)` and lists its `variables`: a Keras model, or a loaded export.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf_contrastive import config

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
        raise config.UserError(
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
    encode = _encode_function(encoder, strategy)
    replicas = strategy.num_replicas_in_sync
    rows = 0
    for images, labels in batches:
        rows = rows or -(-len(images) // replicas)
        parts = [
            _encode_padded(
                encode, strategy, images[start : start + rows * replicas], rows
            )
            for start in range(0, len(images), rows * replicas)
        ]
        yield np.concatenate(parts), np.asarray(labels, np.int32)


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


def write(
    path: str,
    embeddings: np.ndarray,
    labels: np.ndarray | None = None,
    label_names: Sequence[str] = (),
) -> None:
    """Writes an npz file with `embeddings`, and `labels`, `label_names` if any.

    The file appears whole or not at all, on any filesystem that `tf.io.gfile`
    writes.

    Args:
      path: file to write; an existing one is replaced.
      embeddings: float32 [n, D].
      labels: int [n], or None.
      label_names: name of class 0, 1, ...

    Raises:
      UserError: if it cannot be written.
    """
    arrays = {"embeddings": embeddings}
    if labels is not None:
        arrays["labels"] = labels
    if label_names:
        arrays["label_names"] = np.array([str(name) for name in label_names])
    with _writing(path) as partial:
        # An npz is written with seeks, which object stores do not have.
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, "embeddings.npz")
            np.savez(local, **arrays)
            tf.io.gfile.copy(local, partial, overwrite=True)
        tf.io.gfile.rename(partial, path, overwrite=True)


def check_writable(path: str) -> None:
    """Raises `UserError` if `write` could not write to `path`."""
    with _writing(path) as partial:
        with tf.io.gfile.GFile(partial, "w") as file:
            file.write("")
        tf.io.gfile.remove(partial)


@contextlib.contextmanager
def _writing(path: str) -> Iterator[str]:
    """Makes the folder; yields the name to write under until all is there."""
    try:
        if tf.io.gfile.isdir(path):
            raise IsADirectoryError("it is a folder")
        tf.io.gfile.makedirs(os.path.dirname(path) or ".")
        yield f"{path}.partial"
    except (OSError, tf.errors.OpError) as error:
        raise config.cannot_write(
            path, error, "give a file in a folder that can be written"
        ) from error
