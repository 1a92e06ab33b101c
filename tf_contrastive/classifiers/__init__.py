"""Classifiers on embeddings: neighbours, prototypes, softmax regression.

Layer 3. They take NumPy arrays, return NumPy arrays, and depend on nothing but
their arguments. Scores are [n, C]; column c stands for class `classes[c]`, the
sorted ids that the training labels hold.
"""

from tf_contrastive.classifiers.arrays import (
    Scores,
    check_embeddings,
    check_labels,
    normalize,
)
from tf_contrastive.classifiers.neighbors import knn, nearest_neighbors
from tf_contrastive.classifiers.prototypes import prototype
from tf_contrastive.classifiers.softmax import (
    Batches,
    Follower,
    Linear,
    linear,
    train_linear,
)

__all__ = [
    "Batches",
    "Follower",
    "Linear",
    "Scores",
    "check_embeddings",
    "check_labels",
    "knn",
    "linear",
    "nearest_neighbors",
    "normalize",
    "prototype",
    "train_linear",
]
