"""SimCLR's loss, its relatives, and N-pairs."""

import math
from typing import Any

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

    Three papers change the sum over the anchor's n negatives k, the views of
    other images, here S = sum_k exp(s_k) for s_k = z_i . z_k / t:

        DCL (Yeh et al. 2022, Eq. 6), `denominator="only_negatives"`:
            loss_i = -s_j(i) + log S
        hard negatives (Robinson et al. 2021, Eq. 4), `beta`:
            S = n sum_k exp((1 + beta) s_k) / sum_k exp(beta s_k)
        debiased (Chuang et al. 2020, Eq. 7 and 8), `tau_plus`, where P is the
        mean of exp(s_j) over positives j:
            S' = max((S - tau_plus n P) / (1 - tau_plus), n exp(-1 / t))

    They combine: Robinson et al. use both of the latter. With more than two
    views `denominator="one_positive"` is what their equations say: each term
    has its own positive and S'.

    Args:
      negatives: "all_views", or "other_view" (footnote 4 and appendix B.10):
        of two views, an anchor's candidates are the other view of each image.
      denominator: "all" others; "one_positive": the term's own positive and
        all negatives; "only_negatives".
      tau_plus, beta: as above, from 0; 0: the sum as it is. `tau_plus` is below
        1, and needs normalised projections.
    """

    def _anchor_losses_of(self, batch: similarity.Batch) -> base.Losses:
        bounded = batch.bounded(self.temperature)
        if self.denominator != "all" or self.tau_plus or self.beta:
            return self._rows(
                lambda block: self._of_noise(block, batch),
                batch,
                self.negatives,
            )

        def losses(block: similarity.Block) -> tf.Tensor:
            others = block.others if self.negatives == "all_views" else None
            total = similarity.log_sum_exp(
                block.similarities, others, bounded=bounded
            )
            positive = block.of_other_views(batch.num_views, self.negatives)
            return similarity.not_negative(total - positive)

        return self._rows(losses, batch, self.negatives)

    def _of_noise(
        self, block: similarity.Block, batch: similarity.Batch
    ) -> tf.Tensor:
        """Computes the loss of a block's anchors for any options, [R]."""
        logits, positives = block.similarities, block.positives
        bounded = batch.bounded(self.temperature)
        signal = similarity.log_sum_exp(logits, positives, bounded=bounded)
        noise = self._noise(block, batch, signal)
        if self.denominator == "one_positive":
            odds = tf.nn.softplus(noise[:, tf.newaxis] - logits)
            return similarity.masked_mean(odds, positives)
        positive = block.of_other_views(batch.num_views, self.negatives)
        if self.denominator == "all":
            total = signal + tf.nn.softplus(noise - signal)
            return similarity.not_negative(total - positive)
        # Without negatives, a positive is compared with nothing.
        alone = tf.equal(noise, similarity.MASKED)
        return tf.where(alone, 0.0, noise - positive)

    def _noise(
        self, block: similarity.Block, batch: similarity.Batch, signal: Any
    ) -> tf.Tensor:
        """Computes log S' of a block's anchors, [R], from log((V - 1) P)."""
        logits, negatives = block.similarities, block.negatives
        number = similarity.count(negatives)
        alone = tf.equal(number, 0.0)
        number = tf.where(alone, 1.0, number)

        def log_sum(factor: float) -> tf.Tensor:
            bounded = batch.bounded(self.temperature / max(factor, 1.0))
            return similarity.log_sum_exp(
                factor * logits, negatives, bounded=bounded
            )

        noise = log_sum(1.0 + self.beta)
        if self.beta:
            noise += tf.math.log(number) - log_sum(self.beta)
        if self.tau_plus:
            count = tf.maximum(similarity.count(block.positives), 1.0)
            # Above 60 the difference below is negative, however small tau is.
            ratio = tf.exp(tf.minimum(signal - noise, 60.0)) / count
            left = 1.0 - self.tau_plus * number * ratio
            lowest = tf.math.log(number) - 1.0 / self.temperature
            keep = 1.0 - self.tau_plus
            is_lowest = left <= keep * tf.exp(lowest - noise)
            left = tf.where(is_lowest, 1.0, left)
            noise += tf.math.log(left) - math.log(keep)
            noise = tf.where(is_lowest, lowest, noise)
        return tf.where(alone, similarity.MASKED, noise)


class DecoupledNTXent(declared.DecoupledNTXent, base.AnchorLoss):
    """NT-Xent with a separate weight of the distribution term.

    Chen et al. 2021 (Intriguing Properties), table 1, row 1, for projections of
    size d, averaged over anchors:

        loss_i = scale * (|z_i - z_j(i)|^2 / d
            + weight * log sum_{k != i} exp(z_i . z_k / t))

    which is the paper's decoupled NT-Xent: their temperature 1, weight 0.1 and
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
        embeddings, large = batch.anchors.embeddings, batch.num_views
        views = large + batch.small_views
        z = tf.reshape(embeddings, [-1, views, embeddings.shape[-1]])
        terms = []
        for number in range(large):
            x = z[:, number : number + 1]
            if self.alignment == "mean_square":
                term = tf.reduce_mean((z - x) ** 2, axis=-1)
            else:
                term = -tf.reduce_sum(z * x, axis=-1)
            terms.append(tf.where(tf.range(views) == number, 0.0, term))
        # Of a single view, which is not counted: 0.
        others = tf.maximum(similarity.num_positives(batch), 1.0)
        alignment = tf.reshape(tf.add_n(terms), [-1]) / others
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
            batch,
            tf.bool,
        )


def _of_class(block: similarity.Block) -> tf.Tensor:
    """Bool [R, N]: the same view of other images of the class."""
    return block.same_class & block.same_view & ~block.same_image
