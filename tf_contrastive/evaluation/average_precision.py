"""Average precision of one class among others."""

import numpy as np

from tf_contrastive.errors import UserError


def eleven_point_average_precision(
    scores: np.ndarray, labels: np.ndarray
) -> float:
    """VOC2007's average precision, a fraction.

    1/11 sum over r in {0, 0.1, ..., 1} of the best precision at recall >= r.
    Examples with equal scores are retrieved together.

    Args:
      scores: float [n], higher for examples more likely of the class.
      labels: int [n], 1 for examples of the class, 0 for others.

    Everingham et al. 2010, section 4.2; Chen et al. 2020 (SimCLR), appendix
    B.8.
    """
    from sklearn import metrics

    scores, labels = np.asarray(scores, np.float64), np.asarray(labels)
    if scores.ndim != 1 or scores.shape != labels.shape or not scores.size:
        raise UserError(
            f"scores {list(scores.shape)} and labels {list(labels.shape)}: pass"
            " one of each for every example, at least one"
        )
    if not np.isfinite(scores).all():
        raise UserError(
            f"scores hold {(~np.isfinite(scores)).sum()} NaN or infinity: check"
            " whether the classifier diverged"
        )
    if not np.isin(labels, [0, 1]).all():
        wrong = labels[~np.isin(labels, [0, 1])][0]
        raise UserError(
            f"labels hold {wrong}: use 1 for examples of the class, 0 for"
            " others"
        )
    if not labels.any():
        raise UserError(
            "labels hold no example of the class, so that its precision is"
            " undefined: leave the class out"
        )
    precision, recall, _ = metrics.precision_recall_curve(labels, scores)
    # Without the last point, which belongs to no threshold. In integers, since
    # 0.3 * 10 is not 3.
    positives = int(labels.sum())
    hits = np.rint(recall[:-1] * positives)
    reached = 10 * hits >= np.arange(11)[:, np.newaxis] * positives
    best = np.where(reached, precision[:-1], 0.0).max(axis=1)
    return float(best.mean())
