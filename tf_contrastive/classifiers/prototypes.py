"""Classification by the cosine to class prototypes."""

import numpy as np

from tf_contrastive.classifiers.embedding_arrays import (
    Scores,
    check_train_and_test,
    normalize,
)


def prototype(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
) -> Scores:
    """Scores each class by the cosine to its prototype.

    A prototype is the mean of the class's l2-normalised embeddings, normalised
    again.

    Args:
      train_embeddings: float [m, D].
      train_labels: int [m], from 0.
      test_embeddings: float [n, D].

    Returns:
      Scores, cosines in [-1, 1].

    Raises:
      UserError: for NaN, negative labels, or shapes that do not match.
    """
    train, labels, test = check_train_and_test(
        train_embeddings, train_labels, test_embeddings
    )
    classes, index = np.unique(labels, return_inverse=True)
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(len(classes)))
    sums = np.add.reduceat(normalize(train)[order], starts, axis=0)
    means = sums / np.bincount(index)[:, np.newaxis]
    return Scores(normalize(test) @ normalize(means).T, classes)
