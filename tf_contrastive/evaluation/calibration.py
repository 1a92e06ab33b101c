"""Calibration, errors on corrupted images, and average precision."""

from collections.abc import Mapping, Sequence

import numpy as np

from tf_contrastive.errors import UserError

# AlexNet's errors on ImageNet-C, means over five severities (Hendrycks and
# Dietterich 2019), and on clean images.
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
SEVERITIES = 5
# Other names of the same corruptions.
_ALIASES = {
    "gaussian": "gaussian_noise",
    "shot": "shot_noise",
    "impulse": "impulse_noise",
    "defocus": "defocus_blur",
    "glass": "glass_blur",
    "frosted_glass_blur": "glass_blur",
    "motion": "motion_blur",
    "zoom": "zoom_blur",
    "elastic": "elastic_transform",
    "jpeg": "jpeg_compression",
}
# Rows of probabilities sum to 1 within half precision.
_SUM_TOLERANCE = 1e-2


# ---- Calibration -------------------------------------------------------------


def reliability(
    confidences: np.ndarray, correct: np.ndarray, bins: int = 15
) -> dict[str, np.ndarray]:
    """How often a classifier is right, by how sure it says it is.

    Args:
      confidences: float [n] in [0, 1], probability of the predicted class.
      correct: bool [n], whether that is the right one.
      bins: of equal width, (lo, hi]; 0 falls into the first.

    Returns:
      {"edges" [bins + 1], and of each bin "count" int [bins], "accuracy" and
      "confidence" [bins], means over its examples, 0 where it has none}.

    Raises:
      UserError: for no example, NaN, or values out of range.

    Guo et al. 2017, section 2.
    """
    if bins < 1:
        raise UserError(f"bins={bins}: give at least 1")
    confidences = np.asarray(confidences, np.float64)
    correct = np.asarray(correct)
    if confidences.ndim != 1 or not confidences.size:
        raise UserError(
            f"confidences have shape {list(confidences.shape)}: give one for"
            " each example, at least one"
        )
    if correct.shape != confidences.shape:
        raise UserError(
            f"correct has shape {list(correct.shape)}: give one value for each"
            f" of the {len(confidences)} confidences"
        )
    bad = np.flatnonzero(~((confidences >= 0) & (confidences <= 1)))
    if bad.size:
        raise UserError(
            f"confidence {bad[0]} is {confidences[bad[0]]:g}: give"
            " probabilities from 0 to 1"
        )
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
    """The expected calibration error of what `reliability` returns."""
    gaps = np.abs(bins["accuracy"] - bins["confidence"])
    return float((gaps * bins["count"]).sum() / bins["count"].sum())


