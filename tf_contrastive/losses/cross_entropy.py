"""Cross entropy, the supervised baseline of the papers."""

import tensorflow as tf

from tf_contrastive.losses import base


class CrossEntropy(base.ContrastiveLoss):
    """Softmax cross entropy of the logits of a dense head.

    Khosla et al. 2020, sections 1 and 5: what SupCon is compared with. The
    projections are logits [B, V, C]. Labels: int [B], or multi-hot [B, C],
    which take the sigmoid form, averaged over classes. Every view of every
    image is counted.

    Args:
      label_smoothing: share of the target that is spread over all classes (in
        the sigmoid form, over yes and no).
      **options: those of `ContrastiveLoss`, without temperature.
    """

    needs_labels = True

    def __init__(self, *, label_smoothing: float, **options) -> None:
        super().__init__(**options)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"label_smoothing={label_smoothing}: must be in [0, 1)"
            )
        self._smoothing = label_smoothing

    def _gather(self, projections, labels):
        logits = base.check_projections(projections)
        labels = self._checked_labels(labels, logits)
        views, classes = logits.shape[1:]
        if labels.shape.rank == 2 and labels.shape[1] != classes:
            raise ValueError(
                f"labels of {labels.shape[1]} classes for logits of {classes}:"
                " must be as many"
            )
        logits = tf.reshape(tf.cast(logits, tf.float32), [-1, classes])
        return logits, tf.repeat(labels, views, axis=0)

    def _terms(self, batch):
        logits, labels = batch
        classes = logits.shape[-1]
        if labels.shape.rank == 2:
            target = tf.cast(labels > 0, tf.float32)
            target += self._smoothing * (0.5 - target)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(target, logits)
            return [(1.0, tf.reduce_mean(losses, axis=-1))]
        target = tf.one_hot(tf.cast(labels, tf.int32), classes)
        target += self._smoothing * (1 / classes - target)
        return [(1.0, tf.nn.softmax_cross_entropy_with_logits(target, logits))]

    def _counted(self, batch):
        return tf.ones(tf.shape(batch[0])[:1], tf.bool)
