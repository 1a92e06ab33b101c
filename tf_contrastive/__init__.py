"""Contrastive pretraining of image encoders in TensorFlow and Keras.

Modules in the order of the data flow:

- `datasets`: images and labels.
- `views`: augmentation policies, views [B, V, H, W, K].
- `encoders`, `heads`: features [B, V, D], projections [B, V, P].
- `losses`: scalars over the global batch.
- `optimizers`, `schedules`: LARS and others, learning rates.
- `model`: `ContrastiveModel`, the training step.
- `checkpoints`, `callbacks`: resume, progress, TensorBoard.
- `exporting`: SavedModels.
- `train`: a whole run.
- `embedding`, `evaluation`: the trained encoder.

Importing this package does not import TensorFlow; its modules do, when they are
first used.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_MODULES = (
    "callbacks",
    "checkpoints",
    "classifiers",
    "config",
    "datasets",
    "distribution",
    "embedding",
    "encoders",
    "evaluation",
    "exporting",
    "heads",
    "losses",
    "model",
    "optimizers",
    "schedules",
    "train",
    "views",
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "load":
        return importlib.import_module(f"{__name__}.exporting").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_MODULES, "load", "__version__"]
