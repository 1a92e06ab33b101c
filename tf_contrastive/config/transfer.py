"""The datasets of `transfer`, and how the papers use them."""

import dataclasses
from typing import NamedTuple

from tf_contrastive.base.errors import did_you_mean
from tf_contrastive.config import dataset
from tf_contrastive.config.fields import split_pairs

MEAN_AVERAGE_PRECISION = "mean_average_precision"


@dataclasses.dataclass(frozen=True)
class Target:
    """A dataset and its metric."""

    dataset: str  # Name in TensorFlow Datasets.
    metric: str  # Of `classification.METRICS`, or mean average precision.
    validation: str | None = None  # Official split; None: a part of train.
    test: str = "test"
    in_tfds: bool = True  # Whether TensorFlow Datasets prepares it.
    is_given: bool = False  # Whether the user names the dataset.

    @property
    def multi_label(self) -> bool:
        """Whether an image may show objects of several classes."""
        return self.metric == MEAN_AVERAGE_PRECISION


# Kornblith et al. 2019, table 1; SimCLR, appendix B.8. Of SUN397 and DTD the
# first train/test split is used. TFDS's Caltech-101 has 30 random training
# images per class, the others are its test split.
TARGETS = {
    "food101": Target("food101", "top1", test="validation"),
    "cifar10": Target("cifar10", "top1"),
    "cifar100": Target("cifar100", "top1"),
    "birdsnap": Target("birdsnap", "top1", in_tfds=False),
    "sun397": Target("sun397/standard-part1-120k", "top1"),
    "cars": Target("cars196", "top1"),
    "aircraft": Target(
        "fgvc_aircraft", "mean_per_class", "validation", in_tfds=False
    ),
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
    image_size: int | None = None  # Of the paper's encoders, if they have one.


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
        image_size=32,
    ),
}


# Where the images of a target may be: with one class each, in splits.
_OWN = (dataset.Folder, dataset.CSV, dataset.Prepared)


def datasets_of_targets(value: str) -> str | None:
    """Checks a list of TARGET=DATASET."""
    for pair in split_pairs(value):
        name, _, given = pair.partition("=")
        if name not in TARGETS:
            return (
                f"TARGET=DATASET of {', '.join(TARGETS)}, such as"
                f" aircraft=folder:/data/aircraft{did_you_mean(name, TARGETS)}"
            )
        kinds = _OWN[2:] if TARGETS[name].multi_label else _OWN
        is_name = not dataset.dataset_name(given)
        if not is_name or type(dataset.read(given)) not in kinds:
            forms = ", ".join(f"{name}={kind.form}" for kind in kinds)
            return f"{forms} of TensorFlow Datasets"
    return None


def targets(suite: str, given: str) -> dict[str, Target]:
    """Returns the targets of a suite, some with the user's datasets."""
    own = dict(pair.split("=", 1) for pair in split_pairs(given))
    return {
        name: dataclasses.replace(target, dataset=own[name], is_given=True)
        if name in own
        else target
        for name, target in SUITES[suite].targets.items()
    }


class Tuning(NamedTuple):
    """How a network is trained."""

    grid: str  # Hyperparameter with what is tried.
    trained: bool  # Whether it starts from the encoder, or from random weights.


# Logistic regression on the frozen encoder, or how a network is trained.
METHODS = {
    "linear": None,
    "finetune": Tuning("grid", trained=True),
    "scratch": Tuning("scratch_grid", trained=False),
}
