"""Numbers that tell how well the contrastive task is solved.

Layer 3. They read the same similarities as the loss and have no gradient.
"""

import tensorflow as tf

from tf_contrastive import similarity


def contrastive_task(
    projections: tf.Tensor,
    labels: tf.Tensor | None = None,
    *,
    temperature: float,
    normalize: bool = True,
) -> dict[str, tf.Tensor]:
    """Accuracy and entropy of picking a positive out of the global batch.

    The task is that of the loss, with all V * G - 1 other embeddings as
    candidates. (google-research/simclr counts only the G of the other view,
    which makes the task look easier than what is trained.)

    Args:
      projections: [B, V, P] of this replica.
      labels: int [B] or multi-hot [B, C] if positives are of the same class;
        None: the other views of the image.
      temperature, normalize: those of the loss.

    Returns:
      `accuracy`, the share of anchors in [0, 1] whose nearest other embedding
      is a positive, and `entropy` of the softmax over the candidates in nats
      (ln of the number of candidates at the start of a run), each float32 []
      and a mean over this replica's anchors.
    """
    pairs = similarity.pairs(
        tf.stop_gradient(projections),
        labels,
        temperature=temperature,
        normalize=normalize,
    )
    nearest = tf.argmax(pairs.logits, axis=-1, output_type=tf.int32)
    hits = tf.gather(pairs.positives, nearest, batch_dims=1)
    log_probabilities = tf.nn.log_softmax(pairs.logits, axis=-1)
    terms = tf.exp(log_probabilities) * log_probabilities
    # A masked logit gives 0 * -1e30, which is 0.
    entropy = -tf.reduce_sum(tf.where(pairs.others, terms, 0.0), axis=-1)
    return {
        "accuracy": tf.reduce_mean(tf.cast(hits, tf.float32)),
        "entropy": tf.reduce_mean(entropy),
    }
