"""SimCLR's loss, its decoupled form, and N-pairs."""

import dataclasses
from typing import Any

import tensorflow as tf

from tf_contrastive.config.loss import LOSS_OPTIONS
from tf_contrastive.losses import base, similarity

_NTXENT = LOSS_OPTIONS["ntxent"]
_DECOUPLED = LOSS_OPTIONS["decoupled_ntxent"]
_NPAIRS = LOSS_OPTIONS["npairs"]


@dataclasses.dataclass(kw_only=True, eq=False)
class NTXent(base.AnchorLoss):
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

    temperature: float = _NTXENT["temperature"]
    negatives: str = _NTXENT["negatives"]

    def _terms_of(self, batch: similarity.Batch) -> list[base.Term]:
        denominators: Any = self._log_sum_exp(batch)
        if self.negatives == "other_view":
            bounded = batch.bounded(self.temperature)
            denominators = self._rows(
                lambda block: similarity.log_sum_exp(
                    block.similarities / self.temperature, bounded=bounded
                ),
                batch,
                self.negatives,
            )
        mean = _mean_positive(batch)
        return [(1.0, denominators), (-1 / self.temperature, mean)]


def _mean_positive(batch: similarity.Batch) -> tf.Tensor:
    positives = max(batch.num_views - 1, 1)
    return similarity.positive_sums(batch) / positives


@dataclasses.dataclass(kw_only=True, eq=False)
class DecoupledNTXent(base.AnchorLoss):
    """NT-Xent with a separate weight of the distribution term.

    Chen et al. 2021 (Intriguing Properties), Eq. 5, averaged over anchors:

        loss_i = -z_i . z_j(i) + weight * log sum_{k != i} exp(z_i . z_k / t)

    With weight = temperature it is temperature * NT-Xent. More than two views
    as in `NTXent`; ignores labels.
    """

    temperature: float = _DECOUPLED["temperature"]
    weight: float = _DECOUPLED["weight"]

    def _terms_of(self, batch: similarity.Batch) -> list[base.Term]:
        distribution = self._log_sum_exp(batch)
        return [(-1.0, _mean_positive(batch)), (self.weight, distribution)]


@dataclasses.dataclass(kw_only=True, eq=False)
class NPairs(base.AnchorLoss):
    """N-pairs: the positive is one other image of the anchor's class.

    Khosla et al. 2020, supplement, Eq. 21 (after Sohn 2016):

        loss_i = -log(exp(z_i . z_k(i) / t) / sum_{a != i} exp(z_i . z_a / t))

    k(i) is the anchor's view of the class's next image, in the cyclic order of
    the global batch. The image's own other views are negatives, as in the
    equation. Labels as for `SupCon`; an image that is the only one of its class
    is not counted.
    """

    needs_labels = True

    temperature: float = _NPAIRS["temperature"]

    def _terms_of(self, batch: similarity.Batch) -> list[base.Term]:
        partners = tf.gather(
            batch.candidates.embeddings, self._partners(batch)[0]
        )
        positive = tf.reduce_sum(batch.anchors.embeddings * partners, axis=-1)
        return [
            (1.0, self._log_sum_exp(batch)),
            (-1 / self.temperature, positive),
        ]

    def _counted(self, batch: similarity.Batch) -> tf.Tensor:
        return self._partners(batch)[1]

    def _partners(self, batch: similarity.Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns k(i) as int32 [A] candidates; bool [A], if there is one."""
        images = tf.size(batch.candidates.image_ids) // batch.num_views

        def next_image(block: similarity.Block) -> tuple[tf.Tensor, tf.Tensor]:
            allowed = block.same_class & block.same_view & ~block.same_image
            steps = tf.math.floormod(
                block.candidates.image_ids
                - block.anchors.image_ids[:, tf.newaxis],
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
