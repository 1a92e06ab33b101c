"""The numbers that each protocol writes, by which claims are checked early.

A claim that compares a number that no protocol writes is refused before its
runs begin. Tests hold these names to what the protocols write.
"""

from collections.abc import Callable, Iterable

from tf_contrastive.config import checks
from tf_contrastive.config.evaluate import Scoring
from tf_contrastive.config.transfer import SUITES
from tf_contrastive.evaluation import classification, transformations
from tf_contrastive.evaluation.corruptions import SEVERITIES


def names(protocol: str, options: Scoring) -> set[str]:
    """Returns the numbers in a protocol's rows: METRIC or VARIANT/METRIC.

    `*` stands for any part; lists are METRIC/1, METRIC/2, ...
    """
    write = _NUMBERS.get(protocol, lambda options: ("top1", "top5"))
    return set(write(options))


def of_variants(*metrics: str, variants: Iterable[str] = ("",)) -> list[str]:
    """Returns VARIANT/METRIC for all of them, METRIC without a variant."""
    return [
        "/".join(filter(None, (variant, metric)))
        for variant in variants
        for metric in metrics
    ]


def _spaces(*metrics: str) -> list[str]:
    """Returns the names of metrics of embeddings h and projections z."""
    return [f"{metric}_{space}" for metric in metrics for space in ("h", "z")]


def _features(options: Scoring, variants: Iterable[str] = ("",)) -> list[str]:
    """Returns the variants of results of the features to classify."""
    return [
        classification.variant(space, variant)
        for space in checks.split_list(options.evaluation.features)
        for variant in variants
    ]


def _knn(options: Scoring) -> list[str]:
    votes = options.knn.votes()
    names = [
        classification.neighbors_name(k, votes)
        for k in checks.read_counts(options.knn.k)
    ]
    return of_variants("top1", variants=_features(options, names))


def _linear(options: Scoring) -> list[str]:
    metrics = ["top1", "top5", "loss"]
    if options.linear.learning_rates:
        metrics.append("learning_rate")
    return of_variants(*metrics, variants=_features(options))


def _finetune(options: Scoring) -> list[str]:
    fractions = checks.read_numbers(options.finetune.fractions)
    suffixes = ("", " scratch") if options.finetune.scratch else ("",)
    return of_variants(
        "top1",
        "top5",
        "labels",
        "learning_rate",
        "validation",
        variants=[f"{100 * x:g}%{end}" for x in fractions for end in suffixes],
    )


def _transfer(options: Scoring) -> list[str]:
    methods = checks.split_list(options.transfer.methods)
    targets = SUITES[options.transfer.suite].targets
    variants = [f"{x} {method}" for x in targets for method in methods]
    return of_variants("top1", "score", variants=variants)


def _robustness(options: Scoring) -> list[str]:
    names = ["top1", "clean_top1", "mean_error", "mce", "relative_mce"]
    by_severity = ["accuracy"]
    if options.robustness.is_calibrated:
        names.append("ece_clean")
        by_severity.append("ece")
    else:
        names.append("neighbors")
    corruptions = checks.split_list(options.robustness.corruptions)
    by_severity += [f"error_{name}" for name in corruptions]
    return names + [f"{x}/{s}" for x in by_severity for s in SEVERITIES]


_SEPARATION = ("margin", "margin_of_medians", "target_median", "noise_median")
_NUMBERS: dict[str, Callable[[Scoring], Iterable[str]]] = {
    "knn": _knn,
    "linear": _linear,
    "logistic": lambda o: ("top1", "top5", "mean_per_class", "penalty"),
    "finetune": _finetune,
    "transfer": _transfer,
    "robustness": _robustness,
    "separation": lambda o: [
        f"{space}{name}"
        for space in ("", "projection_")
        for name in _SEPARATION
    ],
    "kl_bound": lambda o: [
        "kl_lower_bound",
        "sincere_loss",
        "upper_bound",
        "supcon_kl_lower_bound",
        "supcon_loss",
        "temperature",
        "images",
    ],
    "contrastive": lambda o: [
        "contrastive_accuracy",
        "contrastive_entropy",
        "max_entropy",
        "temperature",
        "images",
    ],
    "uniformity": lambda o: _spaces(
        "alignment",
        "uniformity",
        "effective_rank",
        "kurtosis",
        "ks_prior",
        "ks_normal",
    ),
    "spectrum": lambda o: (
        "share_of_top_*",
        "effective_rank",
        "rows",
        "columns",
    ),
    "transforms": lambda o: [
        f"{task}_{name}"
        for task in transformations.TASKS
        for name in ("h", "z", "chance")
    ],
    "tsne": lambda o: ("divergence_h", "divergence_z", "images"),
    "kmeans": lambda o: ("explained_*",),
}
