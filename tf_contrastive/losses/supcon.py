"""The supervised contrastive losses, L_out and L_in."""

import tensorflow as tf

from tf_contrastive.config.loss import CONTRASTS, DENOMINATORS, EPSILON_PLACES
from tf_contrastive.losses import base, similarity
from tf_contrastive.losses.similarity import (
    Block,
    count,
    log_sum_exp,
    masked_sum,
)


class SupCon(base.ContrastiveLoss):
    """SupCon, L_out: the mean over positives stands outside of the logarithm.

    Khosla et al. 2020, Eq. 2 (19 in the supplement):

        loss_i = -1/|P(i)| sum_{p in P(i)} log(
            exp(z_i . z_p / t) / sum_{a != i} exp(z_i . z_a / t))

    P(i) are all other embeddings of i's class in the global batch, its other
    views included. Labels are needed: int [B], or multi-hot [B, C] in which
    any shared class makes a positive (an image's views always share one).
    Peers call it SupConLoss (HobbitLong/SupContrast, which multiplies by
    temperature / base_temperature), contrastive_loss with
    `summation_location=OUTSIDE` (google-research/supcon, which multiplies by
    the temperature) and SupConLoss (pytorch-metric-learning).

    Args:
      contrast: "all_views" are anchors, or "one_view": view 0 alone, against
        the candidates of all views.
      denominator: "all" others; "one_positive": the term's own and all
        negatives, as in SINCERE; "only_negatives".
      positives_cap: positives kept per anchor (section 7), or None for all. An
        image's other views come first, then other images in the order of the
        global batch. Those that are dropped leave the denominator, too.
      keep_dropped_positives: leave them there.
      scale_by_temperature: multiply the loss by the temperature, as the
        authors' code does.
      **options: those of `ContrastiveLoss`.
    """

    needs_labels = True

    def __init__(
        self,
        *,
        contrast: str,
        denominator: str,
        positives_cap: int | None,
        keep_dropped_positives: bool,
        scale_by_temperature: bool,
        **options,
    ) -> None:
        super().__init__(**options)
        base.check_choice("contrast", contrast, CONTRASTS)
        base.check_choice("denominator", denominator, DENOMINATORS)
        if positives_cap is not None and positives_cap < 1:
            raise ValueError(
                f"positives_cap={positives_cap} keeps no positive: give at"
                " least 1, or None for all"
            )
        self._one_view = contrast == "one_view"
        self._denominator = denominator
        self._cap = positives_cap
        self._keep_dropped = keep_dropped_positives
        self._factor = self.temperature if scale_by_temperature else 1.0

    def _gather(self, projections, labels):
        batch = super()._gather(projections, labels)
        return batch.of_view(0) if self._one_view else batch

    def _terms(self, batch):
        if self._is_linear(batch):
            positives = tf.maximum(similarity.num_positives(batch), 1.0)
            mean = similarity.positive_sums(batch) / positives
            denominators = similarity.LogSumExp(
                batch, self.temperature, block_size=self.block_size
            )
            return [
                (self._factor, denominators),
                (-self._factor / self.temperature, mean),
            ]
        bounded = batch.bounded(self.temperature)
        rows = similarity.Rows(
            lambda block: self._of_rows(block, bounded),
            batch.anchors,
            batch.candidates,
            block_size=self.block_size,
        )
        return [(self._factor, rows)]

    def _is_linear(self, batch: similarity.Batch) -> bool:
        """Whether positives enter by their sum alone, without a mask."""
        return (
            self._denominator == "all"
            and self._cap is None
            and batch.anchors.classes.shape.rank == 1
        )

    def _of_rows(self, block: Block, bounded: bool) -> tf.Tensor:
        """The loss of a block's anchors, [R]; of any options."""
        logits = block.similarities / self.temperature
        positives, rest = self._split_candidates(block)
        if self._denominator == "one_positive":
            # Of each term, by the softmax of a positive and the rest.
            noise = log_sum_exp(logits, rest, bounded=bounded)
            terms = -tf.nn.softplus(noise[:, tf.newaxis] - logits)
            return -self._mean(terms, positives, bounded=False)
        if self._denominator == "all":
            rest |= positives
        denominator = log_sum_exp(logits, rest, bounded=bounded)
        loss = denominator - self._mean(logits, positives, bounded=bounded)
        # Without negatives there is nothing to tell a positive from.
        return tf.where(tf.reduce_any(rest, -1), loss, 0.0)

    def _split_candidates(self, block: Block) -> tuple[tf.Tensor, tf.Tensor]:
        """Kept positives, and the rest of the denominator, bool [R, N]."""
        positives, rest = block.positives, block.negatives
        if self._cap is None:
            return positives, rest
        own = positives & block.same_image
        own_kept = own & (_rank(own) <= self._cap)
        left = self._cap - tf.reduce_sum(
            tf.cast(own_kept, tf.int32), -1, keepdims=True
        )
        foreign = positives & ~block.same_image
        kept = own_kept | (foreign & (_rank(foreign) <= left))
        if self._keep_dropped:
            rest |= positives & ~kept
        return kept, rest

    def _mean(
        self, logs: tf.Tensor, positives: tf.Tensor, *, bounded: bool
    ) -> tf.Tensor:
        """The mean over positives, of logarithms, [R]."""
        del bounded
        return masked_sum(logs, positives) / tf.maximum(count(positives), 1.0)


