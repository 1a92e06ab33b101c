"""Arrays that classifiers take: checked, or scaled to unit length."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import errors

# A row shorter than this has no direction; it gets cosine 0 to everything.
_SMALLEST_NORM = 1e-12


class Scores(NamedTuple):
    """What a classifier says of each test row: scores [n, C], classes [C]."""

    scores: np.ndarray
    classes: np.ndarray

    def top(self, k: int) -> np.ndarray:
        """Returns the k best classes of each row, best first: int [n, k].

        Equal scores go to the smaller class id.
        """
        k = min(k, len(self.classes))
        # Ties: `top_k` prefers the lower index, and `classes` is sorted.
        return self.classes[tf.math.top_k(self.scores, k).indices.numpy()]


def check_embeddings(name: str, embeddings: np.ndarray) -> np.ndarray:
    """Returns `embeddings` as float32 [n, D], or says what is wrong."""
    array = np.asarray(embeddings)
    if array.ndim != 2 or not array.size:
        raise errors.UserError(
            f"{name} has shape {list(array.shape)}: give [examples, features],"
            " at least one of each"
        )
    array = np.ascontiguousarray(array, dtype=np.float32)
    # A row's extremes tell of NaN and infinity without a mask of all entries.
    finite = np.isfinite(array.max(axis=1)) & np.isfinite(array.min(axis=1))
    bad = np.flatnonzero(~finite)
    if bad.size:
        raise errors.UserError(
            f"{name}: {bad.size} of {len(array)} rows hold NaN or infinity"
            f" (first: row {bad[0]}): look for a diverged encoder"
        )
    return array


def check_labels(
    name: str, labels: np.ndarray, embeddings: np.ndarray
) -> np.ndarray:
    """Returns `labels` as int64 [n], or says what is wrong."""
    array = np.asarray(labels)
    if array.shape != (len(embeddings),):
        raise errors.UserError(
            f"{name} has shape {list(array.shape)}: give one label for each of"
            f" the {len(embeddings)} embeddings"
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise errors.UserError(
            f"{name} are {array.dtype}: give integer class ids from 0"
        )
    if array.min() < 0:
        raise errors.UserError(
            f"{name} hold {array.min()}: class ids start at 0 (-1 stands for"
            " no label); give a labelled dataset"
        )
    return array.astype(np.int64)


def check(train_embeddings, train_labels, test_embeddings):
    """Returns the three arrays, checked; labels as (classes, index into it)."""
    train = check_embeddings("train_embeddings", train_embeddings)
    test = check_embeddings("test_embeddings", test_embeddings)
    if train.shape[1] != test.shape[1]:
        raise errors.UserError(
            f"train_embeddings have {train.shape[1]} features and"
            f" test_embeddings {test.shape[1]}: embed both with one encoder"
        )
    labels = check_labels("train_labels", train_labels, train)
    classes, index = np.unique(labels, return_inverse=True)
    return train, classes, index, test


def normalize(embeddings: np.ndarray) -> np.ndarray:
    """Returns the rows of float [n, D] at length 1 (zero rows stay zero)."""
    # Dividing by the largest entry first keeps squares inside float32. One
    # copy is made, and no other array of that size.
    largest = np.maximum(embeddings.max(axis=1), -embeddings.min(axis=1))
    scale = np.maximum(largest, np.finfo(np.float32).tiny)
    rows = (embeddings / scale[:, np.newaxis]).astype(np.float32, copy=False)
    norms = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    rows /= np.maximum(norms, _SMALLEST_NORM)[:, np.newaxis]
    rows[largest <= _SMALLEST_NORM] = 0.0
    return rows
