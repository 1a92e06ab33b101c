"""Losses of single positives against single negatives: margins, logistic."""

import tensorflow as tf

from tf_contrastive.config.loss import MININGS, NEGATIVES, REDUCTIONS
from tf_contrastive.losses import base, similarity
from tf_contrastive.losses.similarity import MASKED, Block, count, masked_sum


class _PositiveAgainstNegatives(base.ContrastiveLoss):
    """An image's other views against the views of other images, one by one.

    With more than two views, the mean over the positives.

    Args:
      negatives: "other_view": of two views, an anchor's negatives are of the
        other one; or "all_views".
      mining: "none", or "semi_hard" (SimCLR, section 5.1): of the negatives
        less similar than the positive, and within the margin if there is one,
        the most similar alone.
      negative_reduction: "mean" or "sum" over an anchor's negatives.
      **options: those of `ContrastiveLoss`.
    """

    def __init__(
        self, *, negatives: str, mining: str, negative_reduction: str, **options
    ) -> None:
        super().__init__(**options)
        base.check_choice("negatives", negatives, NEGATIVES)
        base.check_choice("mining", mining, MININGS)
        base.check_choice("negative_reduction", negative_reduction, REDUCTIONS)
        self._other_view = negatives == "other_view"
        self._semi_hard = mining == "semi_hard"
        self._mean = negative_reduction == "mean"

    def _terms(self, batch):
        def of_rows(block):
            return self._of_rows(block, batch.num_views)

        if self._other_view:
            rows = base.against_other_view(of_rows, batch, self.block_size)
        else:
            rows = similarity.Rows(
                of_rows,
                batch.anchors,
                batch.candidates,
                block_size=self.block_size,
            )
        return [(1.0, rows)]

    def _of_rows(self, block: Block, views: int) -> tf.Tensor:
        s, negatives = block.similarities, ~block.same_image
        losses = [tf.zeros_like(s[:, 0])]
        for offset in range(1, views):
            view = (block.anchors.views[:, tf.newaxis] + offset) % views
            is_positive = block.same_image & (block.candidates.views == view)
            positive = masked_sum(s, is_positive)
            losses.append(self._of_positive(positive, s, negatives))
        return tf.add_n(losses) / max(views - 1, 1)

    def _of_positive(self, positive, s, negatives) -> tf.Tensor:
        """The loss of one positive [R] and the negatives, [R]."""
        p = positive[:, tf.newaxis]
        if self._semi_hard:
            closest = tf.reduce_max(
                tf.where(negatives & self._is_semi_hard(p, s), s, MASKED), -1
            )
            found = closest > MASKED
            closest = tf.where(found, closest, positive)
            joined = tf.where(found, self._repel(positive, closest), 0.0)
        else:
            joined = masked_sum(self._repel(p, s), negatives)
            if self._mean:
                joined /= tf.maximum(count(negatives), 1.0)
        return self._attract(positive) + joined

    def _attract(self, positive) -> tf.Tensor:
        """What a positive costs by itself."""
        return tf.zeros_like(positive)

    def _repel(self, positive, negative) -> tf.Tensor:
        """What a negative costs."""
        raise TypeError(f"{type(self).__name__} defines no _repel")

    def _is_semi_hard(self, positive, negative) -> tf.Tensor:
        return negative < positive


class Margin(_PositiveAgainstNegatives):
    """Margin triplet: a hinge on the difference of two similarities.

    Chen et al. 2020, table 2 (its negative is printed there):

        loss_i = mean over negatives n of max(z_i . z_n - z_i . z_p + margin, 0)

    Labels are ignored. Options are those of `NTLogistic`, without temperature.

    Args:
      margin: at least 0.
      **options: `negatives`, `mining`, `negative_reduction`, and those of
        `ContrastiveLoss`.
    """

    def __init__(self, *, margin: float, **options) -> None:
        super().__init__(**options)
        base.check_at_least("margin", margin, 0.0)
        self._margin = margin

    def _repel(self, positive, negative):
        return tf.nn.relu(negative - positive + self._margin)

    def _is_semi_hard(self, positive, negative):
        within = positive - negative < self._margin
        return (negative < positive) & within


class NTLogistic(_PositiveAgainstNegatives):
    """NT-Logistic: every pair a classification of its own.

    Chen et al. 2020, table 2 (its negative is printed there):

        loss_i = -log sigmoid(z_i . z_p / t)
            - mean over negatives n of log sigmoid(-z_i . z_n / t)

    Labels are ignored. With `mining="semi_hard"` an anchor whose positive is
    the least similar keeps the positive's term alone.

    Args:
      **options: `negatives`, `mining`, `negative_reduction`, and those of
        `ContrastiveLoss`.
    """

    def _attract(self, positive):
        return tf.nn.softplus(-positive / self.temperature)

    def _repel(self, positive, negative):
        del positive
        return tf.nn.softplus(negative / self.temperature)


class Triplet(base.ContrastiveLoss):
    """Triplet loss, batch-hard, on squared Euclidean distances.

    Khosla et al. 2020, supplement, section 4 (after Schroff et al. 2015, with
    the hardest pairs of the batch as in Hermans et al. 2017):

        loss_i = max(max_p |z_i - z_p|^2 - min_n |z_i - z_n|^2 + margin, 0)

    Labels as for `SupCon`; an anchor without a positive or a negative leaves
    the mean. TensorFlow Addons calls it TripletHardLoss (with plain distances
    by default).

    Args:
      margin: at least 0; 2 * temperature makes it the linear part of SupCon
        with one positive and one negative.
      **options: those of `ContrastiveLoss`.
    """

    needs_labels = True

    def __init__(self, *, margin: float, **options) -> None:
        super().__init__(**options)
        base.check_at_least("margin", margin, 0.0)
        self._margin = margin

    def _terms(self, batch):
        candidates = batch.candidates.embeddings
        # Only which pairs are hardest is found by walking: their distances
        # then come from differences, which lose no digits.
        norms = tf.reduce_sum(tf.stop_gradient(candidates) ** 2, axis=-1)

        def hardest(block):
            distances = norms - 2 * block.similarities
            far = tf.where(block.positives, distances, MASKED)
            near = tf.where(block.negatives, distances, -MASKED)
            return (
                tf.argmax(far, axis=-1, output_type=tf.int32),
                tf.argmin(near, axis=-1, output_type=tf.int32),
            )

        pair = similarity.scan(
            hardest,
            batch.anchors,
            batch.candidates,
            outputs=(tf.int32, tf.int32),
            block_size=self.block_size,
        )
        far, near = (
            tf.reduce_sum(
                (batch.anchors.embeddings - tf.gather(candidates, i)) ** 2, -1
            )
            for i in pair
        )
        return [(1.0, tf.nn.relu(far - near + self._margin))]

    def _counted(self, batch):
        positives = similarity.num_positives(batch)
        others = tf.size(batch.candidates.images) - 1
        return (positives > 0) & (positives < tf.cast(others, tf.float32))