class SupConIn(SupCon):
    """SupCon, L_in: the mean over positives stands inside of the logarithm.

    Khosla et al. 2020, Eq. 1:

        loss_i = -log(1/|P(i)| sum_{p in P(i)}
            exp(z_i . z_p / t) / sum_{a != i} exp(z_i . z_a / t))

    Never above L_out (Jensen); the paper finds L_out the better one. Options,
    labels and reduction are `SupCon`'s. google-research/supcon has it as
    `summation_location=INSIDE`.
    """

    def _is_linear(self, batch):
        return False

    def _mean(self, logs, positives, *, bounded):
        """The logarithm of the mean of what `logs` are the logarithms of."""
        number = tf.math.log(tf.maximum(count(positives), 1.0))
        return log_sum_exp(logs, positives, bounded=bounded) - number


def _rank(mask: tf.Tensor) -> tf.Tensor:
    """How many columns of the mask there are up to each, int32 [R, N]."""
    return tf.cumsum(tf.cast(mask, tf.int32), axis=-1)


class Sincere(base.ContrastiveLoss):
    """SINCERE: SupCon whose denominators hold no positive but the term's own.

    Feeney and Hughes 2024, Eq. 12:

        loss_i = -1/|P(i)| sum_{p in P(i)} log(exp(z_i . z_p / t) /
            (exp(z_i . z_p / t) + sum_{n in N(i)} exp(z_i . z_n / t)))

    The paper takes the noise of the partner instead of the anchor's, with the
    same mean over a batch. N(i) are the embeddings of other classes; without
    any the loss is 0. The authors' code (tufts-ml/SupContrast) calls it
    SINCERELoss, and gives NaN for a class of one embedding.

    Args:
      epsilon: margin in the logit, above 0 in `EpsSupInfoNCE`.
      **options: those of `ContrastiveLoss`.
    """

    needs_labels = True

    def __init__(self, *, epsilon: float = 0.0, **options) -> None:
        super().__init__(**options)
        base.check_at_least("epsilon", epsilon, 0.0)
        self._epsilon = epsilon

    def _terms(self, batch):
        bounded = batch.bounded(self.temperature)

        def of_rows(block):
            logits = block.similarities / self.temperature
            noise = log_sum_exp(logits, block.negatives, bounded=bounded)
            odds = noise[:, tf.newaxis] - logits + self._epsilon
            losses = masked_sum(tf.nn.softplus(odds), block.positives)
            positives = tf.maximum(count(block.positives), 1.0)
            return losses / positives - self._epsilon

        rows = similarity.Rows(
            of_rows,
            batch.anchors,
            batch.candidates,
            block_size=self.block_size,
        )
        return [(1.0, rows)]


class EpsSupInfoNCE(Sincere):
    """epsilon-SupInfoNCE: SINCERE with a margin.

    Barbano et al. 2023, as Feeney and Hughes 2024 print it, Eq. 15:

        loss_i = -1/|P(i)| sum_{p in P(i)} log(exp(z_i . z_p / t) /
            (exp(z_i . z_p / t - epsilon) + sum_{n in N(i)} exp(z_i . z_n / t)))

    It falls with epsilon, to -epsilon at the least.

    Args:
      epsilon: at least 0.
      epsilon_in: "logit", as the equation has it, or "cosine": a margin of
        similarities, which is epsilon / temperature in the logit.
      **options: those of `ContrastiveLoss`.
    """

    def __init__(self, *, epsilon: float, epsilon_in: str, **options) -> None:
        base.check_choice("epsilon_in", epsilon_in, EPSILON_PLACES)
        super().__init__(epsilon=epsilon, **options)
        if epsilon_in == "cosine":
            self._epsilon = epsilon / self.temperature
