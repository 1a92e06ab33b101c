"""Cross entropy, the supervised baseline of the papers."""

import tensorflow as tf

from tf_contrastive.losses import base


class CrossEntropy(base.ContrastiveLoss):
    """Softmax cross entropy of the logits of a dense head.

    Khosla et al. 2020, sections 1 and 5: what SupCon is compared with. The
    projections are logits [B, V, C]. Labels: int [B]; or float [B, V, C], a
    distribution over the classes for each view, as MixUp and CutMix make them;
    or multi-hot [B, C], which take the sigmoid form, averaged over classes.
    Every view of every image is counted.

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
        """Returns logits and targets [A, C], and the loss they take."""
        logits = base.check_projections(projections)
        labels = self._checked_labels(labels, logits)
        views, classes = logits.shape[1:]
        rank = labels.shape.rank
        if rank > 1 and labels.shape[-1] != classes:
            raise ValueError(
                f"labels of {labels.shape[-1]} classes for logits of {classes}:"
                " must be as many"
            )
        if rank == 1:
            target = tf.one_hot(tf.cast(labels, tf.int32), classes)
        elif rank == 2:
            target = tf.cast(labels > 0, tf.float32)
        else:
            target = tf.cast(labels, tf.float32)
        if rank < 3:
            target = tf.repeat(target[:, tf.newaxis], views, axis=1)
        logits, target = (
            tf.reshape(tf.cast(x, tf.float32), [-1, classes])
            for x in (logits, target)
        )
        return logits, target, _sigmoid if rank == 2 else _softmax

    def _checked_labels(self, labels, projections):
        if labels is not None:
            labels = tf.convert_to_tensor(labels)
        if labels is None or labels.shape.rank != 3:
            return super()._checked_labels(labels, projections)
        shape = projections.shape[:2]
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

    def _terms(self, batch):
        logits, target, form = batch
        return [(1.0, form(target, logits, self._smoothing))]

    def _counted(self, batch):
        return tf.ones(tf.shape(batch[0])[:1], tf.bool)


def _softmax(target, logits, smoothing):
    """Against distributions over the classes, [A]."""
    target += smoothing * (1 / logits.shape[-1] - target)
    return tf.nn.softmax_cross_entropy_with_logits(target, logits)


def _sigmoid(target, logits, smoothing):
    """Against a yes or no for each class, their mean, [A]."""
    target += smoothing * (0.5 - target)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(target, logits)
    return tf.reduce_mean(losses, axis=-1)
