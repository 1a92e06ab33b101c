"""The supervised contrastive loss, L_out."""

import tensorflow as tf

from tf_contrastive import similarity
from tf_contrastive.losses.base import ContrastiveLoss


class SupCon(ContrastiveLoss):
    """SupCon, L_out: the mean over positives stands outside of the logarithm.

    Khosla et al. 2020, Eq. 2:

        loss_i = -1/|P(i)| sum_{p in P(i)} log(
            exp(z_i . z_p / t) / sum_{a != i} exp(z_i . z_a / t))

    P(i) are all other embeddings of i's class in the global batch, its other
    views included. Labels are needed: int [B], or multi-hot [B, C] in which
    any shared class makes a positive. There is no factor of the temperature;
    google-research/supcon and HobbitLong/SupContrast multiply by one.
    """

    needs_labels = True

    def _values(self, pairs: similarity.Pairs) -> tf.Tensor:
        log_sum = similarity.log_sum_exp(pairs.logits)
        positive = similarity.mean_over_positives(pairs.logits, pairs.positives)
        counted = tf.reduce_any(pairs.positives, axis=-1)
        return tf.where(counted, log_sum - positive, 0.0)
