"""Spectra: how many dimensions embeddings use, and linear projections keep.

The protocol `spectrum`, of a run whose projection is linear.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.evaluation import hypersphere, projected
from tf_contrastive.papers.figures import plots

# Shares of the spectrum that are reported.
_TOP = (1, 10, 100)
# A map whose answers differ by more than this from its matrix is not linear.
_LINEAR_TOLERANCE = 1e-3


def spectrum(weights: np.ndarray) -> dict[str, Any]:
    """The spectrum of a linear projection z = W h.

    Args:
      weights: float [D, P].

    Returns:
      {"singular_values" [min(D, P)], largest first, "eigenvalues" (magnitudes
      |e| [D], largest first; None unless W is square), "shares" {k: share of
      the sum of the first k of the magnitudes: of eigenvalues where there are,
      else of singular values}, "effective_rank" (of singular values)}.

    Raises:
      UserError: for NaN, or another shape.

    Chen et al. 2020 (SimCLR), appendix B.4: few are large, so that W is of low
    rank. W is not symmetric, and its eigenvalues are complex.
    """
    w = np.asarray(weights, np.float64)
    if w.ndim != 2 or not w.size:
        raise errors.UserError(
            f"weights have shape {list(w.shape)}: give [features, projections]"
        )
    if not np.isfinite(w).all():
        raise errors.UserError(
            "weights hold NaN or infinity: look for a diverged run"
        )
    singular = np.linalg.svd(w, compute_uv=False)
    eigenvalues = None
    if w.shape[0] == w.shape[1]:
        eigenvalues = np.sort(np.abs(np.linalg.eigvals(w)))[::-1]
    values = singular if eigenvalues is None else eigenvalues
    total = values.sum() or 1.0
    return {
        "singular_values": singular,
        "eigenvalues": eigenvalues,
        "shares": {
            k: float(values[:k].sum() / total) for k in _TOP if k < len(values)
        },
        "effective_rank": hypersphere.rank_of(singular),
    }


def linear_map(projection: Callable, features: int) -> np.ndarray | None:
    """Finds W of z = W h + b, or that there is none.

    Args:
      projection: h [n, D] -> z [n, P] with `training=`, in inference mode
        batch normalization is linear, too, and part of W.
      features: D.

    Returns:
      float32 [D, P], or None where the projection is not linear.
    """

    def project(h):
        h = tf.constant(h, tf.float32)
        return np.asarray(projection(h, training=False), np.float64)

    offset = project(np.zeros([1, features]))
    w = project(np.eye(features)) - offset
    h = np.random.RandomState(0).normal(size=(16, features))
    z = project(h)
    scale = np.abs(z - offset).max() or 1.0
    if np.abs(h @ w + offset - z).max() > _LINEAR_TOLERANCE * scale:
        return None
    return w.astype(np.float32)


def measure(subject: Any) -> dict[str, Any]:
    """The protocol `spectrum`, of a run whose projection is linear.

    Args:
      subject: an encoder under evaluation, see `subject.Subject`.

    Returns:
      A measurement: metrics "share_of_top_k" (of the magnitudes' sum, by
      eigenvalues where W is square, else by singular values),
      "effective_rank", "rows", "columns"; a plot; arrays of all values.

    Raises:
      UserError: if the projection is not linear.
    """
    features = subject.embeddings("test")[0].shape[1]
    w = linear_map(subject.projection, features)
    if w is None:
        raise errors.UserError(
            "the projection is not linear, and has no spectrum: evaluate a run"
            " of projection=linear"
        )
    found = spectrum(w)
    arrays = {"singular_values": found["singular_values"]}
    if found["eigenvalues"] is not None:
        arrays["eigenvalues"] = found["eigenvalues"]
    return {
        "metrics": {
            **{
                f"share_of_top_{k}": share
                for k, share in found["shares"].items()
            },
            "effective_rank": found["effective_rank"],
            "rows": w.shape[0],
            "columns": w.shape[1],
        },
        "plots": {"spectrum": plots.spectrum(found)},
        "arrays": arrays,
    }


def needs(subject: Any) -> str | None:
    """What keeps `spectrum` from being measured, in one line, or None."""
    if missing := projected.needs(subject):
        return missing
    kind = subject.run.projection.projection if subject.run else "linear"
    if kind != "linear":
        return f"the projection is {kind}, not linear (projection=linear)"
    return None
