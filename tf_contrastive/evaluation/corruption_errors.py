"""Mean corruption errors of Hendrycks and Dietterich 2019."""

from collections.abc import Mapping, Sequence

import numpy as np

from tf_contrastive.errors import UserError

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
SEVERITIES = 5


def _check_errors(
    name: str, errors: Mapping[str, Sequence[float] | float]
) -> dict[str, np.ndarray]:
    """Returns corruption -> errors float64 [severities]."""
    if not errors:
        raise UserError(f"no {name}: pass at least one corruption")
    checked: dict[str, np.ndarray] = {}
    for corruption, values in errors.items():
        array = np.atleast_1d(np.asarray(values, np.float64))
        if array.ndim != 1 or not array.size:
            raise UserError(
                f"{name} of {corruption} have shape {list(array.shape)}: pass"
                " one error for each severity"
            )
        if not ((array >= 0) & (array <= 1)).all():
            raise UserError(
                f"{name} of {corruption} are {array.tolist()}: pass fractions"
                " of wrong predictions, from 0 to 1"
            )
        checked[corruption] = array
    return checked


def mean_error(errors: Mapping[str, Sequence[float]]) -> float:
    """Mean over corruptions and severities, in percent, of error fractions."""
    checked = _check_errors("errors", errors)
    return 100 * float(np.mean([e.mean() for e in checked.values()]))


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
        if not imagenet or severities != [SEVERITIES] * len(ALEXNET):
            return {"mce": None, "relative_mce": None}
        baseline = {**ALEXNET, "clean": ALEXNET_CLEAN}
    theirs = _check_errors("errors of the baseline", baseline)
    missing = sorted(ours.keys() - theirs.keys())
    if missing:
        raise UserError(
            f"the baseline lacks {', '.join(missing)}: add its errors on every"
            " corruption, as {corruption: errors}"
        )
    for name, values in ours.items():
        if len(theirs[name]) not in (1, len(values)):
            raise UserError(
                f"the baseline has {len(theirs[name])} errors of {name}, not"
                f" {len(values)}: pass as many, or their mean"
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
    if (theirs == 0).any():
        raise UserError(
            "the baseline has no error, or loses nothing, on some corruption:"
            " use another baseline"
        )
    return 100 * float((ours / theirs).mean())
