"""Evaluation of frozen encoders by the papers' protocols, each with its figure.

It says how good an encoder is, with intervals, and whether one is better than
another; the encoder itself never changes. Metrics and tests are plain functions
on arrays, available here by name; arrays of other shapes or types raise
`errors.UserError`. `protocols.run` measures an encoder by named protocols.
Functions and modules are imported when they are first used, and TensorFlow,
SciPy, scikit-learn and matplotlib with them.
"""

import importlib
import pkgutil
from typing import Any

_NAMES = {
    "classification": ("knn", "linear_probe", "prototype"),
    "hypersphere": (
        "alignment",
        "effective_rank",
        "random_projections",
        "uniformity",
    ),
    "logistic": ("logistic_regression",),
    "classification_metrics": (
        "eleven_point_average_precision",
        "expected_calibration_error",
        "mean_corruption_error",
        "reliability",
    ),
    "projections": ("contrastive_accuracy", "kl_lower_bound"),
    "separation": ("neighbor_histograms", "separation_margin"),
    "statistics": (
        "bootstrap_difference",
        "bootstrap_interval",
        "compare",
        "permutation_test",
    ),
}
_MODULE_OF = {name: module for module in _NAMES for name in _NAMES[module]}
_MODULES = [module.name for module in pkgutil.iter_modules(__path__)]

__all__ = sorted([*_MODULE_OF, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _MODULE_OF:
        module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
