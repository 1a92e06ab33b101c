"""Metrics of classifiers: average precision, calibration, corruption errors."""

from collections.abc import Mapping, Sequence

import numpy as np

from tf_contrastive.base.errors import UserError

# Rows of probabilities sum to 1 up to half precision.
_SUM_TOLERANCE = 1e-2
# AlexNet's errors on ImageNet-C, means over five severities, and on clean
# images (Hendrycks and Dietterich 2019).
ALEXNET = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
ALEXNET_CLEAN = 0.4348
# Confidence bins of the calibration error.
BINS = 15
SEVERITIES = (1, 2, 3, 4, 5)


def eleven_point_average_precision(
    scores: np.ndarray, labels: np.ndarray
) -> float:
    """VOC2007's average precision, a fraction.

    1/11 sum over r in {0, 0.1, ..., 1} of the best precision at recall >= r.
    Examples with equal scores are retrieved together. Scores are float [n],
    higher for examples more likely of the class; labels are int [n], 1 for
    examples of the class, 0 for others.

    Everingham et al. 2010, section 4.2; Chen et al. 2020 (SimCLR), B.8.
    """
    from sklearn import metrics

    labels = np.asarray(labels)
    # Lengths and NaN are checked by scikit-learn.
    if not np.isin(labels, [0, 1]).all() or not labels.any():
        raise UserError(
            f"labels hold {np.unique(labels).tolist()}: use 1 for examples of"
            " the class, at least one, and 0 for others"
        )
    precision, recall, _ = metrics.precision_recall_curve(labels, scores)
    # Without the last point, which belongs to no threshold. In integers, since
    # 0.3 * 10 is not 3.
    positives = int(labels.sum())
    hits = np.rint(recall[:-1] * positives)
    reached = 10 * hits >= np.arange(11)[:, np.newaxis] * positives
    best = np.where(reached, precision[:-1], 0.0).max(axis=1)
    return float(best.mean())


# ---- Calibration -------------------------------------------------------------


def reliability(
    confidences: np.ndarray, correct: np.ndarray, bins: int = BINS
) -> dict[str, np.ndarray]:
    """Accuracy as a function of confidence. Guo et al. 2017, section 2.

    Args:
      confidences: float [n] in [0, 1], probability of the predicted class.
      correct: bool [n], whether the prediction is right.
      bins: number of bins of equal width, (lo, hi]; the first contains 0.

    Returns:
      {"edges" [bins + 1], "count", "accuracy", "confidence" [bins]}; the last
      two are means over a bin's examples, 0 for an empty bin.
    """
    confidences = np.asarray(confidences, np.float64)
    correct = np.asarray(correct)
    edges = np.linspace(0, 1, bins + 1)
    rows = np.maximum(np.searchsorted(edges, confidences) - 1, 0)
    count = np.bincount(rows, minlength=bins)
    sizes = np.maximum(count, 1)
    hits = np.bincount(rows, correct.astype(np.float64), bins)
    return {
        "edges": edges,
        "count": count,
        "accuracy": hits / sizes,
        "confidence": np.bincount(rows, confidences, bins) / sizes,
    }


def calibration_error(bins: Mapping[str, np.ndarray]) -> float:
    """Expected calibration error of a result of `reliability`."""
    gaps = np.abs(bins["accuracy"] - bins["confidence"])
    return float((gaps * bins["count"]).sum() / bins["count"].sum())


def expected_calibration_error(
    probabilities: np.ndarray, labels: np.ndarray, bins: int = BINS
) -> float:
    """Mean distance between confidence and accuracy, a fraction.

    sum_m |B_m| / n |accuracy(B_m) - confidence(B_m)|, where the confidence is
    an example's largest probability. Probabilities are float [n, C], in rows
    that sum to 1; labels are int [n], below C; bins: see `reliability`.

    Guo et al. 2017, equation 3; Khosla et al. 2020 (SupCon), supplement.
    """
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels)
    is_softmax = p.ndim == 2 and np.all(
        (p >= 0) & (np.abs(p.sum(axis=1, keepdims=True) - 1) <= _SUM_TOLERANCE)
    )
    if not (is_softmax and p.size) or y.shape != p.shape[:1]:
        raise UserError(
            f"probabilities {list(p.shape)} and labels {list(y.shape)}: pass a"
            " softmax of logits, [examples, classes], and a label for each row"
        )
    # Rows may sum to a little more than 1.
    confidences = np.minimum(p.max(axis=1), 1.0)
    return calibration_error(reliability(confidences, p.argmax(1) == y, bins))


# ---- Corrupted images --------------------------------------------------------


def _check_errors(
    name: str, errors: Mapping[str, Sequence[float] | float]
) -> dict[str, np.ndarray]:
    """Returns corruption -> errors float64 [severities]."""
    arrays = {c: np.atleast_1d(np.asarray(v)) for c, v in errors.items()}
    for corruption, array in arrays.items():
        if array.ndim != 1 or not np.all((array >= 0) & (array <= 1)):
            raise UserError(
                f"{name} of {corruption} are {array.tolist()}: pass fractions"
                " of wrong predictions, from 0 to 1, one for each severity"
            )
    return arrays


def mean_corruption_error(
    errors: Mapping[str, Sequence[float]],
    clean_error: float | None = None,
    baseline: Mapping[str, Sequence[float] | float] | None = None,
    *,
    imagenet: bool = True,
) -> dict[str, float | None]:
    """Errors on corrupted images, relative to a baseline's.

    CE_c = sum_s E_sc / sum_s E_sc(baseline); mCE is its mean over corruptions.
    Relative mCE is the same for the differences to the error on clean images.

    Args:
      errors: corruption -> error at severity 1, 2, ..., fractions.
      clean_error: error on clean images, for the relative mCE.
      baseline: corruption -> its errors, or their mean, for every corruption in
        `errors`; and "clean" -> its error on clean images. None: AlexNet's, for
        ImageNet-C's 15 corruptions at 5 severities; other corruptions are then
        ignored.
      imagenet: whether the images are ImageNet's; AlexNet's errors apply only
        to these.

    Returns:
      {"mce", "relative_mce"}, percent; None without a baseline, or without
      errors on clean images.

    Hendrycks and Dietterich 2019, section 4.
    """
    ours = _check_errors("errors", errors)
    if baseline is None:
        ours = {name: ours[name] for name in ALEXNET if name in ours}
        severities = [len(values) for values in ours.values()]
        if not imagenet or severities != [len(SEVERITIES)] * len(ALEXNET):
            return {"mce": None, "relative_mce": None}
        baseline = {**ALEXNET, "clean": ALEXNET_CLEAN}
    theirs = _check_errors("errors of the baseline", baseline)
    missing = sorted(ours.keys() - theirs.keys())
    if missing:
        raise UserError(
            f"the baseline lacks {', '.join(missing)}: add its errors on every"
            " corruption, as {corruption: errors}"
        )
    means = np.array([values.mean() for values in ours.values()])
    bases = np.array([theirs[name].mean() for name in ours])
    clean = theirs.get("clean")
    relative = None
    if clean_error is not None and clean is not None:
        [own] = _check_errors("errors", {"clean": clean_error})["clean"]
        relative = _ratio(means - own, bases - clean[0])
    return {"mce": _ratio(means, bases), "relative_mce": relative}


def _ratio(ours: np.ndarray, theirs: np.ndarray) -> float:
    return 100 * float((ours / theirs).mean())
