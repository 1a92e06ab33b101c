"""Metrics of the contrastive task.

They walk the same similarities as the loss and have no gradient.
"""

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.config.loss import NTXent
from tf_contrastive.distribution import joined
from tf_contrastive.losses import similarity

# The metrics of `contrastive_task`, in the order of display.
NAMES = (
    "accuracy",
    "entropy",
    "one_view_accuracy",
    "positive_similarity",
    "negative_similarity",
    "positives_per_anchor",
    "alignment",
    "uniformity",
    "kl_lower_bound",
    "embedding_std",
)
# The means over anchors.
_OF_ROWS = NAMES[:-1]
# Largest number of anchors measured per replica: their mean is as good, and
# more of them would make the metrics slower than the loss.
MAX_ANCHORS = 1024
# Wang and Isola 2020: uniformity is log E exp(-2 |x - y|^2).
_UNIFORMITY_SCALE = 2.0


def contrastive_task(
    projections: tf.Tensor,
    labels: tf.Tensor | None = None,
    *,
    temperature: float | None = None,
    normalize: bool = True,
    unlabelled: bool = False,
    small_views: int = 0,
) -> dict[str, tf.Tensor]:
    """Measures how well positives are distinguished in the global batch.

    Args:
      projections: [B, V, P] of this replica.
      labels: int [B] or multi-hot [B, C] if positives are of the same class;
        None: the other views of the image.
      temperature, normalize: the loss's; None: NT-Xent's default.
      unlabelled: whether labels may be -1, for images without one.
      small_views: of the views, the last ones, which are anchors only.

    Returns:
      A float32 [] for every name of `NAMES`, the mean over the anchors of all
      replicas (`cos` is the similarity of the loss, a dot product if that is
      not normalised):

      - accuracy: fraction in [0, 1] whose nearest of all V * G - 1 others is a
        positive.
      - entropy: of the softmax over these others, nats; ln(V * G - 1) at the
        start of a run.
      - one_view_accuracy: fraction whose nearest among the next views of all
        images is of its own image, as in SimCLR's table 5 and in the log of
        google-research/simclr. Higher than accuracy; 0 without a second view.
      - positive_similarity, negative_similarity: mean cos to the positives,
        and to those that are neither positive nor the anchor.
      - positives_per_anchor: |P(i)|.
      - alignment: mean |z_i - z_p|^2 over positives; uniformity: log of the
        mean of exp(-2 |z_i - z_j|^2) over all others, at least about -4 on the
        unit sphere (Wang and Isola 2020, with l2-normalised z).
      - kl_lower_bound: mean of ln |N(i)| - SINCERE's loss, nats: a lower bound
        of the symmetric divergence between the classes' and the noise's
        densities (Feeney and Hughes 2024, theorem 11).
      - embedding_std: the standard deviation of the l2-normalised z, over all
        dimensions together: 1 if their mean is 0, 0 if all are the same point,
        which is collapse (Chen and He 2020, figure 2, times sqrt(P)).
    """
    temperature = temperature or NTXent.temperature
    batch = similarity.gather(
        projections,
        labels,
        normalize=normalize,
        unlabelled=unlabelled,
        small_views=small_views,
    )
    anchors = similarity.EmbeddingSet(*(x[:MAX_ANCHORS] for x in batch.anchors))
    rows = similarity.scan(
        lambda block: _of_rows(block, temperature, batch.num_views),
        batch._replace(anchors=anchors),
        dict.fromkeys((*_OF_ROWS, "positives", "negatives"), tf.float32),
    )
    with_positive = rows["positives"]
    with_both = with_positive * rows["negatives"]
    with_other = tf.maximum(with_positive, rows["negatives"])
    counted = {
        "accuracy": with_positive,
        "entropy": with_other,
        "positive_similarity": with_positive,
        "negative_similarity": rows["negatives"],
        "alignment": with_positive,
        "uniformity": with_other,
        "kl_lower_bound": with_both,
    }
    products, weights = [], []
    for name in _OF_ROWS:
        weight = counted.get(name, tf.ones_like(with_positive))
        products.append(weight * rows[name])
        weights.append(weight)
    unit = tf.math.l2_normalize(anchors.embeddings, axis=-1)
    of_unit = tf.reduce_sum(unit, axis=0)  # [P]
    n = tf.cast(tf.shape(unit)[0], tf.float32)
    sums, counts = tf.split(joined.sums([*products, *weights]), 2)
    packed = tf.concat(
        [sums, of_unit, counts, tf.fill([of_unit.shape[0]], n)], 0
    )
    # A single collective for all sums and counts.
    sums, counts = tf.split(distribution.cross_replica_sum(packed), 2)
    means = sums / tf.maximum(counts, 1.0)
    centre = means[len(_OF_ROWS) :]
    spread = tf.sqrt(tf.maximum(1.0 - tf.reduce_sum(centre * centre), 0.0))
    values = [*tf.unstack(means[: len(_OF_ROWS)]), spread]
    return dict(zip(NAMES, values, strict=True))


