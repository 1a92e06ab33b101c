"""Momentum contrast: keys of a slower encoder, and a queue of them."""

import tensorflow as tf

from tf_contrastive.config import loss as declared
from tf_contrastive.losses import base, matrix_products, similarity


class MoCo(declared.MoCo, base.AnchorLoss):
    """MoCo: a query against its key, with a queue of earlier keys as negatives.

    He et al. 2020, Eq. 1 (InfoNCE):

        loss_i = -log(exp(q_i . k_i / t) /
            (exp(q_i . k_i / t) + sum_{k in queue} exp(q_i . k / t)))

    `ContrastiveModel(..., momentum=0.999)` makes keys and queue. All queries
    are counted; keys and queue get no gradient; ignores labels.

    Examples:
      >>> z = tf.random.stateless_normal([4, 2, 8], seed=[1, 2])  # [B, V, P]
      >>> queue = tf.random.stateless_normal([16, 8], seed=[3, 4])
      >>> print(f"{MoCo(temperature=0.5)(z, keys=z, queue=queue):.4f}")
      1.3101
    """

    def __call__(
        self,
        projections: tf.Tensor,
        labels: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
        *,
        keys: tf.Tensor | None = None,
        queue: tf.Tensor | None = None,
        queue_mask: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Computes the loss over the global batch, see `ContrastiveLoss`.

        The keys [B, V, P] are the positives of the queries, `projections`. The
        queue [Q, P] is the same on every replica; those of `queue_mask`, bool
        [Q], are negatives (None: all).
        """
        del labels, seed
        values = self.per_anchor(
            projections, keys=keys, queue=queue, queue_mask=queue_mask
        )
        values = tf.reshape(values, [-1])
        return self._reduce(values, tf.ones_like(values, tf.bool))

    def per_anchor(
        self,
        projections: tf.Tensor,
        labels: tf.Tensor | None = None,
        *,
        small_views: int = 0,
        keys: tf.Tensor | None = None,
        queue: tf.Tensor | None = None,
        queue_mask: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Computes the unscaled loss of each query, float32 [B, V]."""
        del labels, small_views
        queries = base.check_projections(projections)
        keys, queue = _checked(queries, keys, queue)
        size = queries.shape[-1]
        q, k, negatives = (
            similarity.l2_normalize(x)
            if self.normalize
            else tf.cast(x, tf.float32)
            for x in (tf.reshape(queries, [-1, size]), keys, queue)
        )
        if queue_mask is None:
            queue_mask = tf.ones(tf.shape(negatives)[:1], tf.bool)
        queue_mask = tf.cast(queue_mask, tf.int32)
        # Queries and negatives are of class 1, empty slots of class 0.
        ones = tf.ones(tf.shape(q)[:1], tf.int32)
        anchors, candidates = (
            similarity.EmbeddingSet(x, zeros, zeros, zeros, classes)
            for x, classes, zeros in (
                (q, ones, 0 * ones),
                (negatives, queue_mask, 0 * queue_mask),
            )
        )
        noise = similarity.Rows(
            lambda block: similarity.log_sum_exp(
                block.similarities / self.temperature, block.same_class
            ),
            similarity.Batch(
                anchors,
                candidates,
                num_views=1,
                labelled=True,
                normalized=self.normalize,
                split=matrix_products.use_split(self.similarity_products),
                block_size=self.block_size,
            ),
        )
        # Need not be of the same products: numerator and denominator both
        # take this number.
        positive = tf.reduce_sum(q * tf.reshape(k, [-1, size]), axis=-1)
        values = tf.nn.softplus(noise.values() - positive / self.temperature)
        return tf.reshape(values, tf.shape(queries)[:2])


def _checked(
    queries: tf.Tensor, keys: tf.Tensor | None, queue: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    if keys is None or queue is None:
        raise ValueError(
            "MoCo needs keys [B, V, P] and a queue [Q, P]: train it by"
            " ContrastiveModel(..., momentum=0.999)"
        )
    keys, queue = tf.convert_to_tensor(keys), tf.convert_to_tensor(queue)
    if not (
        keys.shape.is_compatible_with(queries.shape)
        and queue.shape.rank == 2
        and queue.shape[1:].is_compatible_with(queries.shape[-1:])
    ):
        raise ValueError(
            f"keys of shape {keys.shape} and a queue of shape {queue.shape}"
            f" for queries of shape {queries.shape}: must be [B, V, P] and"
            " [Q, P]"
        )
    return tf.stop_gradient(keys), tf.stop_gradient(queue)
