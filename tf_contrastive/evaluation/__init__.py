"""Evaluation of encoders that stay as they are.

`knn`, `prototype` and `linear_probe` take the same four arrays: embeddings and
labels of a training and of a test split. `protocols.run` goes from an encoder
and two splits to a list of results that name their protocol, its version and
all its knobs.
"""

from tf_contrastive.evaluation import protocols
from tf_contrastive.evaluation.arrays import knn, linear_probe, prototype

__all__ = ["knn", "linear_probe", "protocols", "prototype"]
