"""Small trained encoders in the package, to try things with.

Each folder has `encoder.npz`, the weights, of which kernels are in half
precision; `encoder.json`, the arguments of `encoders.build`; `config.flags` and
`pretrain.log` of the run; and `evaluation.json`, the results and the checksum
of `encoder.npz`. `tools/pretrained.py` writes them. Those of CIFAR-10 are of a
copy that was stored as JPEG; results on the original differ slightly.
"""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import encoders
from tf_contrastive.base import errors

SCHEME = "pretrained:"
WEIGHTS, ARGUMENTS, RESULTS = "encoder.npz", "encoder.json", "evaluation.json"
_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Returns the encoders' names, sorted."""
    return sorted(path.parent.name for path in _FOLDER.glob(f"*/{WEIGHTS}"))


def results(name: str) -> dict[str, Any]:
    """Returns what is known of an encoder, such as its accuracies."""
    return json.loads((_folder(name) / RESULTS).read_text())


def arguments(name: str) -> dict[str, Any]:
    """Returns the arguments of `encoders.build` for an encoder."""
    return json.loads((_folder(name) / ARGUMENTS).read_text())


def load(name: str, folder: Path | None = None) -> tf.keras.Model:
    """Loads an encoder by its name, with or without "pretrained:".

    `folder` is its folder, if it is not in this package.

    Raises:
      UserError: for an unknown name, or if the weights are damaged.
    """
    folder = folder or _folder(name)
    content = (folder / WEIGHTS).read_bytes()
    known = json.loads((folder / RESULTS).read_text())
    if hashlib.sha256(content).hexdigest() != known["sha256"]:
        raise errors.UserError(
            f"{folder / WEIGHTS} is damaged: install the package again"
        )
    built_with = json.loads((folder / ARGUMENTS).read_text())
    encoder = encoders.build(**built_with, synchronized=False)
    with np.load(io.BytesIO(content)) as weights:
        for variable in encoder.variables:
            variable.assign(weights[variable.name].astype(np.float32))
    return encoder


def _folder(name: str) -> Path:
    name = name.removeprefix(SCHEME)
    if name not in names():
        raise errors.unknown("pretrained encoder", name, names())
    return _FOLDER / name
