"""Classifiers on embeddings: neighbours, prototypes, softmax regression.

They take and return NumPy arrays. NaN, negative labels and shapes that do not
match raise `UserError`. Scores are [n, C]; column c is class `classes[c]`, the
sorted ids that the training labels contain.
"""

from tf_contrastive.classifiers.embedding_arrays import (
    Scores,
    check_embeddings,
    check_labels,
    check_train_and_test,
    normalize,
)
from tf_contrastive.classifiers.neighbors import (
    knn,
    nearest_neighbors,
    prototype,
)
from tf_contrastive.classifiers.softmax import (
    Batches,
    Linear,
    TrainingObserver,
    train_linear,
)

__all__ = [
    "Batches",
    "Linear",
    "Scores",
    "TrainingObserver",
    "check_embeddings",
    "check_labels",
    "check_train_and_test",
    "knn",
    "nearest_neighbors",
    "normalize",
    "prototype",
    "train_linear",
]
