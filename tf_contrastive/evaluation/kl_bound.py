"""Lower bounds of a divergence by a contrastive loss.

The protocol `kl_bound`: Feeney and Hughes 2024 (SINCERE), theorem 11.
"""

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers, errors, losses
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.protocols import RepresentationProtocols
from tf_contrastive.evaluation import view_embeddings
from tf_contrastive.evaluation.context import EvaluationContext, missing_labels
from tf_contrastive.evaluation.results import Measurement

_DEFAULTS = RepresentationProtocols


def kl_lower_bound(
    projections: np.ndarray,
    labels: np.ndarray,
    temperature: float,
    *,
    normalize: bool = True,
) -> float:
    """Lower bound, in nats, of the symmetric divergence of classes and noise.

    The mean of ln |N(i)| - SINCERE's loss of i, over anchors i with positives
    and negatives in the batch. (The authors' code adds 1 to |N|; the theorem
    does not.)

    Args:
      projections: float [B, V, P] of one batch of held-out images; all are
        compared with all.
      labels: int [B].
      temperature: divisor of the similarities, above 0.
      normalize: whether to l2-normalize the projections.

    Feeney and Hughes 2024 (SINCERE), theorem 11.
    """
    z = view_embeddings.check_views(projections, 1, views=1)
    if not temperature > 0:
        raise errors.UserError(f"temperature={temperature}: must be above 0")
    labels = classifiers.check_labels("labels", labels, z)
    logs, sincere = _anchor_terms(z, labels, temperature, normalize)
    if not logs.size:
        raise errors.UserError(
            "no image has both a positive and a negative in the batch: pass at"
            " least two classes, and two views or two images of one class"
        )
    return float((logs - sincere).mean())


def _anchor_terms(
    z: np.ndarray, labels: np.ndarray, temperature: float, normalize: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (ln |N(i)|, SINCERE's loss) [k] of anchors that have both."""
    views = z.shape[1]
    _, index, counts = np.unique(
        labels, return_inverse=True, return_counts=True
    )
    positives = views * counts[index] - 1
    negatives = views * (len(labels) - counts[index])
    loss = losses.build("sincere", temperature=temperature, normalize=normalize)
    per_anchor = loss.per_anchor(tf.constant(z, tf.float32), labels).numpy()
    counted = (positives > 0) & (negatives > 0)
    logs = np.repeat(np.log(negatives[counted]), views)
    return logs, per_anchor[counted].astype(np.float64).ravel()


def measure(
    context: EvaluationContext,
    *,
    view_examples: int = _DEFAULTS.view_examples,
    kl_batch_size: int = _DEFAULTS.kl_batch_size,
    seed: int = Evaluation.seed,
) -> Measurement:
    """The protocol `kl_bound`, on two views of test images.

    Returns:
      Metrics "kl_lower_bound" and "sincere_loss" (nats, means over anchors),
      "upper_bound" (mean ln |N|, which "kl_lower_bound" cannot exceed),
      "temperature", "images". If no batch has two images of one class and one
      of another, only "kl_lower_bound": None.
    """
    z, labels = view_embeddings.project_views(context, view_examples, seed)
    temperature, normalize = view_embeddings.loss_similarity(context)
    order = np.random.RandomState(seed % 2**32).permutation(len(labels))
    parts = [
        _anchor_terms(
            z[rows], labels[rows].astype(np.int64), temperature, normalize
        )
        for rows in np.array_split(order, -(-len(order) // kl_batch_size))
    ]
    logs, sincere = map(np.concatenate, zip(*parts, strict=True))
    if not logs.size:
        context.log(
            f"kl_bound: no batch of {kl_batch_size} images of"
            f" {context.test.info.name} has two classes: no bound"
        )
        return {"metrics": {"kl_lower_bound": None}}
    return {
        "metrics": {
            "kl_lower_bound": float((logs - sincere).mean()),
            "sincere_loss": float(sincere.mean()),
            "upper_bound": float(logs.mean()),
            "temperature": temperature,
            "images": len(labels),
        }
    }


def needs(context: EvaluationContext) -> str | None:
    """Returns why `kl_bound` cannot be measured, or None."""
    if reason := missing_labels(context):
        return reason
    if context.test.info.num_classes == 1:
        return f"{context.test.info.name} has only one class"
    return view_embeddings.missing_projections(context)
