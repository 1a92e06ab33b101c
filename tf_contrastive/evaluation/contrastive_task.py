"""The contrastive task: find the other view of an image among other images.

The protocol `contrastive`: Chen et al. 2020 (SimCLR), section 5.1 and table 4.
"""

from typing import TypedDict

import numpy as np

from tf_contrastive import errors
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.protocols import RepresentationProtocols
from tf_contrastive.evaluation import statistics, view_embeddings
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.results import Measurement

_DEFAULTS = RepresentationProtocols
# Rows compared with all others at a time: 1024 x 10,000 float32 are 40 MiB.
_BLOCK = 1024


class ContrastiveAccuracy(TypedDict):
    """Result of `contrastive_accuracy`."""

    accuracy: float  # Fraction of views whose nearest candidate is right.
    correct: np.ndarray  # Float [n], the fraction of each image's views.
    entropy: float  # Of the softmax over candidates, mean, in nats.


def contrastive_accuracy(
    projections: np.ndarray,
    temperature: float,
    *,
    batch_size: int = _DEFAULTS.contrastive_batch_size,
    normalize: bool = True,
    seed: int = Evaluation.seed,
) -> ContrastiveAccuracy:
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

    Chen et al. 2020 (SimCLR), section 5.1 and table 4.
    """
    z = view_embeddings.check_views(projections, 2)
    if not temperature > 0:
        raise errors.UserError(f"temperature={temperature}: must be above 0")
    if batch_size < 2:
        raise errors.UserError(f"batch_size={batch_size}: must be at least 2")
    if normalize:
        z = view_embeddings.normalize_views(z)
    order = np.random.RandomState(seed % 2**32).permutation(len(z))
    hits, entropies = np.zeros(z.shape[:2], bool), []
    for rows in np.array_split(order, -(-len(order) // batch_size)):
        for view in range(z.shape[1]):
            candidates = z[rows, (view + 1) % z.shape[1]]
            for start in range(0, len(rows), _BLOCK):
                own = np.arange(start, min(start + _BLOCK, len(rows)))
                logits = z[rows[own], view] @ candidates.T / temperature
                every = np.arange(len(logits))
                right = logits[every, own]
                shifted = logits - logits.max(axis=1, keepdims=True)
                e = np.exp(shifted)
                total = e.sum(axis=1)
                entropies.append(
                    np.log(total) - (e * shifted).sum(axis=1) / total
                )
                logits[every, own] = -np.inf
                hits[rows[own], view] = right > logits.max(axis=1)
    return {
        "accuracy": float(hits.mean()),
        "correct": hits.mean(axis=1),
        "entropy": float(np.concatenate(entropies).mean()),
    }


def measure(
    context: EvaluationContext,
    *,
    view_examples: int = _DEFAULTS.view_examples,
    contrastive_batch_size: int = _DEFAULTS.contrastive_batch_size,
    seed: int = Evaluation.seed,
) -> Measurement:
    """The protocol `contrastive`, on two views of test images.

    Returns:
      Metrics "contrastive_accuracy" (fraction; "_interval": by resampling
      images), "contrastive_entropy" (nats), "max_entropy" (ln of the number of
      candidates), "temperature", "images".
    """
    z, _ = view_embeddings.project_views(context, view_examples, seed)
    temperature, normalize = view_embeddings.loss_similarity(context)
    task = contrastive_accuracy(
        z,
        temperature,
        batch_size=contrastive_batch_size,
        normalize=normalize,
        seed=seed,
    )
    batches = -(-len(z) // contrastive_batch_size)
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
