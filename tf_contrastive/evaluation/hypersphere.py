"""Distribution of representations on the hypersphere.

The protocol `uniformity`: alignment and uniformity of Wang and Isola 2020, and
the distance of random projections from a Gaussian.
"""

import numpy as np
import scipy.stats

from tf_contrastive import classifiers
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.evaluation import figures, view_embeddings
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.report import Measurement

# Rows compared with all others at a time: 1024 x 10,000 float32 are 40 MiB.
BLOCK = 1024
# Wang and Isola 2020: uniformity is log E exp(-2 |x - y|^2).
_UNIFORMITY_SCALE = 2.0
# Random orthogonal directions.
DIRECTIONS = 12


def effective_rank(embeddings: np.ndarray) -> float:
    """Effective number of dimensions of embeddings [n, D], 1 to min(n, D).

    The exponential of the entropy of the normalized singular values of the
    centred embeddings. Roy and Vetterli 2007.
    """
    x = classifiers.check_embeddings("embeddings", embeddings)
    x = x - x.mean(axis=0, dtype=np.float64)
    # Eigenvalues of the smaller Gram matrix, in float64, are much faster than
    # singular values, and precise enough for all but tiny values.
    gram = x.T @ x if len(x) >= x.shape[1] else x @ x.T
    return entropy_rank(np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0)))


def entropy_rank(values: np.ndarray) -> float:
    """Exponential of the entropy of normalized non-negative values."""
    total = values.sum()
    if not total > 0:
        return 1.0
    return float(np.exp(scipy.stats.entropy(values / total)))


def alignment(projections: np.ndarray) -> float:
    """Mean |x - y|^2 over pairs of views of an image, l2-normalized.

    Projections are float [n, V, P], V at least 2. From 0 (all views of an image
    coincide) to 4; 2 for random views.

    Wang and Isola 2020, alignment loss with alpha = 2.
    """
    z = view_embeddings.check_views(projections, 1)
    z = view_embeddings.normalize_views(z).astype(np.float64)
    views = z.shape[1]
    # |sum of views|^2 contains every ordered pair, and each view with itself.
    pairs = (z.sum(axis=1) ** 2).sum(axis=1) - (z**2).sum(axis=(1, 2))
    return float(2 - 2 * (pairs / (views * (views - 1))).mean())


def uniformity(embeddings: np.ndarray) -> float:
    """Log of the mean of exp(-2 |x - y|^2) over pairs, l2-normalized.

    Embeddings are float [n, P], n at least 2. From 0 (all rows coincide) down
    to about -4 (uniform on the hypersphere).

    Wang and Isola 2020, uniformity loss with t = 2.
    """
    z = classifiers.normalize(
        classifiers.check_embeddings("embeddings", embeddings)
    )
    total = 0.0
    for start in range(0, len(z), BLOCK):
        # Of rows of length 1, |x - y|^2 = 2 - 2 x.y.
        part = z[start : start + BLOCK]
        e = np.exp(2 * _UNIFORMITY_SCALE * (part @ z.T - 1))
        own = np.arange(len(part))
        e[own, start + own] = 0.0
        total += float(e.sum(dtype=np.float64))
    return float(np.log(total / (len(z) * (len(z) - 1))))


def random_projections(
    embeddings: np.ndarray,
    count: int = DIRECTIONS,
    *,
    normalize: bool = True,
    seed: int = Evaluation.seed,
) -> dict[str, np.ndarray]:
    """Projects embeddings on random orthogonal directions.

    Projections of a uniform distribution on the hypersphere look Gaussian.

    Args:
      embeddings: float [n, P], n at least 2.
      count: number of directions, at most P.
      normalize: whether to l2-normalize the embeddings.
      seed: seed of the directions.

    Returns:
      {"projections" float32 [n, k], "ks_normal" [k]: each one's Kolmogorov-
      Smirnov distance to the normal distribution of its mean and deviation}.

    Chen et al. 2021 (Intriguing Properties), appendix B, figure B.1.
    """
    rows = classifiers.check_embeddings("embeddings", embeddings)
    if normalize:
        rows = classifiers.normalize(rows)
    size = rows.shape[1]
    random = np.random.RandomState(seed % 2**32)
    # With a positive diagonal of R, the directions are uniformly distributed.
    directions, r = np.linalg.qr(random.normal(size=(size, min(count, size))))
    directions = directions * np.sign(np.diag(r))
    projections = rows.astype(np.float64) @ directions
    return {
        "projections": projections.astype(np.float32),
        "ks_normal": np.array([_ks_normal(x) for x in projections.T]),
    }


def _ks_normal(values: np.ndarray) -> float:
    deviation = values.std()
    if not deviation > 0:
        return 0.5  # The distance of a point from a normal around it.
    normal = scipy.stats.norm(values.mean(), deviation)
    return float(scipy.stats.kstest(values, normal.cdf).statistic)


def measure(
    context: EvaluationContext, *, view_examples: int, seed: int
) -> Measurement:
    """The protocol `uniformity`: the distribution of h and of z.

    Alignment is measured on two augmented views of test images, everything else
    on the unaugmented test images. "ks_normal" is a mean over directions.
    """
    views = view_embeddings.embed_views(context, view_examples, seed)
    _, normalize = view_embeddings.loss_similarity(context)
    spaces = {"h": (views.h, context.embeddings("test")[0], True)}
    if views.z is not None:
        z = context.projections("test")[0]
        spaces["z"] = (views.z, z, normalize)
    measurement: Measurement = {"metrics": {}, "plots": {}, "arrays": {}}
    for space, (pairs, rows, unit_length) in spaces.items():
        rows = rows[view_embeddings.sample(len(rows), view_examples, seed)]
        histograms = random_projections(rows, normalize=unit_length, seed=seed)
        values = {
            "alignment": alignment(pairs),
            "uniformity": uniformity(rows),
            "effective_rank": effective_rank(rows),
            "ks_normal": float(histograms["ks_normal"].mean()),
        }
        measurement["metrics"] |= {f"{k}_{space}": v for k, v in values.items()}
        name = f"random_projections_{space}"
        measurement["arrays"][name] = histograms["projections"]
        measurement["plots"][name] = figures.random_projections(histograms)
    return measurement
