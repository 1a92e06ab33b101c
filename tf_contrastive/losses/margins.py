"""Losses of single positives against single negatives: margins, logistic."""

import tensorflow as tf

from tf_contrastive.config import loss as declared
from tf_contrastive.losses import base
from tf_contrastive.losses.similarity import (
    MASKED,
    Batch,
    Block,
    count,
    masked_sum,
    num_positives,
    scan,
)


class _PositiveAgainstNegatives(base.AnchorLoss):
    """An image's other views, on average, against the views of other images."""

    negatives: str
    mining: str
    negative_reduction: str

    def _anchor_losses_of(self, batch: Batch) -> base.Losses:
        views = batch.num_views

        # Small views have as many positives as there are large views.
        offsets = range(1, views + min(batch.small_views, 1))

        def losses(block: Block) -> tf.Tensor:
            s, negatives = block.similarities, ~block.same_image
            losses = [tf.zeros_like(s[:, 0])]
            counts = [tf.zeros_like(s[:, 0])]
            for offset in offsets:
                view = (block.anchors.views[:, tf.newaxis] + offset) % views
                same_view = block.candidates.views == view
                mask = block.same_image & same_view & block.others
                found = tf.reduce_any(mask, axis=-1)
                positive = masked_sum(s, mask)
                pairs = self._pair_losses(positive, s, negatives)
                losses.append(tf.where(found, pairs, 0.0))
                counts.append(tf.cast(found, tf.float32))
            return tf.add_n(losses) / tf.maximum(tf.add_n(counts), 1.0)

        return self._rows(losses, batch, self.negatives)

    def _pair_losses(
        self, positive: tf.Tensor, s: tf.Tensor, negatives: tf.Tensor
    ) -> tf.Tensor:
        """Compares one positive [R] with the negatives [R, N], [R]."""
        p = positive[:, tf.newaxis]
        if self.mining == "semi_hard":
            closest = tf.reduce_max(
                tf.where(negatives & self._is_semi_hard(p, s), s, MASKED), -1
            )
            has_negative = closest > MASKED
            closest = tf.where(has_negative, closest, positive)
            joined = tf.where(has_negative, self._repel(positive, closest), 0.0)
        else:
            joined = masked_sum(self._repel(p, s), negatives)
            if self.negative_reduction == "mean":
                joined /= tf.maximum(count(negatives), 1.0)
        return self._attract(positive) + joined

    def _attract(self, positive: tf.Tensor) -> tf.Tensor:
        return tf.zeros_like(positive)

    def _repel(self, positive: tf.Tensor, negative: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def _is_semi_hard(
        self, positive: tf.Tensor, negative: tf.Tensor
    ) -> tf.Tensor:
        return negative < positive


class Margin(declared.Margin, _PositiveAgainstNegatives):
    """Margin triplet: a hinge on the difference of two similarities.

    Chen et al. 2020, table 2 (which prints its negative):

        loss_i = mean over negatives n of max(z_i . z_n - z_i . z_p + margin, 0)

    Ignores labels.

    Args:
      negatives: "other_view": of two views, an anchor's negatives are of the
        other one; or "all_views".
      mining: "none", or "semi_hard" (SimCLR, section 5.1): only the most
        similar of the negatives that are less similar than the positive, but
        by less than the margin.
      negative_reduction: "mean" or "sum" over an anchor's negatives.
    """

    def _repel(self, positive: tf.Tensor, negative: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(negative - positive + self.margin)

    def _is_semi_hard(
        self, positive: tf.Tensor, negative: tf.Tensor
    ) -> tf.Tensor:
        within = positive - negative < self.margin
        return (negative < positive) & within


class NTLogistic(declared.NTLogistic, _PositiveAgainstNegatives):
    """NT-Logistic: a binary classification of every pair.

    Chen et al. 2020, table 2 (which prints its negative):

        loss_i = -log sigmoid(z_i . z_p / t)
            - mean over negatives n of log sigmoid(-z_i . z_n / t)

    Options as for `Margin`, but semi-hard negatives are all that are less
    similar than the positive; without any, only the positive's term is left.
    Ignores labels.
    """

    def _attract(self, positive: tf.Tensor) -> tf.Tensor:
        return tf.nn.softplus(-positive)

    def _repel(self, positive: tf.Tensor, negative: tf.Tensor) -> tf.Tensor:
        del positive
        return tf.nn.softplus(negative)


class Triplet(declared.Triplet, base.AnchorLoss):
    """Triplet loss, batch-hard, on squared Euclidean distances.

    Khosla et al. 2020, supplement, section 4 (after Schroff et al. 2015, with
    the hardest pairs of the batch as in Hermans et al. 2017):

        loss_i = max(max_p |z_i - z_p|^2 - min_n |z_i - z_n|^2 + margin, 0)

    Labels as for `SupCon`; an anchor without a positive or a negative is not
    counted. A margin of 2 * temperature makes it the linear part of SupCon
    with one positive and one negative. TensorFlow Addons calls it
    TripletHardLoss (with plain distances by default).
    """

    def _anchor_losses_of(self, batch: Batch) -> base.Losses:
        candidates = batch.candidates.embeddings
        # The scan only finds the hardest pairs. Their distances are computed
        # from differences, which lose no digits.
        norms = tf.reduce_sum(tf.stop_gradient(candidates) ** 2, axis=-1)

        def hardest(block: Block) -> tuple[tf.Tensor, tf.Tensor]:
            distances = norms - 2 * block.similarities
            far = tf.where(block.positives, distances, MASKED)
            near = tf.where(block.negatives, distances, -MASKED)
            return (
                tf.argmax(far, axis=-1, output_type=tf.int32),
                tf.argmin(near, axis=-1, output_type=tf.int32),
            )

        pair = scan(hardest, batch, (tf.int32, tf.int32))
        far, near = (
            tf.reduce_sum(
                (batch.anchors.embeddings - tf.gather(candidates, i)) ** 2, -1
            )
            for i in pair
        )
        return tf.nn.relu(far - near + self.margin)

    def _counted(self, batch: Batch) -> tf.Tensor:
        positives = num_positives(batch)
        itself = tf.cast(batch.anchors.rows >= 0, tf.int32)
        others = tf.size(batch.candidates.image_ids) - itself
        return (positives > 0) & (positives < tf.cast(others, tf.float32))
