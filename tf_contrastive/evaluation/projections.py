"""Protocols that compare the projections of images as the run's loss does.

`contrastive`: find the other view of an image among other images. Chen et al.
2020 (SimCLR), section 5.1 and table 5. `kl_bound`: a lower bound of a
divergence by SINCERE's loss. Feeney and Hughes 2024, theorem 11.
"""

from typing import Any

import numpy as np
import scipy.special
import tensorflow as tf

from tf_contrastive import classifiers, losses
from tf_contrastive.base import errors
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.evaluation import statistics, view_embeddings
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.report import Measurement

# Rows compared with all others at a time: 1024 x 10,000 float32 are 40 MiB.
BLOCK = 1024
# Images that are compared with one another: SimCLR's batch, and SINCERE's.
TASK_BATCH, BOUND_BATCH = 4096, 512


def contrastive_accuracy(
    projections: np.ndarray,
    temperature: float,
    *,
    batch_size: int = TASK_BATCH,
    normalize: bool = True,
    seed: int = Evaluation.seed,
) -> dict[str, Any]:
    """Accuracy of finding an image's other view among those of a batch.

    Each view is compared with the next view of every image of its batch; the
    right candidate is the one of its own image. A tie counts as wrong.

    Args:
      projections: float [n, V, P], V at least 2.
      temperature: divisor of the similarities, above 0.
      batch_size: largest number of images per batch, which affects both
        results; batches are random.
      normalize: whether to l2-normalize the projections.
      seed: seed of the batches.

    Returns:
      {"accuracy": fraction of views, "correct" [n]: that of each image,
      "entropy": of the softmax over candidates, mean, in nats}.

    Chen et al. 2020 (SimCLR), section 5.1 and table 5.
    """
    z = view_embeddings.check_views(projections, 2)
    if not temperature > 0:
        raise errors.UserError(
            f"{errors.arg('temperature', temperature)}: must be above 0"
        )
    if normalize:
        z = view_embeddings.normalize_views(z)
    order = np.random.RandomState(seed % 2**32).permutation(len(z))
    hits, entropies = np.zeros(z.shape[:2], bool), []
    for rows in np.array_split(order, -(-len(order) // batch_size)):
        for view in range(z.shape[1]):
            candidates = z[rows, (view + 1) % z.shape[1]]
            for start in range(0, len(rows), BLOCK):
                own = np.arange(start, min(start + BLOCK, len(rows)))
                logits = z[rows[own], view] @ candidates.T / temperature
                every = np.arange(len(logits))
                right = logits[every, own]
                candidate = scipy.special.softmax(logits, axis=1)
                entropies.append(scipy.special.entr(candidate).sum(axis=1))
                logits[every, own] = -np.inf
                hits[rows[own], view] = right > logits.max(axis=1)
    return {
        "accuracy": float(hits.mean()),
        "correct": hits.mean(axis=1),
        "entropy": float(np.concatenate(entropies).mean()),
    }


def measure_task(
    context: EvaluationContext, *, view_examples: int, seed: int
) -> Measurement:
    """The protocol `contrastive`, on two views of test images.

    The interval is of resampled images; entropies are in nats, "max_entropy" is
    ln of the number of candidates.
    """
    _, z, _ = view_embeddings.embed_views(context, view_examples, seed)
    assert z is not None
    temperature, normalize = view_embeddings.loss_similarity(context)
    task = contrastive_accuracy(z, temperature, normalize=normalize, seed=seed)
    batches = -(-len(z) // TASK_BATCH)
    return {
        "metrics": {
            "contrastive_accuracy": task["accuracy"],
            "contrastive_accuracy_interval": statistics.interval(
                task["correct"]
            ),
            "contrastive_entropy": task["entropy"],
            "max_entropy": float(np.log(len(z) / batches)),
            "temperature": temperature,
            "images": len(z),
        }
    }


# ---- The bound ---------------------------------------------------------------


def kl_lower_bound(
    projections: np.ndarray,
    labels: np.ndarray,
    temperature: float,
    *,
    normalize: bool = True,
) -> float:
    """Lower bound, in nats, of the symmetric divergence of classes and noise.

    The mean of ln |N(i)| - L_i, L_i SINCERE's loss, over anchors i that have
    positives and negatives N(i) in the batch. (The authors' code adds 1 to |N|;
    the theorem does not.)

    Projections are float [B, V, P] of one batch of held-out images, all
    compared with all, l2-normalized with `normalize`; labels are int [B].

    Feeney and Hughes 2024 (SINCERE), theorem 11.
    """
    z = view_embeddings.check_views(projections, 1, views=1)
    labels = classifiers.check_labels("labels", labels, z)
    negatives, values = _anchors(z, labels, temperature, normalize)
    if not negatives.size:
        raise errors.UserError(
            "no image has both a positive and a negative in the batch: pass at"
            " least two classes, and two views or two images of one class"
        )
    return float((np.log(negatives) - values).mean())


def _anchors(
    z: np.ndarray, labels: np.ndarray, temperature: float, normalize: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (|N|, SINCERE's loss) of anchors with positives and negatives."""
    views = z.shape[1]
    _, index, counts = np.unique(
        labels, return_inverse=True, return_counts=True
    )
    negatives = views * (len(labels) - counts[index])
    counted = (views * counts[index] > 1) & (negatives > 0)
    loss = losses.build("sincere", temperature=temperature, normalize=normalize)
    values = loss.per_anchor(tf.constant(z, tf.float32), labels).numpy()
    return (
        np.repeat(negatives[counted], views),
        values[counted].astype(np.float64).ravel(),
    )


def measure_kl(
    context: EvaluationContext, *, view_examples: int, seed: int
) -> Measurement:
    """The protocol `kl_bound`, on two views of test images.

    Metrics are in nats, means over anchors; "upper_bound" is the mean ln |N|,
    which "kl_lower_bound" cannot exceed. It alone is there, and None, if no
    batch has two images of one class and one of another.
    """
    _, z, labels = view_embeddings.embed_views(context, view_examples, seed)
    assert z is not None
    temperature, normalize = view_embeddings.loss_similarity(context)
    order = np.random.RandomState(seed % 2**32).permutation(len(labels))
    parts = [
        _anchors(z[rows], labels[rows].astype(np.int64), temperature, normalize)
        for rows in np.array_split(order, -(-len(order) // BOUND_BATCH))
    ]
    negatives, values = map(np.concatenate, zip(*parts, strict=True))
    if not negatives.size:
        context.log(
            f"kl_bound: no batch of {BOUND_BATCH} images of"
            f" {context.data.test.info.name} has two classes: no bound"
        )
        return {"metrics": {"kl_lower_bound": None}}
    upper = np.log(negatives)
    return {
        "metrics": {
            "kl_lower_bound": float((upper - values).mean()),
            "sincere_loss": float(values.mean()),
            "upper_bound": float(upper.mean()),
            "temperature": temperature,
            "images": len(labels),
        }
    }
