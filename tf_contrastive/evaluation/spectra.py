"""The protocol `spectrum`: which dimensions a linear projection keeps.

Chen et al. 2020 (SimCLR), appendix B.4.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.evaluation import figures, hypersphere
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.report import Measurement

# Numbers of leading values whose fraction of the sum is reported.
_TOP = (1, 10, 100)


def spectrum(
    weights: np.ndarray,
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Computes the spectrum of the [D, P] weights of a linear projection.

    Returns:
      (metrics "effective_rank" of the singular values, and "share_of_top_k",
      the sum of the first k values as a fraction of all, of eigenvalues if
      there are any; arrays "singular_values" [min(D, P)] and, of a square
      matrix, "eigenvalues" (magnitudes [D]), largest first).
    """
    w = np.asarray(weights, np.float64)
    values = singular = np.linalg.svd(w, compute_uv=False)
    arrays = {"singular_values": singular}
    if w.shape[0] == w.shape[1]:
        values = np.sort(np.abs(np.linalg.eigvals(w)))[::-1]
        arrays["eigenvalues"] = values
    total = values.sum() or 1.0
    metrics = {
        f"share_of_top_{k}": float(values[:k].sum() / total)
        for k in _TOP
        if k < len(values)
    }
    metrics["effective_rank"] = hypersphere.entropy_rank(singular)
    return metrics, arrays


def linear_map(projection: Callable, features: int) -> np.ndarray:
    """Returns W [D, P] of z = W h + b, a linear projection.

    Batch normalization in inference mode is linear and part of W.
    """

    def project(h: np.ndarray) -> np.ndarray:
        tensor = tf.constant(h, tf.float32)
        return np.asarray(projection(tensor, training=False), np.float64)

    offset = project(np.zeros([1, features]))
    return (project(np.eye(features)) - offset).astype(np.float32)


def measure(context: EvaluationContext) -> Measurement:
    """Measures the spectrum of a run's linear projection."""
    assert context.subject.projection is not None
    w = linear_map(context.subject.projection, context.subject.width)
    metrics, arrays = spectrum(w)
    return {
        "metrics": {**metrics, "rows": w.shape[0], "columns": w.shape[1]},
        "plots": {"spectrum": figures.spectrum(arrays)},
        "arrays": arrays,
    }


def lacks_linear_map(context: EvaluationContext) -> str | None:
    """Returns why `spectrum` has no linear projection to measure, or None."""
    if context.subject.run is None:
        return (
            "an export does not record the kind of its projection head: set"
            f" the {errors.arg('workdir')} of a run"
        )
    projection = context.subject.run.projection
    if len(projection.sizes(1)) != 2:
        linear = errors.arg("projection", "linear")
        return f"the projection is not linear: use a run of {linear}"
    return None
