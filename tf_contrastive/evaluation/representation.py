"""What representations look like: spread, rank, Gaussianity, and the task.

The protocols `contrastive`, `uniformity` and `spectrum`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats
import tensorflow as tf

from tf_contrastive import classifiers, config
from tf_contrastive.evaluation import pictures, projected, statistics

_FIELDS = config.RepresentationProtocols
# Rows compared at a time, with all others: 1024 x 10,000 float32 are 40 MiB.
_BLOCK = 1024
# Wang and Isola 2020: uniformity is log E exp(-2 |x - y|^2).
_UNIFORMITY_SCALE = 2.0
# Shares of the spectrum that are reported.
_TOP = (1, 10, 100)
# A map whose answers differ by more than this from its matrix is not linear.
_LINEAR_TOLERANCE = 1e-3


def _check_views(projections: np.ndarray, least: int) -> np.ndarray:
    z = np.asarray(projections)
    if z.ndim != 3 or not z.size or z.shape[1] < 2 or len(z) < least:
        raise config.UserError(
            f"projections have shape {list(z.shape)}: give [images, views,"
            f" features] of at least {least} image(s), 2 views and 1 feature"
        )
    flat = classifiers.check_embeddings("projections", z.reshape(len(z), -1))
    return flat.reshape(z.shape)


# ---- The contrastive task ----------------------------------------------------


def contrastive_accuracy(
    projections: np.ndarray,
    temperature: float,
    *,
    batch_size: int = _FIELDS.contrastive_batch_size,
    normalize: bool = True,
    seed: int = config.Evaluation.seed,
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
    z = _check_views(projections, 2)
    if not temperature > 0:
        raise config.UserError(f"temperature={temperature}: must be above 0")
    if batch_size < 2:
        raise config.UserError(f"batch_size={batch_size}: give at least 2")
    if normalize:
        z = _normalized(z)
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


def _normalized(z: np.ndarray) -> np.ndarray:
    """`z` [n, V, P] at length 1."""
    return classifiers.normalize(z.reshape(-1, z.shape[-1])).reshape(z.shape)


# ---- On the hypersphere ------------------------------------------------------


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
    z = _normalized(_check_views(projections, 1)).astype(np.float64)
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
        raise config.UserError(
            f"embeddings have {len(rows)} row(s): give at least {least}"
        )


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
    return _rank_of(np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0)))


def _rank_of(values: np.ndarray) -> float:
    """The exponential of the entropy of what is no less than 0."""
    total = values.sum()
    if not total > 0:
        return 1.0
    return float(np.exp(scipy.stats.entropy(values / total)))


def random_projections(
    embeddings: np.ndarray,
    count: int = _FIELDS.random_directions,
    *,
    normalize: bool = True,
    seed: int = config.Evaluation.seed,
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
        raise config.UserError(f"count={count}: give at least 1 direction")
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


# ---- Linear projections ------------------------------------------------------


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
        raise config.UserError(
            f"weights have shape {list(w.shape)}: give [features, projections]"
        )
    if not np.isfinite(w).all():
        raise config.UserError(
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
        "effective_rank": _rank_of(singular),
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


# ---- The protocols -----------------------------------------------------------


def measure_contrastive(
    subject: Any,
    *,
    view_examples: int = _FIELDS.view_examples,
    contrastive_batch_size: int = _FIELDS.contrastive_batch_size,
    seed: int = config.Evaluation.seed,
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


def measure_uniformity(
    subject: Any,
    *,
    view_examples: int = _FIELDS.view_examples,
    random_directions: int = _FIELDS.random_directions,
    seed: int = config.Evaluation.seed,
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
        found["plots"][plot] = pictures.projection_histograms(histograms)
    return found


def measure_spectrum(subject: Any) -> dict[str, Any]:
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
        raise config.UserError(
            "the projection is not linear, and has no spectrum: evaluate a run"
            " of --projection=linear"
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
        "plots": {"spectrum": pictures.spectrum(found)},
        "arrays": arrays,
    }


def needs_spectrum(subject: Any) -> str | None:
    """What keeps `spectrum` from being measured, in one line, or None."""
    if missing := projected.needs(subject):
        return missing
    kind = subject.run.projection.projection if subject.run else "linear"
    if kind != "linear":
        return f"the projection is {kind}, not linear (--projection=linear)"
    return None
