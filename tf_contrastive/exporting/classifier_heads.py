"""Classifiers behind an exported encoder.

Each maps features [N, D] to probabilities [N, C] in TensorFlow operations, in
agreement with `classifiers.prototype` and with a run's own probe. Their
attributes are `num_classes` and `description`.
"""

import numpy as np
import tensorflow as tf

from tf_contrastive import checkpoints, classifiers, heads
from tf_contrastive.base import errors


class ProbeHead(tf.Module):
    """Softmax of a linear layer of kernel [D, C] and bias [C].

    `normalize`: whether the layer takes l2-normalized features.
    """

    def __init__(
        self,
        kernel: np.ndarray,
        bias: np.ndarray,
        normalize: bool = False,
        description: str = "a linear probe on the embedding",
    ) -> None:
        super().__init__()
        self._normalize = normalize
        self.kernel = tf.Variable(kernel, dtype=tf.float32)
        self.bias = tf.Variable(bias, dtype=tf.float32)
        self.num_classes = int(self.bias.shape[0])
        self.description = description

    @classmethod
    def from_run(cls, run: checkpoints.Run, features: int) -> "ProbeHead":
        """Returns the linear probe of a run whose encoder has D features."""
        classes = run.metadata.get("num_classes")
        if not (run.config.probe.probe and classes):
            raise errors.UserError(
                f"{errors.arg('head', 'probe')}: the run trained no probe (it"
                f" had {errors.arg('probe', 'False')}, or data without labels):"
                f" use {errors.arg('head', 'none')}"
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
        return tf.nn.softmax(features @ self.kernel + self.bias)


class PrototypeHead(ProbeHead):
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
        temperature: float = 0.1,
    ) -> None:
        rows = classifiers.check_embeddings("embeddings", embeddings)
        labels = classifiers.check_labels("labels", labels, rows)
        num_classes = num_classes or int(labels.max()) + 1
        if labels.max() >= num_classes:
            raise errors.UserError(
                f"labels hold {labels.max()}: pass labels below num_classes="
                f"{num_classes}"
            )
        sums = np.zeros([num_classes, rows.shape[1]], np.float32)
        np.add.at(sums, labels, classifiers.normalize(rows))
        counts = np.bincount(labels, minlength=num_classes)
        means = sums / np.maximum(counts, 1)[:, np.newaxis]
        super().__init__(
            classifiers.normalize(means).T / temperature,
            # Finite, as a server checks: the probability is 0.
            np.where(counts > 0, 0.0, -1e9),
            normalize=True,
            description="the softmax of the embedding's cosines to the classes'"
            f" mean embeddings, with a temperature of {temperature:g}",
        )
