"""The datasets that an encoder is transferred to, and how each is scored."""

import dataclasses

from tf_contrastive import errors
from tf_contrastive.config.protocols import TRANSFER_SUITES

_MEAN_AVERAGE_PRECISION = "mean_average_precision"


@dataclasses.dataclass(frozen=True)
class Target:
    """A dataset, and how it is scored.

    Attributes:
      dataset: its name in TensorFlow Datasets, or of what is prepared under
        that name in the same folder.
      metric: of `scoring.METRICS`; or that of several labels an image.
      validation: its official validation split; None: a part of train is held
        out.
      test: the split that is scored.
    """

    dataset: str
    metric: str
    validation: str | None = None
    test: str = "test"

    @property
    def multi_label(self) -> bool:
        """Whether an image may show objects of several classes."""
        return self.metric == _MEAN_AVERAGE_PRECISION


# P5.4. Of the datasets that come in several train/test splits the first one is
# taken: SUN397's, and DTD's, which is the only one of TensorFlow Datasets. Its
# Caltech-101 has 30 random images a class for training, the rest for test.
TARGETS = {
    "food101": Target("food101", "top1", test="validation"),
    "cifar10": Target("cifar10", "top1"),
    "cifar100": Target("cifar100", "top1"),
    "birdsnap": Target("birdsnap", "top1"),
    "sun397": Target("sun397/standard-part1-120k", "top1"),
    "cars": Target("cars196", "top1"),
    "aircraft": Target("fgvc_aircraft", "mean_per_class", "validation"),
    "dtd": Target("dtd", "top1", "validation"),
    "pets": Target("oxford_iiit_pet", "mean_per_class"),
    "caltech101": Target("caltech101", "mean_per_class"),
    "voc2007": Target("voc/2007", _MEAN_AVERAGE_PRECISION, "validation"),
    "flowers": Target("oxford_flowers102", "mean_per_class", "validation"),
}
_SINCERE = ("pets", "dtd", "aircraft", "food101", "flowers", "cars")


def targets(suite: str) -> dict[str, Target]:
    """The datasets of a suite by name.

    Raises:
      UserError: for an unknown suite.
    """
    if suite not in TRANSFER_SUITES:
        raise errors.unknown("suite", suite, TRANSFER_SUITES)
    if suite == "simclr":
        return TARGETS
    return {
        name: dataclasses.replace(TARGETS[name], metric="top1")
        for name in _SINCERE
    }
