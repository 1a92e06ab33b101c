"""Bounds of a divergence by a loss.

The protocol `kl_bound`: Feeney and Hughes 2024 (SINCERE), theorem 11.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from scipy import special

from tf_contrastive import classifiers, errors, losses
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.protocols import RepresentationProtocols
from tf_contrastive.evaluation import projected

_FIELDS = RepresentationProtocols


def density_ratio_bound(target: np.ndarray, noise: np.ndarray) -> float:
    """A lower bound of KL(p-||p+) + KL(p+||p-), by scores of their samples.

    ln n - L, L = mean of -log(exp f(x) / (exp f(x) + sum_n exp f(x_n))), the
    loss of telling a sample x of p+ among n of p-. It is tightest for the
    density ratio, f = log p+ - log p-.

    Args:
      target: float [k], scores f of samples of p+.
      noise: float [k, n], scores of as many rounds of samples of p-.

    Returns:
      Nats; below 0 where the scores tell less than chance.

    Raises:
      UserError: for NaN, or shapes that do not fit.

    Feeney and Hughes 2024 (SINCERE), equations 9, 10 and 11.
    """
    target = np.asarray(target, np.float64)
    noise = np.asarray(noise, np.float64)
    fits = target.ndim == 1 and noise.shape[:1] == target.shape
    if not fits or noise.ndim != 2 or not noise.size:
        raise errors.UserError(
            f"target {list(target.shape)} and noise {list(noise.shape)}: give"
            " scores [k] and [k, n], at least one of each"
        )
    if not (np.isfinite(target).all() and np.isfinite(noise).all()):
        raise errors.UserError(
            "target or noise hold NaN or infinity: give finite scores"
        )
    odds = special.logsumexp(noise, axis=1) - target
    return float(np.log(noise.shape[1]) - np.logaddexp(0, odds).mean())


def kl_lower_bound(
    projections: np.ndarray,
    labels: np.ndarray,
    temperature: float,
    *,
    normalize: bool = True,
) -> float:
    """A lower bound of the symmetric divergence of classes from the noise.

    The mean of ln |N(i)| - SINCERE's loss of i, over anchors i that have
    positives and negatives in the batch. (The authors' code adds 1 to |N|,
    which the theorem does not.)

    Args:
      projections: float [B, V, P] of one batch of held-out images; all are
        compared with all.
      labels: int [B].
      temperature: what similarities are divided by, above 0.
      normalize: l2-normalise the projections first.

    Returns:
      Nats.

    Raises:
      UserError: for NaN, shapes that do not fit, or no such anchor.

    Feeney and Hughes 2024 (SINCERE), theorem 11.
    """
    logs, per_anchor = _of_anchors(projections, labels, temperature, normalize)
    if not logs.size:
        raise errors.UserError(
            "no image has both another of its class and one of another class"
            " beside it: give a batch of at least two classes, and two views"
            " or two images of one"
        )
    return float((logs - per_anchor).mean())


def _of_anchors(projections, labels, temperature, normalize):
    """(ln |N(i)|, SINCERE's loss) of the anchors that have both, [k] each."""
    z = np.asarray(projections)
    if z.ndim != 3 or not z.size:
        raise errors.UserError(
            f"projections have shape {list(z.shape)}: give [images, views,"
            " features], at least one of each"
        )
    if not temperature > 0:
        raise errors.UserError(f"temperature={temperature}: must be above 0")
    classifiers.check_embeddings("projections", z.reshape(-1, z.shape[-1]))
    labels = classifiers.check_labels("labels", labels, z)
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
    subject: Any,
    *,
    view_examples: int = _FIELDS.view_examples,
    kl_batch_size: int = _FIELDS.kl_batch_size,
    seed: int = Evaluation.seed,
) -> dict[str, Any]:
    """The protocol `kl_bound`: of test images, two views each.

    Args:
      subject: an encoder under evaluation, see `subject.Subject`.
      view_examples: test images that it is measured on, at most.
      kl_batch_size: images compared with one another, at most; their number
        bounds the bound.
      seed: which images stand in one batch.

    Returns:
      A measurement: metrics "kl_lower_bound" and "sincere_loss" (nats, means
      over anchors), "most" (mean ln |N|, which the bound cannot exceed),
      "temperature", "images"; where no batch has two images of one class and
      one of another, "kl_lower_bound" is None, and alone.
    """
    made = projected.embed(subject, view_examples, seed)
    temperature, normalize = projected.comparison(subject)
    order = np.random.RandomState(seed % 2**32).permutation(len(made.labels))
    parts = [
        _of_anchors(made.z[rows], made.labels[rows], temperature, normalize)
        for rows in np.array_split(order, -(-len(order) // kl_batch_size))
    ]
    logs, found = map(np.concatenate, zip(*parts, strict=True))
    if not logs.size:
        subject.say(
            f"kl_bound: no batch of {kl_batch_size} images of"
            f" {subject.test.info.name} has two classes: no bound"
        )
        return {"metrics": {"kl_lower_bound": None}}
    return {
        "metrics": {
            "kl_lower_bound": float((logs - found).mean()),
            "sincere_loss": float(found.mean()),
            "most": float(logs.mean()),
            "temperature": temperature,
            "images": len(made.labels),
        }
    }


def needs(subject: Any) -> str | None:
    """What keeps `kl_bound` from being measured, in one line, or None."""
    if not subject.has_labels:
        return f"{subject.test.info.name} has no labels"
    if subject.num_classes < 2:
        return f"{subject.test.info.name} has one class alone"
    return projected.needs(subject)
