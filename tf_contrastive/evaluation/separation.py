"""How far test images are from their own class and from the others.

The protocol `separation`: margins per class and neighbour histograms, of
Feeney and Hughes 2024 (SINCERE), section 4.1 and figure 2.
"""

from typing import Any

import numpy as np

from tf_contrastive import classifiers, errors
from tf_contrastive.evaluation import plots, scoring

# 1024 x 8192 cosines of float32 are 32 MiB, whatever the sizes of the splits.
_QUERY_BLOCK = 1024
_BANK_BLOCK = 8192
# As the authors' code draws them.
HISTOGRAM_RANGE = (-0.1, 1.0)
HISTOGRAM_BINS = 100


def nearest_similarities(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    test_labels: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The largest cosine of each test row to its own class, and to others.

    Args:
      train_embeddings: float [m, D], l2-normalised inside.
      train_labels: int [m], from 0.
      test_embeddings: float [n, D], l2-normalised inside.
      test_labels: int [n], from 0.

    Returns:
      (target float32 [n], NaN where train has no example of the class; noise
      float32 [n], NaN where it has none of another class).

    Raises:
      UserError: for NaN, negative labels, or shapes that do not fit.
    """
    train, labels, test, wanted = scoring.check(
        train_embeddings, train_labels, test_embeddings, test_labels
    )
    # Rows of a class side by side: its largest cosine is a running maximum.
    order = np.argsort(labels, kind="stable")
    queries = classifiers.normalize(test)
    target = np.full(len(test), -np.inf, np.float32)
    noise = np.full(len(test), -np.inf, np.float32)
    for start in range(0, len(order), _BANK_BLOCK):
        rows = order[start : start + _BANK_BLOCK]
        bank = classifiers.normalize(train[rows])
        classes, starts = np.unique(labels[rows], return_index=True)
        for first in range(0, len(queries), _QUERY_BLOCK):
            part = slice(first, first + _QUERY_BLOCK)
            best = np.maximum.reduceat(
                queries[part] @ bank.T, starts, axis=1
            )  # [b, classes]
            own = wanted[part, np.newaxis] == classes
            for found, chosen in ((target, own), (noise, ~own)):
                masked = np.where(chosen, best, -np.inf).max(axis=1)
                found[part] = np.maximum(found[part], masked)
    for found in (target, noise):
        found[np.isneginf(found)] = np.nan
    return target, noise


def separation_margin(
    train_embeddings: np.ndarray,
    train_labels: np.ndarray,
    test_embeddings: np.ndarray,
    test_labels: np.ndarray,
) -> dict[str, Any]:
    """How much nearer test images are to their own class than to others.

    The margin of a class is the median of its test images' largest cosine to
    train images of the class, less that to train images of others.

    Args:
      train_embeddings: float [m, D], l2-normalised inside.
      train_labels: int [m], from 0.
      test_embeddings: float [n, D], l2-normalised inside.
      test_labels: int [n], from 0.

    Returns:
      {"mean": over the classes that have a margin, "per_class" float [C] for
      classes 0 to the largest id (NaN for a class that train or test lacks),
      "target" float32 [n] and "noise" float32 [n], the largest cosines (NaN
      where train has no such image)}.

    Raises:
      UserError: for NaN, negative labels, shapes that do not fit, less than
        two classes in train, or no class that both splits have.

    Feeney and Hughes 2024 (SINCERE), section 4.1 and table 1, by class as its
    caption says (the authors' code takes the medians over all).
    """
    target, noise = nearest_similarities(
        train_embeddings, train_labels, test_embeddings, test_labels
    )
    train_labels, test_labels = map(np.asarray, (train_labels, test_labels))
    if len(np.unique(train_labels)) < 2:
        raise errors.UserError(
            f"train_labels hold class {train_labels[0]} alone: a margin needs"
            " images of at least two classes"
        )
    per_class = np.full(max(train_labels.max(), test_labels.max()) + 1, np.nan)
    for label in np.intersect1d(train_labels, test_labels):
        rows = test_labels == label
        per_class[label] = np.median(target[rows]) - np.median(noise[rows])
    if np.isnan(per_class).all():
        raise errors.UserError(
            "no class of test_labels is in train_labels: give two splits of one"
            " dataset"
        )
    return {
        "mean": float(np.nanmean(per_class)),
        "per_class": per_class,
        "target": target,
        "noise": noise,
    }


def neighbor_histograms(
    target: np.ndarray, noise: np.ndarray, bins: int = HISTOGRAM_BINS
) -> dict[str, Any]:
    """Histograms of what `nearest_similarities` returns.

    Args:
      target, noise: float [n]; NaN is left out.
      bins: over [-0.1, 1]; what lies outside goes into the last ones.

    Returns:
      {"edges" [bins + 1], "target", "noise": shares [bins] that sum to 1,
      "target_median", "noise_median"}; zeros and NaN where there are none.
    """
    found: dict[str, Any] = {"edges": np.linspace(*HISTOGRAM_RANGE, bins + 1)}
    for name, values in (("target", target), ("noise", noise)):
        values = np.asarray(values)[np.isfinite(values)]
        counts, _ = np.histogram(
            np.clip(values, *HISTOGRAM_RANGE), found["edges"]
        )
        found[name] = counts / max(len(values), 1)
        median = np.median(values) if len(values) else np.nan
        found[f"{name}_median"] = float(median)
    return found


def measure(subject: Any) -> dict[str, Any]:
    """The protocol `separation`, of the embeddings h and the projections z.

    The paper means the space in which the loss compares images, which is z;
    what users get of an encoder is h.

    Args:
      subject: an encoder under evaluation, see `subject.Subject`.

    Returns:
      A measurement (see `protocols.Protocol`): metrics "margin" (mean over
      classes), "margin_per_class", "margin_of_medians" (|median - median| over
      all test images, as the authors' code computes), "target_median",
      "noise_median"; a plot of histograms, all classes and each; the same of z,
      where there is a projection, as "projection_margin" and so on. Where
      nothing can be told apart, "margin" is None, and alone.
    """
    _, train_labels = subject.embeddings("train")
    _, labels = subject.embeddings("test")
    kinds = np.unique(train_labels)
    if len(kinds) < 2 or not np.isin(labels, kinds).any():
        subject.say(
            f"separation: train has images of {len(kinds)} class(es),"
            f" {np.isin(kinds, labels).sum()} of which test has, too: no margin"
        )
        return {"metrics": {"margin": None}}
    spaces = {"": subject.embeddings}
    if subject.projection is not None:
        spaces["projection_"] = subject.projections
    measured: dict[str, Any] = {"metrics": {}, "plots": {}, "arrays": {}}
    for prefix, of_split in spaces.items():
        four = (*of_split("train"), *of_split("test"))
        names = subject.test.info.label_names
        for kind, parts in _measure_space(four, names).items():
            measured[kind] |= {f"{prefix}{k}": v for k, v in parts.items()}
    return measured


def _measure_space(
    four: tuple[np.ndarray, ...], names: tuple[str, ...]
) -> dict[str, Any]:
    """Metrics, plot and arrays of one space's four arrays."""
    labels = four[-1]
    found = separation_margin(*four)
    whole = neighbor_histograms(found["target"], found["noise"])
    parts = {"all classes": whole}
    for label in np.unique(labels):
        rows = labels == label
        name = names[label] if label < len(names) else f"class {label}"
        parts[str(name)] = neighbor_histograms(
            found["target"][rows], found["noise"][rows]
        )
    return {
        "metrics": {
            "margin": found["mean"],
            "margin_per_class": [
                None if np.isnan(m) else float(m) for m in found["per_class"]
            ],
            "margin_of_medians": abs(
                whole["target_median"] - whole["noise_median"]
            ),
            "target_median": whole["target_median"],
            "noise_median": whole["noise_median"],
        },
        "plots": {"neighbors": plots.neighbor_histograms(parts)},
        "arrays": {"target": found["target"], "noise": found["noise"]},
    }
