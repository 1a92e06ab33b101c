"""Classifiers behind an exported encoder.

Each maps features [N, D] to probabilities [N, C] in TensorFlow operations;
column c is class id c. They agree with `classifiers.prototype` and
`classifiers.knn` on the same embeddings, and with a run's own probe. Their
attributes are `num_classes` and `description`.
"""

import numpy as np
import tensorflow as tf

from tf_contrastive import checkpoints, classifiers, errors, heads
from tf_contrastive.config.export import Exporting


class ProbeHead(tf.Module):
    """Softmax of a linear layer.

    Args:
      kernel: float [D, C].
      bias: float [C].
    """

    description = "a linear probe on the embedding"

    def __init__(self, kernel: np.ndarray, bias: np.ndarray) -> None:
        super().__init__()
        self._kernel = tf.Variable(kernel, dtype=tf.float32)
        self._bias = tf.Variable(bias, dtype=tf.float32)
        self.num_classes = int(self._bias.shape[0])

    @classmethod
    def from_run(cls, run: checkpoints.Run, features: int) -> "ProbeHead":
        """Returns the linear probe that was trained during a run.

        Args:
          run: of `checkpoints.load_run`.
          features: D of its encoder.

        Raises:
          UserError: if the run trained none.
        """
        classes = run.metadata.get("num_classes")
        if not (run.config.probe.probe and classes):
            raise errors.UserError(
                "head=probe: the run trained no probe (it had probe=False, or"
                " data without labels): use head=prototype or head=knn with"
                " labelled data, or head=none"
            )
        probe = heads.LinearProbe(classes)
        probe.build([None, features])
        checkpoints.restore_part(run, probe=probe)
        return cls(*(variable.numpy() for variable in probe.variables))

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """Returns probabilities [N, C] of features [N, D]."""
        return tf.nn.softmax(features @ self._kernel + self._bias)


class PrototypeHead(tf.Module):
    """Softmax of the cosines to the classes' prototypes over a temperature.

    A prototype is the mean of a class's l2-normalised embeddings, normalised
    again. A class without examples has probability 0.

    Args:
      embeddings: float [m, D], of the training images.
      labels: int [m], from 0.
      num_classes: C; None: one more than the largest label.
      temperature: divides the cosines; it does not affect which class is best.

    Raises:
      UserError: for NaN, negative labels, or shapes that do not fit.
    """

    def __init__(
        self,
        embeddings: np.ndarray,
        labels: np.ndarray,
        num_classes: int | None = None,
        temperature: float = Exporting.head_temperature,
    ) -> None:
        super().__init__()
        rows, labels, self.num_classes = _validate(
            embeddings, labels, num_classes
        )
        sums = np.zeros([self.num_classes, rows.shape[1]], np.float32)
        np.add.at(sums, labels, classifiers.normalize(rows))
        counts = np.bincount(labels, minlength=self.num_classes)
        means = sums / np.maximum(counts, 1)[:, np.newaxis]
        self._prototypes = tf.Variable(
            classifiers.normalize(means), trainable=False
        )
        self._present = tf.constant(counts > 0)
        self._temperature = temperature
        self.description = (
            "the softmax of the embedding's cosines to the classes' mean"
            f" embeddings, with a temperature of {temperature:g}"
        )

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """Returns probabilities [N, C] of features [N, D]."""
        cosines = tf.matmul(
            _normalize(features), self._prototypes, transpose_b=True
        )
        logits = tf.where(self._present, cosines / self._temperature, -np.inf)
        return tf.nn.softmax(logits)


class NeighborsHead(tf.Module):
    """Fractions of the cosine-weighted votes of the k nearest training images.

    Feeney and Hughes 2023 (SINCERE), Appendix M; see `classifiers.knn`.

    Args:
      embeddings: float [m, D], of the training images; all are exported.
      labels: int [m], from 0.
      num_classes: C; None: one more than the largest label.
      k: neighbours that vote; at most m are used.

    Raises:
      UserError: for k < 1, NaN, negative labels, or shapes that do not fit.
    """

    def __init__(
        self,
        embeddings: np.ndarray,
        labels: np.ndarray,
        num_classes: int | None = None,
        k: int = Exporting.head_knn_k,
    ) -> None:
        super().__init__()
        if k < 1:
            raise errors.UserError(f"k={k}: use at least 1 neighbour")
        rows, labels, self.num_classes = _validate(
            embeddings, labels, num_classes
        )
        self._bank = tf.Variable(classifiers.normalize(rows), trainable=False)
        self._labels = tf.Variable(labels, dtype=tf.int32, trainable=False)
        self._k = min(k, len(rows))
        self.description = (
            f"the cosine-weighted vote of the {self._k} nearest of"
            f" {len(rows):,} training images, which the model holds"
        )

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """Returns fractions of the votes [N, C] of features [N, D]."""
        cosines = tf.matmul(_normalize(features), self._bank, transpose_b=True)
        nearest = tf.math.top_k(cosines, self._k)
        classes = tf.one_hot(
            tf.gather(self._labels, nearest.indices), self.num_classes
        )
        votes = tf.einsum("nk,nkc->nc", nearest.values, classes)
        # A class without neighbours never wins against negative votes.
        votes = tf.where(tf.reduce_any(classes > 0, 1), votes, -np.inf)
        best = tf.one_hot(tf.argmax(votes, 1), self.num_classes)
        positive = tf.maximum(votes, 0.0)
        total = tf.reduce_sum(positive, 1, keepdims=True)
        return tf.where(total > 0, tf.math.divide_no_nan(positive, total), best)


def _validate(
    embeddings: np.ndarray, labels: np.ndarray, num_classes: int | None
) -> tuple[np.ndarray, np.ndarray, int]:
    rows = classifiers.check_embeddings("embeddings", embeddings)
    labels = classifiers.check_labels("labels", labels, rows)
    classes = num_classes or int(labels.max()) + 1
    if labels.max() >= classes:
        raise errors.UserError(
            f"labels hold {labels.max()}: pass labels below num_classes="
            f"{classes}"
        )
    return rows, labels, classes


def _normalize(features: tf.Tensor) -> tf.Tensor:
    """Returns rows of length 1, as `classifiers.normalize` does."""
    largest = tf.reduce_max(tf.abs(features), 1, keepdims=True)
    return tf.math.l2_normalize(
        tf.math.divide_no_nan(features, largest), 1, epsilon=1e-24
    )
