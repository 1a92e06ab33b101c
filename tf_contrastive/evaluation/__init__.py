"""Evaluation of frozen encoders.

Metrics and tests are plain functions on arrays, available here by name; invalid
arrays and options raise `errors.UserError`. `protocols.run` measures an encoder
by named protocols. Functions and modules are imported when they are first used,
and TensorFlow, SciPy, scikit-learn and matplotlib with them.
"""

import importlib
from typing import Any

_FUNCTIONS = {
    "eleven_point_average_precision": "average_precision",
    "expected_calibration_error": "calibration",
    "reliability": "calibration",
    "knn": "classification",
    "linear_probe": "classification",
    "prototype": "classification",
    "contrastive_accuracy": "contrastive_task",
    "mean_corruption_error": "corruption_errors",
    "mean_error": "corruption_errors",
    "alignment": "hypersphere",
    "effective_rank": "hypersphere",
    "random_projections": "hypersphere",
    "uniformity": "hypersphere",
    "kl_lower_bound": "kl_bound",
    "logistic_regression": "logistic",
    "neighbor_histograms": "separation",
    "separation_margin": "separation",
    "bootstrap_difference": "statistics",
    "bootstrap_interval": "statistics",
    "compare": "statistics",
    "permutation_test": "statistics",
}
_MODULES = (
    "artifacts",
    "average_precision",
    "calibration",
    "classification",
    "comparison",
    "context",
    "contrastive_task",
    "corruption_errors",
    "corruptions",
    "finetune",
    "hypersphere",
    "kl_bound",
    "loading",
    "logistic",
    "other_datasets",
    "plots",
    "protocols",
    "results",
    "robustness",
    "separation",
    "statistics",
    "transfer",
    "view_embeddings",
)

__all__ = sorted([*_FUNCTIONS, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _FUNCTIONS:
        module = importlib.import_module(f"{__name__}.{_FUNCTIONS[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
