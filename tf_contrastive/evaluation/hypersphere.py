"""How representations are spread over the hypersphere.

The protocol `uniformity`: alignment and uniformity of Wang and Isola 2020, and
how far random projections are from Gaussian.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats

from tf_contrastive import classifiers, errors
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.protocols import RepresentationProtocols
from tf_contrastive.evaluation import plots, projected

_FIELDS = RepresentationProtocols
# Rows compared at a time, with all others: 1024 x 10,000 float32 are 40 MiB.
_BLOCK = 1024
# Wang and Isola 2020: uniformity is log E exp(-2 |x - y|^2).
_UNIFORMITY_SCALE = 2.0


def effective_rank(embeddings: np.ndarray) -> float:
    """How many dimensions the embeddings use, 1 to min(n, D).

    The exponential of the entropy of the normalised singular values of the
    centred embeddings.

    Args:
      embeddings: float [n, D].

    Raises:
      UserError: for NaN, or shapes that do not fit.

    Roy and Vetterli 2007.
    """
    x = classifiers.check_embeddings("embeddings", embeddings)
    x = x - x.mean(axis=0, dtype=np.float64)
    # The smaller Gram matrix, in float64: far faster than singular values of
    # tall arrays, and exact enough for what is not tiny.
    gram = x.T @ x if len(x) >= x.shape[1] else x @ x.T
    return rank_of(np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0)))


def rank_of(values: np.ndarray) -> float:
    """Returns the exponential of the entropy of non-negative values."""
    total = values.sum()
    if not total > 0:
        return 1.0
    return float(np.exp(scipy.stats.entropy(values / total)))


def alignment(projections: np.ndarray) -> float:
    """Mean |x - y|^2 over pairs of views of an image, l2-normalised.

    Args:
      projections: float [n, V, P], V at least 2.

    Returns:
      0 (all views of an image are one point) to 4; 2 at random.

    Raises:
      UserError: for NaN, or shapes that do not fit.

    Wang and Isola 2020, equation for alpha = 2.
    """
    z = projected.normalized(projected.check_views(projections, 1)).astype(
        np.float64
    )
    views = z.shape[1]
    # |sum of views|^2 holds every ordered pair, and each view with itself.
    pairs = (z.sum(axis=1) ** 2).sum(axis=1) - (z**2).sum(axis=(1, 2))
    return float(2 - 2 * (pairs / (views * (views - 1))).mean())


def uniformity(embeddings: np.ndarray) -> float:
    """Log of the mean of exp(-2 |x - y|^2) over pairs, l2-normalised.

    Args:
      embeddings: float [n, P], n at least 2.

    Returns:
      0 (all is one point) down to about -4 (spread over the hypersphere).

    Raises:
      UserError: for NaN, or less than two rows.

    Wang and Isola 2020, equation for t = 2.
    """
    rows = classifiers.check_embeddings("embeddings", embeddings)
    _check_rows(rows, 2)
    z = classifiers.normalize(rows)
    total = 0.0
    for start in range(0, len(z), _BLOCK):
        # Of rows of length 1, |x - y|^2 = 2 - 2 x.y.
        part = z[start : start + _BLOCK]
        e = np.exp(2 * _UNIFORMITY_SCALE * (part @ z.T - 1))
        own = np.arange(len(part))
        e[own, start + own] = 0.0
        total += float(e.sum(dtype=np.float64))
    return float(np.log(total / (len(z) * (len(z) - 1))))


def _check_rows(rows: np.ndarray, least: int) -> None:
    if len(rows) < least:
        raise errors.UserError(
            f"embeddings have {len(rows)} row(s): give at least {least}"
        )


def random_projections(
    embeddings: np.ndarray,
    count: int = _FIELDS.random_directions,
    *,
    normalize: bool = True,
    seed: int = Evaluation.seed,
) -> dict[str, np.ndarray]:
    """Projects embeddings on random orthogonal directions.

    Uniform on the hypersphere, they would look Gaussian; the Kolmogorov-Smirnov
    distances say how far they are from that.

    Args:
      embeddings: float [n, P], n at least 2.
      count: directions, at most P.
      normalize: l2-normalise the embeddings first, and compare them with the
        uniform hypersphere; False: with the standard normal distribution.
      seed: of the directions.

    Returns:
      {"projections" [n, k], and of each direction [k] "ks_prior" (distance of
      its distribution to that of the prior, 0 to 1), "ks_normal" (to the normal
      distribution of its own mean and deviation) and "kurtosis" (excess)}.

    Raises:
      UserError: for NaN, less than two rows, or count < 1.

    Chen et al. 2021 (Intriguing Properties), appendix B, figure B.1.
    """
    rows = classifiers.check_embeddings("embeddings", embeddings)
    _check_rows(rows, 2)
    if count < 1:
        raise errors.UserError(f"count={count}: give at least 1 direction")
    if normalize:
        rows = classifiers.normalize(rows)
    size = rows.shape[1]
    random = np.random.RandomState(seed % 2**32)
    # A QR decomposition whose R has a positive diagonal is uniform.
    directions, r = np.linalg.qr(random.normal(size=(size, min(count, size))))
    directions = directions * np.sign(np.diag(r))
    found = rows.astype(np.float64) @ directions
    prior = _sphere_marginal(size) if normalize else scipy.stats.norm.cdf
    return {
        "projections": found.astype(np.float32),
        "ks_prior": np.array([_ks(x, prior) for x in found.T]),
        "ks_normal": np.array([_ks_normal(x) for x in found.T]),
        "kurtosis": np.array(
            [scipy.stats.kurtosis(x) if np.ptp(x) else 0.0 for x in found.T]
        ),
    }


def _sphere_marginal(size: int) -> Callable:
    """The distribution function of a coordinate on the sphere in R^size."""
    if size == 1:  # Two points.
        return lambda x: np.where(x < -1, 0.0, np.where(x < 1, 0.5, 1.0))
    half = (size - 1) / 2
    return scipy.stats.beta(half, half, loc=-1, scale=2).cdf


def _ks(values: np.ndarray, cdf: Callable) -> float:
    return float(scipy.stats.kstest(values, cdf).statistic)


def _ks_normal(values: np.ndarray) -> float:
    deviation = values.std()
    if not deviation > 0:
        return 0.5  # A point against any normal distribution around it.
    return _ks(values, scipy.stats.norm(values.mean(), deviation).cdf)


def measure(
    subject: Any,
    *,
    view_examples: int = _FIELDS.view_examples,
    random_directions: int = _FIELDS.random_directions,
    seed: int = Evaluation.seed,
) -> dict[str, Any]:
    """The protocol `uniformity`: how h and z are spread.

    Alignment is of two augmented views of test images; all else of test images
    as they are.

    Args:
      subject: an encoder under evaluation, see `subject.Subject`.
      view_examples: test images of which views are made, at most.
      random_directions: orthogonal directions of the histograms.
      seed: which images, and which directions.

    Returns:
      A measurement: metrics "alignment_x", "uniformity_x", "effective_rank_x",
      "ks_prior_x", "ks_normal_x" and "kurtosis_x" (means over directions), of
      x = h and, where there is a projection, z; a plot and an array of random
      projections.
    """
    made = projected.embed(subject, view_examples, seed)
    _, normalize = projected.comparison(subject)
    spaces = {"h": (made.h, subject.embeddings("test")[0], True)}
    if made.z is not None:
        z = subject.projections("test")[0]
        spaces["z"] = (made.z, z, normalize)
    found: dict[str, Any] = {"metrics": {}, "plots": {}, "arrays": {}}
    for name, (views, rows, unit) in spaces.items():
        rows = rows[projected.sample(len(rows), view_examples, seed)]
        histograms = random_projections(
            rows, random_directions, normalize=unit, seed=seed
        )
        means = {
            key: float(histograms[key].mean())
            for key in ("ks_prior", "ks_normal", "kurtosis")
        }
        values = {
            "alignment": alignment(views),
            "uniformity": uniformity(rows),
            "effective_rank": effective_rank(rows),
            **means,
        }
        found["metrics"] |= {f"{k}_{name}": v for k, v in values.items()}
        plot = f"random_projections_{name}"
        found["arrays"][plot] = histograms["projections"]
        found["plots"][plot] = plots.projection_histograms(histograms)
    return found
