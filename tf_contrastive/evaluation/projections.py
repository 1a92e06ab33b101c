"""Protocols that compare the projections of images as the run's loss does.

`contrastive`: find the other view of an image among other images. Chen et al.
2020 (SimCLR), section 5.1 and table 5. `kl_bound`: a lower bound of a
divergence by SINCERE's loss, and by SupCon's. Feeney and Hughes 2024, theorem
11 and appendix H.
"""

from collections.abc import Callable
from typing import NamedTuple, TypedDict

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers, losses
from tf_contrastive.base import errors
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.protocols import Contrastive
from tf_contrastive.evaluation import statistics, view_embeddings
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.report import Measurement

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
    batch_size: int = Contrastive.contrastive_batch_size,
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

    Chen et al. 2020 (SimCLR), section 5.1 and table 5.
    """
    z = view_embeddings.check_views(projections, 2)
    if not temperature > 0:
        raise errors.UserError(
            f"{errors.arg('temperature', temperature)}: must be above 0"
        )
    if batch_size < 2:
        raise errors.UserError(
            f"{errors.arg('batch_size', batch_size)}: must be at least 2"
        )
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


def measure_task(
    context: EvaluationContext,
    *,
    view_examples: int,
    contrastive_batch_size: int,
    seed: int,
) -> Measurement:
    """The protocol `contrastive`, on two views of test images.

    Returns:
      Metrics "contrastive_accuracy" (fraction; "_interval": by resampling
      images), "contrastive_entropy" (nats), "max_entropy" (ln of the number of
      candidates), "temperature", "images".
    """
    _, z, _ = view_embeddings.embed_views(context, view_examples, seed)
    assert z is not None
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


# ---- The bound ---------------------------------------------------------------


def kl_lower_bound(
    projections: np.ndarray,
    labels: np.ndarray,
    temperature: float,
    *,
    normalize: bool = True,
    loss: str = "sincere",
) -> float:
    """Lower bound, in nats, of the symmetric divergence of classes and noise.

    The mean over anchors i that have positives P(i) and negatives N(i) in the
    batch. With `loss="sincere"` (theorem 11) of

      ln |N(i)| - L_i,

    L_i SINCERE's loss. (The authors' code adds 1 to |N|; the theorem does not.)
    With `loss="supcon"` (equation 43, solved for the divergence) of

      (|N| + |P| - 1) / |N| * (ln(|N| + |P| - 1) - L_i),

    L_i SupCon's loss; equal for |P| = 1. Equation 43 takes the density ratio
    for the minimizer of SupCon's loss, which it is not in general: this bound
    is not proven.

    Projections are float [B, V, P] of one batch of held-out images, all
    compared with all, l2-normalized with `normalize`; labels are int [B].

    Feeney and Hughes 2024 (SINCERE), theorem 11 and appendix H.
    """
    z = view_embeddings.check_views(projections, 1, views=1)
    if not temperature > 0:
        raise errors.UserError(
            f"{errors.arg('temperature', temperature)}: must be above 0"
        )
    if loss not in _BOUNDS:
        raise errors.unknown("loss", loss, _BOUNDS)
    labels = classifiers.check_labels("labels", labels, z)
    anchors = _anchors(z, labels, temperature, normalize)
    if not anchors.negatives.size:
        raise errors.UserError(
            "no image has both a positive and a negative in the batch: pass at"
            " least two classes, and two views or two images of one class"
        )
    return float(_BOUNDS[loss](anchors).mean())


class _Anchors(NamedTuple):
    """Anchors that have positives and negatives, each [k]."""

    positives: np.ndarray  # Their number, |P|.
    negatives: np.ndarray  # Their number, |N|.
    sincere: np.ndarray  # The losses.
    supcon: np.ndarray


def _supcon_bound(anchors: _Anchors) -> np.ndarray:
    others = anchors.negatives + anchors.positives - 1
    return others / anchors.negatives * (np.log(others) - anchors.supcon)


# Loss -> the bound of each anchor.
_BOUNDS: dict[str, Callable[[_Anchors], np.ndarray]] = {
    "sincere": lambda a: np.log(a.negatives) - a.sincere,
    "supcon": _supcon_bound,
}


def _anchors(
    z: np.ndarray, labels: np.ndarray, temperature: float, normalize: bool
) -> _Anchors:
    views = z.shape[1]
    _, index, counts = np.unique(
        labels, return_inverse=True, return_counts=True
    )
    positives = views * counts[index] - 1
    negatives = views * (len(labels) - counts[index])
    counted = (positives > 0) & (negatives > 0)

    def of_anchors(name: str) -> np.ndarray:
        loss = losses.build(name, temperature=temperature, normalize=normalize)
        values = loss.per_anchor(tf.constant(z, tf.float32), labels).numpy()
        return values[counted].astype(np.float64).ravel()

    return _Anchors(
        np.repeat(positives[counted], views),
        np.repeat(negatives[counted], views),
        *map(of_anchors, _BOUNDS),
    )


def measure_kl(
    context: EvaluationContext,
    *,
    view_examples: int,
    kl_batch_size: int,
    seed: int,
) -> Measurement:
    """The protocol `kl_bound`, on two views of test images.

    Returns:
      Metrics "kl_lower_bound" and "sincere_loss" (nats, means over anchors),
      "upper_bound" (mean ln |N|, which "kl_lower_bound" cannot exceed),
      "supcon_kl_lower_bound" and "supcon_loss" (see `kl_lower_bound`),
      "temperature", "images". If no batch has two images of one class and one
      of another, only "kl_lower_bound": None.
    """
    _, z, labels = view_embeddings.embed_views(context, view_examples, seed)
    assert z is not None
    temperature, normalize = view_embeddings.loss_similarity(context)
    order = np.random.RandomState(seed % 2**32).permutation(len(labels))
    parts = [
        _anchors(z[rows], labels[rows].astype(np.int64), temperature, normalize)
        for rows in np.array_split(order, -(-len(order) // kl_batch_size))
    ]
    anchors = _Anchors(*map(np.concatenate, zip(*parts, strict=True)))
    if not anchors.negatives.size:
        context.log(
            f"kl_bound: no batch of {kl_batch_size} images of"
            f" {context.data.test.info.name} has two classes: no bound"
        )
        return {"metrics": {"kl_lower_bound": None}}
    bounds = {name: bound(anchors).mean() for name, bound in _BOUNDS.items()}
    return {
        "metrics": {
            "kl_lower_bound": float(bounds["sincere"]),
            "sincere_loss": float(anchors.sincere.mean()),
            "upper_bound": float(np.log(anchors.negatives).mean()),
            "supcon_kl_lower_bound": float(bounds["supcon"]),
            "supcon_loss": float(anchors.supcon.mean()),
            "temperature": temperature,
            "images": len(labels),
        }
    }


def lacks_classes(context: EvaluationContext) -> str | None:
    """Returns which data have no classes for `kl_bound` to tell apart."""
    info = context.data.test.info
    return f"{info.name} has only one class" if info.num_classes == 1 else None
