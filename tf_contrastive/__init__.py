"""Contrastive pretraining of image encoders in TensorFlow and Keras.

A run goes one way: a dataset gives images, a policy makes views of them, the
encoder and its projection head turn views into projections, the loss compares
those over the global batch, the optimizer moves the weights, and checkpoints,
TensorBoard events and a SavedModel come out. The modules stand in that order:
`datasets`, `views`, `encoders`, `heads`, `losses`, `optimizers` and
`schedules`, `model`, `checkpoints` and `callbacks`, `exporting`, `training`,
`evaluation`.

Importing this package imports no TensorFlow; its modules do, when first used.
"""

import importlib

__version__ = "0.1.0"

_MODULES = (
    "callbacks",
    "checkpoints",
    "classifiers",
    "config",
    "convolution",
    "datasets",
    "distribution",
    "embedding",
    "encoders",
    "evaluation",
    "exporting",
    "flags",
    "heads",
    "losses",
    "metrics",
    "model",
    "normalization",
    "optimizers",
    "schedules",
    "similarity",
    "training",
    "views",
)


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "load":
        return importlib.import_module(f"{__name__}.exporting").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return [*_MODULES, "load", "__version__"]
