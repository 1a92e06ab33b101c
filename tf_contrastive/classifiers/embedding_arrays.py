"""Validation and l2 normalization of embeddings; scores of classes."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors


class Scores(NamedTuple):
    """Scores [n, C] of test rows for the classes [C], sorted ids."""

    scores: np.ndarray
    classes: np.ndarray

    def top(self, k: int) -> np.ndarray:
        """Returns the k best classes of each row, best first: int [n, k].

        Of equal scores the smaller class id comes first.
        """
        k = min(k, len(self.classes))
        # `top_k` prefers the lower index, and `classes` is sorted.
        return self.classes[tf.math.top_k(self.scores, k).indices.numpy()]


def check_embeddings(
    name: str, embeddings: np.ndarray, features: int | None = None
) -> np.ndarray:
    """Returns `embeddings` as float32 [n, D]; errors call them `name`.

    If they must match the training embeddings, `features` is D of these.
    """
    array = np.asarray(embeddings)
    if array.ndim != 2 or not array.size:
        raise errors.UserError(
            f"{name} has shape {list(array.shape)}: pass [examples, features],"
            " at least one of each"
        )
    array = np.ascontiguousarray(array, dtype=np.float32)
    # A row's extremes reveal NaN and infinity without a mask of all entries.
    finite = np.isfinite(array.max(axis=1)) & np.isfinite(array.min(axis=1))
    bad = np.flatnonzero(~finite)
    if bad.size:
        raise errors.UserError(
            f"{name}: {bad.size} of {len(array)} rows hold NaN or infinity"
            f" (first: row {bad[0]}): check whether the encoder diverged"
        )
    if features not in (None, array.shape[1]):
        raise errors.UserError(
            f"train_embeddings have {features} features and {name}"
            f" {array.shape[1]}: embed both with one encoder"
        )
    return array


def check_labels(
    name: str, labels: np.ndarray, embeddings: np.ndarray
) -> np.ndarray:
    """Returns `labels` as int64 [n], one for each row of `embeddings`."""
    array = np.asarray(labels)
    count = len(np.atleast_1d(embeddings))
    if array.shape != (count,):
        raise errors.UserError(
            f"{name} has shape {list(array.shape)}: pass one label for each of"
            f" the {count} embeddings"
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise errors.UserError(
            f"{name} are {array.dtype}: pass integer class ids from 0"
        )
    if np.any(array < 0):
        raise errors.UserError(
            f"{name} hold {array.min()}: class ids start at 0 (-1 means no"
            " label); use a labelled dataset"
        )
    return array.astype(np.int64)


def check_train_and_test(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns float32 [m, D], int64 [m] and float32 [n, D]."""
    train = check_embeddings("train_embeddings", train_embeddings)
    labels = check_labels("train_labels", train_labels, train)
    test = check_embeddings("test_embeddings", test_embeddings, train.shape[1])
    return train, labels, test


def normalize(embeddings: np.ndarray) -> np.ndarray:
    """Returns the rows of float [n, D] with length 1; zero rows stay zero."""
    # Dividing by the largest entry first keeps squares in float32's range. One
    # copy is made, and no other array of that size.
    tiny = np.finfo(np.float32).tiny
    largest = np.maximum(embeddings.max(axis=1), -embeddings.min(axis=1))
    scale = np.maximum(largest, tiny)
    rows = (embeddings / scale[:, np.newaxis]).astype(np.float32, copy=False)
    norms = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    rows /= np.maximum(norms, tiny)[:, np.newaxis]
    return rows
