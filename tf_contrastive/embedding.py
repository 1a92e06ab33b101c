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
    """Embeds every image with the encoder in inference mode.

    One batch of images is in memory at a time, and one graph serves batches of
    any size.

    Args:
      encoder: images float32 [b, S, S, K] in [0, 1] -> [b, D].
      batches: yields (images, labels int [b]).

    Returns:
      (embeddings float32 [n, D], labels int32 [n], in the order of `batches`).

    Raises:
      UserError: if there is no image.
    """
    encode = None
    embeddings, labels = [], []
    for images, batch_labels in batches:
        if encode is None:
            spec = tf.TensorSpec([None, *images.shape[1:]], tf.float32)
            encode = tf.function(
                lambda x: tf.cast(encoder(x, training=False), tf.float32)
            ).get_concrete_function(spec)
        embeddings.append(encode(images).numpy())
        labels.append(np.asarray(batch_labels, np.int32))
    if not embeddings:
        raise config.UserError(
            "nothing to embed: the split holds no readable image"
        )
    return np.concatenate(embeddings), np.concatenate(labels)


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
        reason = str(error).splitlines()[0]
        raise config.UserError(
            f"cannot write {path} ({reason}): give a file in a folder that can"
            " be written"
        ) from error
