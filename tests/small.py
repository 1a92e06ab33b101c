"""Runs whose encoder is small, where a test is not about encoders.

`python -m tests.small pretrain ...` is `python -m tf_contrastive` with it.
"""

import contextlib

from tf_contrastive import __main__
from tf_contrastive.encoders import resnet


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
    with encoder():
        raise SystemExit(__main__.main())
