"""SimCLR's loss, its decoupled form, and N-pairs."""

import tensorflow as tf

from tf_contrastive.config.loss import NEGATIVES
from tf_contrastive.losses import base, similarity


class NTXent(base.ContrastiveLoss):
    """NT-Xent: an image's other views are its positives; labels are ignored.

    Chen et al. 2020, Eq. 1, averaged over all anchors of the global batch:

        loss_i = -log(exp(z_i . z_j(i) / t) / sum_{k != i} exp(z_i . z_k / t))

    With more than two views each other one is a positive, averaged outside of
    the logarithm: SupCon with the image's index as its label. It is InfoNCE
    with the batch as negatives. google-research/simclr's code returns twice
    this (the sum of both directions instead of their mean); keras-cv calls it
    SimCLRLoss, lightly NTXentLoss.

    Args:
      negatives: "all_views", or "other_view" (footnote 4 and appendix B.10):
        of two views, an anchor's candidates are the other view of each image.
      **options: those of `ContrastiveLoss`.
    """

    def __init__(self, *, negatives: str, **options) -> None:
        super().__init__(**options)
        base.check_choice("negatives", negatives, NEGATIVES)
        self._other_view = negatives == "other_view"

    def _terms(self, batch):
        positives = max(batch.num_views - 1, 1)
        mean = similarity.positive_sums(batch) / positives
        return [(1.0, self._denominators(batch)), (-1 / self.temperature, mean)]

    def _denominators(self, batch):
        if not self._other_view:
            return similarity.LogSumExp(
                batch, self.temperature, block_size=self.block_size
            )
        bounded = batch.bounded(self.temperature)
        return base.against_other_view(
            lambda block: similarity.log_sum_exp(
                block.similarities / self.temperature, bounded=bounded
            ),
            batch,
            self.block_size,
        )


class DecoupledNTXent(base.ContrastiveLoss):
    """NT-Xent with a weight of its own for the distribution term.

    Chen et al. 2021 (Intriguing Properties), Eq. 5, averaged over anchors:

        loss_i = -z_i . z_j(i) + weight * log sum_{k != i} exp(z_i . z_k / t)

    With weight = temperature it is temperature * NT-Xent. More than two views
    as in `NTXent`; labels are ignored.

    Args:
      weight: lambda, at least 0.
      **options: those of `ContrastiveLoss`.
    """

    def __init__(self, *, weight: float, **options) -> None:
        super().__init__(**options)
        base.check_at_least("weight", weight, 0.0)
        self._weight = weight

    def _terms(self, batch):
        positives = max(batch.num_views - 1, 1)
        mean = similarity.positive_sums(batch) / positives
        distribution = similarity.LogSumExp(
            batch, self.temperature, block_size=self.block_size
        )
        return [(-1.0, mean), (self._weight, distribution)]


class NPairs(base.ContrastiveLoss):
    """N-pairs: of an anchor's class, one other image is the positive.

    Khosla et al. 2020, supplement, Eq. 21 (after Sohn 2016):

        loss_i = -log(exp(z_i . z_k(i) / t) / sum_{a != i} exp(z_i . z_a / t))

    k(i) is the next image of the class in the order of the global batch, after
    the last the first, in the anchor's view. With more than one view the
    image's own other views are among the negatives, as the equation has it.
    Labels as for `SupCon`; an image alone in its class leaves the mean.
    """

    needs_labels = True

    def _terms(self, batch):
        partners = tf.gather(
            batch.candidates.embeddings, self._partners(batch)[0]
        )
        positive = tf.reduce_sum(batch.anchors.embeddings * partners, axis=-1)
        denominators = similarity.LogSumExp(
            batch, self.temperature, block_size=self.block_size
        )
        return [(1.0, denominators), (-1 / self.temperature, positive)]

    def _counted(self, batch):
        return self._partners(batch)[1]

    def _partners(self, batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Position of k(i) among the candidates [A]; whether there is one."""
        images = tf.size(batch.candidates.images) // batch.num_views

        def next_image(block):
            allowed = block.same_class & block.same_view & ~block.same_image
            steps = tf.math.floormod(
                block.candidates.images - block.anchors.images[:, tf.newaxis],
                images,
            )
            steps = tf.where(allowed, steps, images)
            nearest = tf.argmin(steps, axis=-1, output_type=tf.int32)
            return nearest, tf.reduce_any(allowed, axis=-1)

        return similarity.scan(
            next_image,
            batch.anchors,
            batch.candidates,
            outputs=(tf.int32, tf.bool),
            block_size=self.block_size,
        )
