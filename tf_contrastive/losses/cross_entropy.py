"""Cross entropy, the supervised baseline of the papers."""

import tensorflow as tf

from tf_contrastive.config import loss as declared
from tf_contrastive.losses import base
from tf_contrastive.losses import labels as label_checks


class CrossEntropy(declared.CrossEntropy, base.ContrastiveLoss):
    """Softmax cross entropy of the logits of a dense head.

    Khosla et al. 2020, sections 1 and 5: the baseline of SupCon. The
    projections are logits [B, V, C]. Labels are int [B]; or float [B, V, C], a
    distribution over the classes for each view, as MixUp and CutMix make them;
    or multi-hot [B, C], which take the sigmoid form, averaged over classes.
    Every view of every image is counted.

    Examples:
      >>> logits = tf.constant([[[2.0, 0.0]], [[0.0, 1.0]]])  # [B, V, C]
      >>> print(f"{CrossEntropy()(logits, labels=[0, 1]):.4f}")
      0.2201

    `label_smoothing` is the fraction of the target that is spread over all
    classes (in the sigmoid form, over yes and no).
    """

    def _anchor_losses(
        self, inputs: base.Inputs
    ) -> tuple[base.Losses, tf.Tensor]:
        projections, labels = inputs.projections, self._checked_labels(inputs)
        views, classes = projections.shape[1:]
        rank = labels.shape.rank
        if rank > 1 and labels.shape[-1] != classes:
            raise ValueError(
                f"labels of {labels.shape[-1]} classes for logits of {classes}:"
                " must be as many"
            )
        if rank == 1:
            target = tf.one_hot(tf.cast(labels, tf.int32), classes)
        else:
            target = tf.cast(labels, tf.float32)
        if rank < 3:
            target = tf.repeat(target[:, tf.newaxis], views, axis=1)
        logits, target = (
            tf.reshape(tf.cast(x, tf.float32), [-1, classes])
            for x in (projections, target)
        )
        smoothing = self.label_smoothing
        if rank == 2:
            target += smoothing * (0.5 - target)
            losses = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(target, logits), axis=-1
            )
        else:
            target += smoothing * (1 / classes - target)
            losses = tf.nn.softmax_cross_entropy_with_logits(target, logits)
        if rank == 1:
            # A class that there is not would have no gradient, unnoticed.
            losses = label_checks.known(losses, labels, classes)
        elif rank == 2:
            losses = label_checks.noticed(losses, labels)
        return losses, tf.ones(tf.shape(logits)[:1], tf.bool)

    def _checked_labels(self, inputs: base.Inputs) -> tf.Tensor:
        labels, shape = inputs.labels, inputs.projections.shape[:2]
        if labels is not None:
            labels = tf.convert_to_tensor(labels)
        if labels is None or labels.shape.rank != 3:
            return super()._checked_labels(inputs)
        if not (
            labels.dtype.is_floating
            and labels.shape[:2].is_compatible_with(shape)
        ):
            raise ValueError(
                f"labels of shape {labels.shape} and type {labels.dtype.name}"
                f" for views of shape {shape}: distributions must be floating"
                " [B, V, C]"
            )
        return labels