def _of_rows(
    block: similarity.Block, temperature: float, views: int
) -> dict[str, tf.Tensor]:
    """Measures each anchor, and whether it has positives and negatives."""
    s = block.similarities
    positives, negatives = block.positives, block.negatives
    num_positives = similarity.count(positives)
    num_negatives = similarity.count(negatives)
    num_others = num_positives + num_negatives
    logits = s / temperature
    next_view = (block.anchors.views[:, tf.newaxis] + 1) % views
    of_next_view = tf.equal(block.candidates.views, next_view) & block.others
    noise = similarity.log_sum_exp(logits, negatives)
    mean = similarity.masked_mean
    sincere = mean(tf.nn.softplus(noise[:, tf.newaxis] - logits), positives)
    lengths, others = (
        tf.norm(x.embeddings, axis=-1)
        for x in (block.anchors, block.candidates)
    )
    cosines = s / tf.maximum(lengths[:, tf.newaxis] * others, 1e-30)
    spread = similarity.log_sum_exp(
        2 * _UNIFORMITY_SCALE * (cosines - 1), block.others
    )
    return {
        "accuracy": _wins(s, positives, negatives),
        "entropy": _entropy(logits, block.others),
        "one_view_accuracy": _wins(
            s, of_next_view & block.same_image, of_next_view & ~block.same_image
        ),
        "positive_similarity": mean(s, positives),
        "negative_similarity": mean(s, negatives),
        "positives_per_anchor": num_positives,
        "alignment": 2 - 2 * mean(cosines, positives),
        "uniformity": spread - _log(num_others),
        "kl_lower_bound": _log(num_negatives) - sincere,
        "positives": tf.cast(num_positives > 0, tf.float32),
        "negatives": tf.cast(num_negatives > 0, tf.float32),
    }


def _log(count: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.maximum(count, 1.0))


def _wins(
    similarities: tf.Tensor, positives: tf.Tensor, others: tf.Tensor
) -> tf.Tensor:
    """Returns 1 where the nearest candidate is a positive, else 0, [R]."""
    best, other = (
        tf.reduce_max(tf.where(mask, similarities, similarity.MASKED), axis=-1)
        for mask in (positives, others)
    )
    # Strictly greater: equal embeddings cannot be distinguished.
    return tf.cast(best > other, tf.float32)


def _entropy(logits: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Entropy of the softmax over the mask, nats, [R]."""
    logits = tf.where(mask, logits, similarity.MASKED)
    logits -= tf.reduce_max(logits, axis=-1, keepdims=True)
    e = tf.where(mask, tf.exp(logits), 0.0)
    total = tf.reduce_sum(e, axis=-1)
    weighted = tf.reduce_sum(tf.where(mask, e * logits, 0.0), axis=-1)
    return tf.math.divide_no_nan(-weighted, total) + tf.math.log(
        tf.where(total > 0, total, 1.0)
    )


def effective_rank(embeddings: tf.Tensor) -> tf.Tensor:
    """Number of dimensions that embeddings [n, D] use, 1 to min(n, D).

    The exponential of the entropy of the normalised singular values of the
    centred embeddings, float32 [] (Roy and Vetterli 2007). It falls to 1 when
    features collapse.
    """
    x = tf.cast(embeddings, tf.float32)
    x -= tf.reduce_mean(x, axis=0)
    values = tf.linalg.svd(x, compute_uv=False)
    p = values / tf.maximum(tf.reduce_sum(values), 1e-30)
    return tf.exp(-tf.reduce_sum(tf.math.xlogy(p, p)))
