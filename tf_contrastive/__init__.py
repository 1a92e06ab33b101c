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
import os
import sys
from typing import Any

# While `python -m` looks for its module, that is the first argument.
_is_command = sys.argv[:1] == ["-m"] and "tf_contrastive" in sys.orig_argv
if _is_command and sys.path[:1] == [os.getcwd()]:
    # Last: a user's random.py must not be found before Python's.
    sys.path.append(sys.path.pop(0))

from tf_contrastive.base import installation  # noqa: E402

_problem = installation.problem()
if _problem:
    if _is_command:
        print(f"tf_contrastive: {_problem}", file=sys.stderr)
        sys.exit(2)
    raise ImportError(_problem)

__version__ = installation.VERSION
_MODULES = (
    *("callbacks", "checkpoints", "classifiers", "config", "datasets"),
    *("distribution", "embedding", "encoders", "evaluation", "exporting"),
    *("heads", "losses", "model", "optimizers", "schedules", "train", "views"),
)


def _choose_keras() -> None:
    """Makes `tf.keras` Keras 2: from TensorFlow 2.16 on it is tf-keras."""
    import importlib.metadata

    try:
        version = importlib.metadata.version("keras")
    except importlib.metadata.PackageNotFoundError:
        return
    if int(version.partition(".")[0]) > 2:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"


def _check_keras() -> None:
    """Raises `ImportError` if somebody has used Keras 3 as `tf.keras`."""
    # A module of TensorFlow is here while it is being imported, too.
    keras = getattr(sys.modules.get("tensorflow"), "keras", None)
    version = getattr(keras, "__version__", "2")
    if int(version.partition(".")[0]) > 2:
        raise ImportError(
            f"tf.keras is Keras {version} here, and tf_contrastive needs"
            " tf-keras: import tf_contrastive before tf.keras is used, or set"
            " TF_USE_LEGACY_KERAS=1"
        )


_choose_keras()
_check_keras()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "load":
        return importlib.import_module(f"{__name__}.exporting").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_MODULES, "load", "__version__"]
