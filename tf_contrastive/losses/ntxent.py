"""SimCLR's loss, its decoupled form, and N-pairs."""

import tensorflow as tf

from tf_contrastive.config import loss as declared
from tf_contrastive.losses import base, similarity


class NTXent(declared.NTXent, base.AnchorLoss):
    """NT-Xent: the positives are the image's other views; ignores labels.

    Chen et al. 2020, Eq. 1, averaged over all anchors of the global batch:

        loss_i = -log(exp(z_i . z_j(i) / t) / sum_{k != i} exp(z_i . z_k / t))

    With more than two views, each other view is a positive, averaged outside
    of the logarithm: SupCon with the image's index as its label. It is InfoNCE
    with the batch as negatives. google-research/simclr's code returns twice
    this (the sum of both directions instead of their mean); keras-cv calls it
    SimCLRLoss, lightly NTXentLoss.

    Args:
      negatives: "all_views", or "other_view" (footnote 4 and appendix B.10):
        of two views, an anchor's candidates are the other view of each image.
    """

    def _anchor_losses_of(self, batch: similarity.Batch) -> base.Losses:
        bounded = batch.bounded(self.temperature)

        def losses(block: similarity.Block) -> tf.Tensor:
            others = block.others if self.negatives == "all_views" else None
            total = similarity.log_sum_exp(
                block.similarities, others, bounded=bounded
            )
            positive = block.of_other_views(batch.num_views, self.negatives)
            return similarity.not_negative(total - positive)

        return self._rows(losses, batch, self.negatives)


class DecoupledNTXent(declared.DecoupledNTXent, base.AnchorLoss):
    """NT-Xent with a separate weight of the distribution term.

    Chen et al. 2021 (Intriguing Properties), table 1, row 1, for projections of
    size d, averaged over anchors:

        loss_i = scale * (|z_i - z_j(i)|^2 / d
            + weight * log sum_{k != i} exp(z_i . z_k / t))

    which is the authors' decoupled NT-Xent: their temperature 1, weight 0.1 and
    scale 1000 (appendix A), for a d of 64 or 128, are the defaults. More than
    two views as in `NTXent`; ignores labels.

    Args:
      alignment: "mean_square", as above; "similarity": Eq. 5 as printed, where
        -z_i . z_j(i) replaces the first term. With weight = temperature that is
        temperature * NT-Xent; with the weight of 0.1, embeddings collapse.
      scale: None: 1000 for mean squares of normalised projections, else 1.
    """

    def _anchor_losses_of(self, batch: similarity.Batch) -> base.Losses:
        bounded = batch.bounded(self.temperature)
        log_sums = self._rows(
            lambda block: similarity.log_sum_exp(
                block.similarities, block.others, bounded=bounded
            ),
            batch,
        ).values()
        embeddings, views = batch.anchors.embeddings, batch.num_views
        z = tf.reshape(embeddings, [-1, views, embeddings.shape[-1]])
        # Of a single view, which is not counted: itself.
        others = [tf.roll(z, k, axis=1) for k in range(1, views)] or [z]
        if self.alignment == "mean_square":
            terms = [tf.reduce_mean((z - x) ** 2, axis=-1) for x in others]
        else:
            terms = [-tf.reduce_sum(z * x, axis=-1) for x in others]
        alignment = tf.reshape(tf.add_n(terms) / len(terms), [-1])
        return self.factor() * (alignment + self.weight * log_sums)


class NPairs(declared.NPairs, base.AnchorLoss):
    """N-pairs: the positive is one other image of the anchor's class.

    Khosla et al. 2020, supplement, Eq. 21 (after Sohn 2016):

        loss_i = -log(exp(z_i . z_k(i) / t) / sum_{a != i} exp(z_i . z_a / t))

    k(i) is the anchor's view of the class's next image, in the cyclic order of
    the global batch. The image's own other views are negatives, as in the
    equation. Labels as for `SupCon`; an image that is the only one of its class
    is not counted.
    """

    def _anchor_losses_of(self, batch: similarity.Batch) -> base.Losses:
        images = tf.size(batch.candidates.image_ids) // batch.num_views
        bounded = batch.bounded(self.temperature)

        def losses(block: similarity.Block) -> tf.Tensor:
            logits = block.similarities
            steps = tf.math.floormod(
                block.candidates.image_ids
                - block.anchors.image_ids[:, tf.newaxis],
                images,
            )
            steps = tf.where(_of_class(block), steps, images)
            nearest = tf.reduce_min(steps, axis=-1, keepdims=True)
            is_partner = tf.equal(steps, nearest) & (nearest < images)
            positive = similarity.masked_sum(logits, is_partner)
            total = similarity.log_sum_exp(
                logits, block.others, bounded=bounded
            )
            return similarity.not_negative(total - positive)

        return self._rows(losses, batch)

    def _counted(self, batch: similarity.Batch) -> tf.Tensor:
        return similarity.scan(
            lambda block: tf.reduce_any(_of_class(block), axis=-1),
            batch.anchors,
            batch.candidates,
            outputs=tf.bool,
            block_size=self.block_size,
        )


def _of_class(block: similarity.Block) -> tf.Tensor:
    """Bool [R, N]: the same view of other images of the class."""
    return block.same_class & block.same_view & ~block.same_image
