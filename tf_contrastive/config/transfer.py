"""The datasets of `transfer`, and how the papers use them."""

import dataclasses
from typing import NamedTuple

MEAN_AVERAGE_PRECISION = "mean_average_precision"


@dataclasses.dataclass(frozen=True)
class Target:
    """A dataset and its metric."""

    dataset: str  # Name in TensorFlow Datasets.
    metric: str  # Of `classification.METRICS`, or mean average precision.
    validation: str | None = None  # Official split; None: a part of train.
    test: str = "test"

    @property
    def multi_label(self) -> bool:
        """Whether an image may show objects of several classes."""
        return self.metric == MEAN_AVERAGE_PRECISION


# Kornblith et al. 2019, table 1; SimCLR, appendix B.8. Of SUN397 and DTD the
# first train/test split is used. TFDS's Caltech-101 has 30 random training
# images per class, the others are its test split. Birdsnap and FGVC Aircraft
# are not in TFDS, but may be prepared under these names.
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
    "voc2007": Target("voc/2007", MEAN_AVERAGE_PRECISION, "validation"),
    "flowers": Target("oxford_flowers102", "mean_per_class", "validation"),
}


class Suite(NamedTuple):
    """Datasets, and preprocessing of their images."""

    targets: dict[str, Target]
    linear_preprocessing: str  # Of images for linear classifiers.
    tuned_preprocessing: str  # Of images for networks that are trained.


_SINCERE = ("pets", "dtd", "aircraft", "food101", "flowers", "cars")
SUITES = {
    "simclr": Suite(TARGETS, "shorter_side", "center_crop"),
    "sincere": Suite(
        {
            name: dataclasses.replace(TARGETS[name], metric="top1")
            for name in _SINCERE
        },
        "squash",
        "squash",
    ),
}


# Logistic regression on the frozen encoder, or how a network is trained: from
# the encoder's weights or from random ones.
METHODS = ("linear", "finetune", "scratch")
