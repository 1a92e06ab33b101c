"""Whether projections solve the contrastive task, image by image.

The protocol `contrastive`: of test images, which of them is the other view's.
"""

from typing import Any

import numpy as np

from tf_contrastive import errors
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.protocols import RepresentationProtocols
from tf_contrastive.evaluation import projected, statistics

_FIELDS = RepresentationProtocols
# Rows compared at a time, with all others: 1024 x 10,000 float32 are 40 MiB.
_BLOCK = 1024


def contrastive_accuracy(
    projections: np.ndarray,
    temperature: float,
    *,
    batch_size: int = _FIELDS.contrastive_batch_size,
    normalize: bool = True,
    seed: int = Evaluation.seed,
) -> dict[str, Any]:
    """How well the other view of an image is told from those of others.

    Each view is compared with the next view of every image of its batch, as in
    table 4 of SimCLR: as many candidates as images, its own image's the one
    that is right. A tie counts as wrong.

    Args:
      projections: float [n, V, P], V at least 2.
      temperature: what similarities are divided by, above 0.
      batch_size: images of a batch, at most; random ones, so that their order
        is of no account. It decides both results.
      normalize: l2-normalise the projections first.
      seed: of the batches.

    Returns:
      {"accuracy": share of views whose nearest candidate is right, "correct":
      float [n], that of each image's views, "entropy": mean over views of that
      of the softmax over candidates, nats, at most ln(batch)}.

    Raises:
      UserError: for NaN, shapes that do not fit, or no temperature.

    Chen et al. 2020 (SimCLR), section 5.1 and table 4.
    """
    z = projected.check_views(projections, 2)
    if not temperature > 0:
        raise errors.UserError(f"temperature={temperature}: must be above 0")
    if batch_size < 2:
        raise errors.UserError(f"batch_size={batch_size}: give at least 2")
    if normalize:
        z = projected.normalized(z)
    order = np.random.RandomState(seed % 2**32).permutation(len(z))
    hits, entropies = np.zeros(z.shape[:2], bool), []
    for rows in np.array_split(order, -(-len(order) // batch_size)):
        for view in range(z.shape[1]):
            candidates = z[rows, (view + 1) % z.shape[1]]
            for start in range(0, len(rows), _BLOCK):
                own = np.arange(start, min(start + _BLOCK, len(rows)))
                logits = z[rows[own], view] @ candidates.T / temperature
                hit, entropy = _task_of_rows(logits, own)
                hits[rows[own], view] = hit
                entropies.append(entropy)
    return {
        "accuracy": float(hits.mean()),
        "correct": hits.mean(axis=1),
        "entropy": float(np.concatenate(entropies).mean()),
    }


def _task_of_rows(logits: np.ndarray, own: np.ndarray):
    """(hit bool [b], entropy [b]) of logits [b, n], `own` being right."""
    every = np.arange(len(logits))
    right = logits[every, own]
    others = logits.copy()
    others[every, own] = -np.inf
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    total = e.sum(axis=1)
    shifted = logits - logits.max(axis=1, keepdims=True)
    entropy = np.log(total) - (e * shifted).sum(axis=1) / total
    return right > others.max(axis=1), entropy


def measure(
    subject: Any,
    *,
    view_examples: int = _FIELDS.view_examples,
    contrastive_batch_size: int = _FIELDS.contrastive_batch_size,
    seed: int = Evaluation.seed,
) -> dict[str, Any]:
    """The protocol `contrastive`: of test images, two views each.

    Args:
      subject: an encoder under evaluation, see `subject.Subject`.
      view_examples: test images, at most.
      contrastive_batch_size: images among which the other view is to be found.
      seed: which images, and which of them stand in one batch.

    Returns:
      A measurement: metrics "contrastive_accuracy" (fraction; its "_interval"
      of 95 % is of resampled images), "contrastive_entropy" (nats),
      "most_entropy" (ln of the candidates), "temperature", "images".
    """
    made = projected.embed(subject, view_examples, seed)
    temperature, normalize = projected.comparison(subject)
    found = contrastive_accuracy(
        made.z,
        temperature,
        batch_size=contrastive_batch_size,
        normalize=normalize,
        seed=seed,
    )
    batches = -(-len(made.z) // contrastive_batch_size)
    return {
        "metrics": {
            "contrastive_accuracy": found["accuracy"],
            "contrastive_accuracy_interval": statistics.interval(
                found["correct"]
            ),
            "contrastive_entropy": found["entropy"],
            "most_entropy": float(np.log(len(made.z) / batches)),
            "temperature": temperature,
            "images": len(made.z),
        }
    }
