"""A smaller "resnet10", for tests that are not about encoders.

`python -m tests.small COMMAND ...` is `python -m tf_contrastive` with that
encoder and, for `pretrain`, with the flags in `UNWATCHED`. The environment's
`WORKER_TIMEOUT`: seconds that workers wait for each other, instead of 300.
"""

import contextlib
import os
import sys

from tf_contrastive import __main__
from tf_contrastive.config import fields
from tf_contrastive.config.encoder import ResNet
from tf_contrastive.config.pretrain import Pretrain

# Without histograms and projector, which take half of the time of a short run.
UNWATCHED = {"histograms_every_epochs": 0, "projector_examples": 0}
RUN = fields.replace(Pretrain(), **UNWATCHED)
FLAGS = tuple(f"--{name}={value}" for name, value in UNWATCHED.items())


# Options of a run of seconds on the digits.
DIGITS = {
    "dataset": "digits",
    "split": "train[:256]",
    "augmentation": "crop",
    "min_crop_area": 0.5,
    "flip": False,
    "encoder": "resnet10",
    "width": 0.125,
    "projection_output": 16,
    "loss": "supcon",
    "batch_size": 64,
    "epochs": 2,
    "learning_rate": 1.0,
}


@contextlib.contextmanager
def encoder():
    """Reduces "resnet10" to its stem and last block, with as many features."""
    networks = dict(ResNet.networks)
    blocks = networks["resnet10"]._replace(repeats=(0, 0, 0, 1))
    ResNet.networks = {**networks, "resnet10": blocks}
    try:
        yield
    finally:
        ResNet.networks = networks


if __name__ == "__main__":
    if sys.argv[1] == "pretrain":
        sys.argv[2:2] = FLAGS  # Flags of the test override them.
    if seconds := os.environ.get("WORKER_TIMEOUT"):
        from tf_contrastive import distribution

        distribution.strategy.__kwdefaults__["timeout"] = float(seconds)
    with encoder():
        raise SystemExit(__main__.main())
