"""Classifiers behind an exported encoder.

Each maps features [N, D] to probabilities [N, C] in TensorFlow operations, in
agreement with `classifiers.prototype` and with a run's own probe. Their
attributes are `num_classes` and `description`.
"""

import numpy as np
import tensorflow as tf

from tf_contrastive import checkpoints, classifiers, heads
from tf_contrastive.base import errors
from tf_contrastive.config.export import PROTOTYPE_TEMPERATURE
from tf_contrastive.losses import similarity


class ProbeHead(tf.Module):
    """Softmax of a linear layer of kernel [D, C] and bias [C].

    `normalize`: whether the layer takes l2-normalized features.
    """

    description = "a linear probe on the embedding"

    def __init__(
        self, kernel: np.ndarray, bias: np.ndarray, normalize: bool = False
    ) -> None:
        super().__init__()
        self._normalize = normalize
        self._kernel = tf.Variable(kernel, dtype=tf.float32)
        self._bias = tf.Variable(bias, dtype=tf.float32)
        self.num_classes = int(self._bias.shape[0])

    @classmethod
    def from_run(cls, run: checkpoints.Run, features: int) -> "ProbeHead":
        """Returns the linear probe of a run whose encoder has D features."""
        classes = run.metadata.get("num_classes")
        if not (run.config.probe.probe and classes):
            raise errors.UserError(
                f"{errors.arg('head', 'probe')}: the run trained no probe (it"
                f" had {errors.arg('probe', 'False')}, or data without labels):"
                f" use {errors.arg('head', 'prototype')} with labelled data, or"
                f" {errors.arg('head', 'none')}"
            )
        probe = heads.LinearProbe(classes)
        probe.build([None, features])
        checkpoints.restore_part(run, probe=probe)
        return cls(
            probe.kernel.numpy(),
            probe.bias.numpy(),
            normalize=run.config.setup.l2_normalize_features,
        )

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """Returns probabilities [N, C] of features [N, D]."""
        if self._normalize:
            features = heads.unit(features)
        return tf.nn.softmax(features @ self._kernel + self._bias)


class PrototypeHead(tf.Module):
    """Softmax of the cosines to the classes' prototypes over a temperature.

    A prototype is the mean of a class's l2-normalised embeddings, normalised
    again. A class without examples has probability 0.

    Args:
      embeddings: float [m, D], of the training images.
      labels: int [m], from 0.
      num_classes: C; None: one more than the largest label.
      temperature: divides the cosines.
    """

    def __init__(
        self,
        embeddings: np.ndarray,
        labels: np.ndarray,
        num_classes: int | None = None,
        temperature: float = PROTOTYPE_TEMPERATURE,
    ) -> None:
        super().__init__()
        rows = classifiers.check_embeddings("embeddings", embeddings)
        labels = classifiers.check_labels("labels", labels, rows)
        self.num_classes = num_classes or int(labels.max()) + 1
        if labels.max() >= self.num_classes:
            raise errors.UserError(
                f"labels hold {labels.max()}: pass labels below num_classes="
                f"{self.num_classes}"
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
        unit = similarity.l2_normalize(features)
        cosines = tf.matmul(unit, self._prototypes, transpose_b=True)
        logits = tf.where(self._present, cosines / self._temperature, -np.inf)
        return tf.nn.softmax(logits)
