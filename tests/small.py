"""Runs whose encoder is small, where a test is not about encoders.

`python -m tests.small COMMAND ...` is `python -m tf_contrastive` with it, and
`pretrain` without what `UNWATCHED` leaves out.
"""

import contextlib
import sys

from tf_contrastive import __main__
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.encoders import resnet

# A run that TensorBoard is shown scalars and views of, and no features: half of
# what a run of few steps costs.
UNWATCHED = {"histograms_every_epochs": 0, "projector_examples": 0}
RUN = fields.replace(Pretrain(), **UNWATCHED)
FLAGS = tuple(f"--{name}={value}" for name, value in UNWATCHED.items())


@contextlib.contextmanager
def encoder():
    """Leaves "resnet10" its stem and last block: as many features, sooner."""
    spec = resnet.RESNETS["resnet10"]
    resnet.RESNETS["resnet10"] = spec._replace(repeats=(0, 0, 0, 1))
    try:
        yield
    finally:
        resnet.RESNETS["resnet10"] = spec


if __name__ == "__main__":
    if sys.argv[1] == "pretrain":
        sys.argv[2:2] = FLAGS  # Those of the test win.
    with encoder():
        raise SystemExit(__main__.main())
