"""Evaluation of encoders that stay as they are.

Metrics and tests are plain functions on arrays, at hand here by name: `knn`,
`prototype`, `linear_probe`, `logistic_regression` and `separation_margin` take
the same four, embeddings and labels of a training and of a test split.
`protocols.run` goes from an encoder and two splits to a list of results that
name their protocol, its version and all its hyperparameters.

Importing this package imports none of its modules, nor what they need
(TensorFlow, SciPy, scikit-learn, matplotlib): a name does, when first used.
"""

import importlib

_FUNCTIONS = {
    "knn": "arrays",
    "linear_probe": "arrays",
    "prototype": "arrays",
    "kl_lower_bound": "bounds",
    "eleven_point_average_precision": "calibration",
    "expected_calibration_error": "calibration",
    "mean_corruption_error": "calibration",
    "mean_error": "calibration",
    "reliability": "calibration",
    "contrastive_accuracy": "contrastive",
    "alignment": "hypersphere",
    "random_projections": "hypersphere",
    "uniformity": "hypersphere",
    "logistic_regression": "logistic",
    "neighbor_histograms": "separation",
    "separation_margin": "separation",
    "effective_rank": "spectra",
    "spectrum": "spectra",
    "bootstrap_difference": "statistics",
    "bootstrap_interval": "statistics",
    "compare": "statistics",
    "mcnemar_test": "statistics",
    "permutation_test": "statistics",
}
_MODULES = (
    "arrays",
    "bounds",
    "calibration",
    "contrastive",
    "corruptions",
    "finetune",
    "hypersphere",
    "kmeans",
    "logistic",
    "opening",
    "pictures",
    "protocols",
    "robustness",
    "scoring",
    "separation",
    "spectra",
    "statistics",
    "subject",
    "transfer",
    "transforms",
    "tsne",
    "tuning",
)

__all__ = sorted([*_FUNCTIONS, *_MODULES])


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _FUNCTIONS:
        module = importlib.import_module(f"{__name__}.{_FUNCTIONS[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return __all__