def check_probabilities(
    probabilities: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns both, as float64 [n, C] and int64 [n], or says what is wrong."""
    p = np.asarray(probabilities, np.float64)
    y = np.asarray(labels)
    if p.ndim != 2 or not p.size:
        raise UserError(
            f"probabilities have shape {list(p.shape)}: give [examples,"
            " classes], at least one of each"
        )
    sums = p.sum(axis=1)
    good = (p >= 0).all(axis=1) & (np.abs(sums - 1) <= _SUM_TOLERANCE)
    bad = np.flatnonzero(~good)
    if bad.size:
        raise UserError(
            f"row {bad[0]} of probabilities sums to {sums[bad[0]]:g}, its least"
            f" is {p[bad[0]].min():g}: give probabilities (softmax of logits)"
        )
    if y.shape != (len(p),) or not np.issubdtype(y.dtype, np.integer):
        raise UserError(
            f"labels are {y.dtype} {list(y.shape)}: give an integer class id"
            f" for each of the {len(p)} rows of probabilities"
        )
    wrong = np.flatnonzero((y < 0) | (y >= p.shape[1]))
    if wrong.size:
        raise UserError(
            f"label {wrong[0]} is {y[wrong[0]]}: give 0 to {p.shape[1] - 1},"
            " the columns of probabilities"
        )
    return p, y.astype(np.int64)


def expected_calibration_error(
    probabilities: np.ndarray, labels: np.ndarray, bins: int = 15
) -> float:
    """How far, on average, confidence is from accuracy.

    sum_m |B_m| / n |accuracy(B_m) - confidence(B_m)|, confidence being the
    largest probability of an example.

    Args:
      probabilities: float [n, C], rows that sum to 1.
      labels: int [n], below C.
      bins: of equal width, (lo, hi].

    Returns:
      A fraction, 0 for a calibrated classifier.

    Raises:
      UserError: for rows that are no probabilities, or labels out of range.

    Guo et al. 2017, equation 3; Khosla et al. 2020 (SupCon), supplement.
    """
    p, y = check_probabilities(probabilities, labels)
    # Rows may sum to a little more than 1.
    confidences = np.minimum(p.max(axis=1), 1.0)
    correct = p.argmax(axis=1) == y
    return calibration_error(reliability(confidences, correct, bins))


# ---- Corruptions -------------------------------------------------------------


def _check_errors(
    name: str, errors: Mapping[str, Sequence[float] | float]
) -> dict[str, np.ndarray]:
    """Returns corruption -> errors float64 [severities], checked."""
    if not errors:
        raise UserError(f"no {name}: give at least one corruption")
    found = {}
    for corruption, values in errors.items():
        array = np.atleast_1d(np.asarray(values, np.float64))
        known = _ALIASES.get(corruption, corruption)
        if array.ndim != 1 or not array.size:
            raise UserError(
                f"{name} of {corruption} have shape {list(array.shape)}: give"
                " one error for each severity"
            )
        if not ((array >= 0) & (array <= 1)).all():
            raise UserError(
                f"{name} of {corruption} are {array.tolist()}: give shares of"
                " wrong predictions, from 0 to 1"
            )
        if known in found:
            raise UserError(f"{name} hold {known} twice: give it once")
        found[known] = array
    return found


def mean_error(errors: Mapping[str, Sequence[float]]) -> float:
    """The unnormalised mean error over corruptions and severities, percent.

    Args:
      errors: corruption -> error at each severity, fractions.

    Raises:
      UserError: for no corruption, or errors out of range.
    """
    checked = _check_errors("errors", errors)
    return 100 * float(np.mean([e.mean() for e in checked.values()]))


def mean_corruption_error(
    errors: Mapping[str, Sequence[float]],
    clean_error: float | None = None,
    baseline: Mapping[str, Sequence[float] | float] | None = None,
    *,
    imagenet: bool = True,
) -> dict[str, float | None]:
    """Errors on corrupted images, relative to those of a baseline.

    CE_c = sum_s E_sc / sum_s E_sc(baseline), and mCE its mean over corruptions;
    relative mCE: the same of what each loses against clean images.

    Args:
      errors: corruption -> error at severity 1, 2, ..., fractions.
      clean_error: error on clean images, for the relative mCE.
      baseline: corruption -> its errors likewise, or their mean, of every
        corruption in `errors`; and "clean" -> its error on clean images. None:
        AlexNet's, of ImageNet's 15 corruptions at 5 severities (others beside
        them are left out).
      imagenet: whether the images are ImageNet's: AlexNet's errors say nothing
        of other data.

    Returns:
      {"mce", "relative_mce"}, percent; None where there is nothing to divide
      by (see `mean_error`), or no error on clean images.

    Raises:
      UserError: for errors out of range, or a baseline that lacks some.

    Hendrycks and Dietterich 2019, section 4.
    """
    found = _check_errors("errors", errors)
    if baseline is None:
        complete = ALEXNET.keys() <= found.keys()
        if not imagenet or not complete:
            return {"mce": None, "relative_mce": None}
        found = {name: found[name] for name in ALEXNET}
        if any(len(values) != SEVERITIES for values in found.values()):
            return {"mce": None, "relative_mce": None}
        baseline = {**ALEXNET, "clean": ALEXNET_CLEAN}
    theirs = _check_errors("errors of the baseline", baseline)
    lacking = sorted(found.keys() - theirs.keys())
    if lacking:
        raise UserError(
            f"the baseline lacks {', '.join(lacking)}: give its errors on every"
            " corruption, as {corruption: errors}"
        )
    for name, values in found.items():
        if len(theirs[name]) not in (1, len(values)):
            raise UserError(
                f"the baseline has {len(theirs[name])} errors of {name}, and"
                f" there are {len(values)}: give as many, or their mean"
            )
    means = np.array([values.mean() for values in found.values()])
    bases = np.array([theirs[name].mean() for name in found])
    clean = theirs.get("clean")
    relative = None
    if clean_error is not None and clean is not None:
        clean_error = _check_errors("errors", {"clean": clean_error})["clean"]
        relative = _ratio(means - clean_error[0], bases - clean[0])
    return {"mce": _ratio(means, bases), "relative_mce": relative}


def _ratio(ours: np.ndarray, theirs: np.ndarray) -> float:
    if (theirs == 0).any():
        raise UserError(
            "the baseline makes no error, or loses nothing, on some corruption:"
            " nothing can be measured against it; give another"
        )
    return 100 * float((ours / theirs).mean())


# ---- Average precision -------------------------------------------------------


def eleven_point_average_precision(
    scores: np.ndarray, labels: np.ndarray
) -> float:
    """VOC2007's average precision.

    1/11 sum over r in {0, 0.1, ..., 1} of the best precision at recall >= r.
    Examples of one score are found together, so that their order is of no
    account.

    Args:
      scores: float [n], higher for what is more likely of the class.
      labels: int [n], 1 for examples of the class, 0 for others.

    Returns:
      A fraction.

    Raises:
      UserError: for NaN, other labels, or no example of the class.

    Everingham et al. 2010, section 4.2; SimCLR, appendix B.8.
    """
    scores, labels = np.asarray(scores, np.float64), np.asarray(labels)
    if scores.ndim != 1 or scores.shape != labels.shape or not scores.size:
        raise UserError(
            f"scores {list(scores.shape)} and labels {list(labels.shape)}: give"
            " one of each for every example, at least one"
        )
    if np.isnan(scores).any():
        raise UserError(
            f"scores hold {np.isnan(scores).sum()} NaN: look for a diverged"
            " classifier"
        )
    if not np.isin(labels, [0, 1]).all():
        wrong = labels[~np.isin(labels, [0, 1])][0]
        raise UserError(
            f"labels hold {wrong}: give 1 for examples of the class, 0 for"
            " others"
        )
    if not labels.any():
        raise UserError(
            "labels hold no example of the class: its precision is undefined;"
            " leave the class out"
        )
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.diff(scores[order], append=np.nan) != 0)
    hits = np.cumsum(labels[order].astype(np.int64))[ends]
    precision = hits / (ends + 1)
    # Whole numbers: 0.3 * 10 is not 3.
    levels = np.arange(11)
    reached = 10 * hits[np.newaxis] >= levels[:, np.newaxis] * hits[-1]
    best = np.where(reached, precision[np.newaxis], 0.0).max(axis=1)
    return float(best.mean())
