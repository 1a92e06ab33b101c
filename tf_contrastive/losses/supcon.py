"""The supervised contrastive losses: SupCon (L_out, L_in) and SINCERE."""

import tensorflow as tf

from tf_contrastive.config import loss as declared
from tf_contrastive.losses import base, similarity
from tf_contrastive.losses.similarity import (
    MASKED,
    Batch,
    Block,
    count,
    log_sum_exp,
    masked_mean,
)


class SupCon(declared.SupCon, base.AnchorLoss):
    """SupCon, L_out: the mean over positives is outside of the logarithm.

    Khosla et al. 2020, Eq. 2 (19 in the supplement):

        loss_i = -1/|P(i)| sum_{p in P(i)} log(
            exp(z_i . z_p / t) / sum_{a != i} exp(z_i . z_a / t))

    P(i) are all other embeddings of i's class in the global batch, including
    its other views. Labels are required: int [B], or multi-hot [B, C], where
    any shared class makes a positive (an image's views always share one).

    With `overlap="jaccard"`, which is not in the paper, a positive p of
    multi-hot labels y counts by the classes that it shares, here and in the
    relatives of this loss:

        loss_i = -1/sum_p w_ip sum_{p in P(i)} w_ip log(...)
        w_ip = |y_i and y_p| / |y_i or y_p|, 1 for views of one image

    With one class per image this is `overlap="any"`, where w_ip = 1.

    With `unlabelled="own_views"` images may have no label, -1: P(i) of such an
    image are its own other views. It is among the others a of all images, or
    with `unlabelled_negatives=False` only of itself: then a is in A(i) without
    the views of other images that have no label.

    Other packages call it SupConLoss (HobbitLong/SupContrast, which multiplies
    by temperature / base_temperature), contrastive_loss with
    `summation_location=OUTSIDE` (google-research/supcon, which multiplies by
    the temperature) and SupConLoss (pytorch-metric-learning).

    Examples:
      >>> z = tf.random.stateless_normal([4, 2, 8], seed=[1, 2])  # [B, V, P]
      >>> print(f"{SupCon(temperature=0.5)(z, labels=[0, 0, 1, 1]):.4f}")
      2.0146

    Args:
      contrast: which views are anchors: "all_views", or "one_view": view 0,
        against the candidates of all views.
      denominator: "all" others; "one_positive": the term's own positive and
        all negatives, as in SINCERE; "only_negatives".
      positives_cap: positives kept per anchor (section 7), or None for all. An
        image's other views come first, then other images in the order of the
        global batch. Dropped positives also leave the denominator, unless
        `keep_dropped_positives`.
      scale_by_temperature: whether to multiply the loss by the temperature, as
        in the authors' code.
      unlabelled, unlabelled_negatives: as above. A multi-hot row of zeros has
        no label, either.
    """

    def _gather(self, inputs: base.Inputs) -> Batch:
        batch = super()._gather(inputs)
        return batch.of_view(0) if self.contrast == "one_view" else batch

    def _anchor_losses_of(self, batch: Batch) -> base.Losses:
        bounded = batch.bounded(self.temperature)
        scale = self.temperature if self.scale_by_temperature else 1.0
        return self._rows(
            lambda block: scale * self._losses(block, batch.num_views, bounded),
            batch,
        )

    def _losses(self, block: Block, views: int, bounded: bool) -> tf.Tensor:
        """Computes the loss of a block's anchors for any options, [R]."""
        logits = block.similarities
        positives, rest = block.positives, block.others
        if not self.unlabelled_negatives:
            rest &= ~block.unlabelled
        if self.positives_cap is not None:
            positives = self._capped(block, views)
            if not self.keep_dropped_positives:
                rest &= positives | block.negatives
        if self.denominator != "all":
            rest &= ~positives
        weights = block.weights(positives, self.overlap)
        denominator = log_sum_exp(logits, rest, bounded=bounded)
        if self.denominator == "one_positive":
            # The softmax of each positive and the rest.
            terms = -tf.nn.softplus(denominator[:, tf.newaxis] - logits)
            return -self._mean(terms, weights)
        loss = denominator - self._mean(logits, weights)
        if self.denominator == "all":
            loss = similarity.not_negative(loss)
        # Without negatives, a positive is compared with nothing.
        return tf.where(tf.equal(denominator, MASKED), 0.0, loss)

    def _capped(self, block: Block, views: int) -> tf.Tensor:
        """Returns the positives that are kept, bool [R, N]."""
        cap = self.positives_cap
        assert cap is not None
        own = block.positives & block.same_image
        foreign = block.positives & ~block.same_image
        if cap < views:
            # The first ones of an anchor's other views, and none of others'.
            of_anchor, view = block.anchors.views, block.candidates.views
            skipped = block.is_candidate & (of_anchor < cap)
            return own & (
                view[tf.newaxis]
                < cap + tf.cast(skipped, tf.int32)[:, tf.newaxis]
            )
        rank = tf.cumsum(tf.cast(foreign, tf.int32), axis=-1)
        others = views - tf.cast(block.is_candidate, tf.int32)
        return own | (foreign & (rank <= cap - others[:, tf.newaxis]))

    def _mean(self, logs: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Computes the mean of logarithms over positives, [R]."""
        return masked_mean(logs, weights)


class SupConIn(declared.SupConIn, SupCon):
    """SupCon, L_in: the mean over positives is inside of the logarithm.

    Khosla et al. 2020, Eq. 1:

        loss_i = -log(1/|P(i)| sum_{p in P(i)}
            exp(z_i . z_p / t) / sum_{a != i} exp(z_i . z_a / t))

    Never above L_out (Jensen); the paper prefers L_out. Options and labels as
    for `SupCon`; with `overlap`, w_ip / sum_p w_ip takes the place of 1/|P(i)|.
    google-research/supcon calls it `summation_location=INSIDE`.

    Examples:
      >>> z = tf.random.stateless_normal([4, 2, 8], seed=[1, 2])  # [B, V, P]
      >>> print(f"{SupConIn(temperature=0.5)(z, labels=[0, 0, 1, 1]):.4f}")
      1.8750
    """

    def _mean(self, logs: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Computes the logarithm of the mean of exp(logs), [R]."""
        number = tf.math.log(tf.maximum(count(weights), 1.0))
        positives = tf.cast(weights, tf.bool)
        if weights.dtype != tf.bool:
            logs += tf.math.log(tf.where(positives, weights, 1.0))
        return log_sum_exp(logs, positives) - number


class Sincere(declared.Sincere, base.AnchorLoss):
    """SINCERE: SupCon whose denominators have only the term's own positive.

    Feeney and Hughes 2024, Eq. 12:

        loss_i = -1/|P(i)| sum_{p in P(i)} log(exp(z_i . z_p / t) /
            (exp(z_i . z_p / t) + sum_{n in N(i)} exp(z_i . z_n / t)))

    The paper uses the partner's noise instead of the anchor's, with the same
    mean over a batch. N(i) are the embeddings of other classes; without any,
    the loss is 0. Labels and `overlap` as for `SupCon`, also with `unlabelled`;
    without `unlabelled_negatives`, N(i) has no views of images without a label.
    The authors' code (tufts-ml/SupContrast) calls it SINCERELoss; it returns
    NaN for a class of one embedding.
    """

    def _anchor_losses_of(self, batch: Batch) -> base.Losses:
        bounded = batch.bounded(self.temperature)
        epsilon = self._logit_epsilon()

        def losses(block: Block) -> tf.Tensor:
            logits, negatives = block.similarities, block.negatives
            if not self.unlabelled_negatives:
                negatives &= ~block.unlabelled
            noise = log_sum_exp(logits, negatives, bounded=bounded)
            odds = (noise + epsilon)[:, tf.newaxis] - logits
            weights = block.weights(block.positives, self.overlap)
            return masked_mean(tf.nn.softplus(odds), weights) - epsilon

        return self._rows(losses, batch)

    def _logit_epsilon(self) -> float:
        """The margin in the logit."""
        return 0.0


class EpsSupInfoNCE(declared.EpsSupInfoNCE, Sincere):
    """epsilon-SupInfoNCE: SINCERE with a margin.

    Barbano et al. 2023, as printed by Feeney and Hughes 2024, Eq. 15:

        loss_i = -1/|P(i)| sum_{p in P(i)} log(exp(z_i . z_p / t) /
            (exp(z_i . z_p / t - epsilon) + sum_{n in N(i)} exp(z_i . z_n / t)))

    It decreases with epsilon, down to -epsilon. `epsilon_in` is "logit", as in
    the equation, or "cosine": a margin of similarities, which is
    epsilon / temperature in the logit.
    """

    def _logit_epsilon(self) -> float:
        if self.epsilon_in == "cosine":
            return self.epsilon / self.temperature
        return self.epsilon
