"""Where images come from, and what is known of datasets by their names."""

import dataclasses
import re
from typing import NamedTuple

from tf_contrastive.config.dataset_names import (
    PROBING_DATASETS,
    dataset_family,
    dataset_name,
    source_of,
)
from tf_contrastive.config.fields import option
from tf_contrastive.errors import UserError, did_you_mean

SAMPLERS = ("shuffle", "class_balanced")
CACHES = ("auto", "memory", "none")

# Side to which images of differing sizes are cropped when none is given.
DEFAULT_IMAGE_SIZE = 224


class ChannelStatistics(NamedTuple):
    """Mean and standard deviation of each colour, of pixels in [0, 1]."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


# Over all pixels of the training split. (The deviations of CIFAR-10 that much
# code has, 0.2023, 0.1994, 0.2010, are means over images of each one's own.)
CHANNEL_STATISTICS = {
    # torchvision, the normalization of its models.
    "imagenet2012": ChannelStatistics(
        (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    ),
    # Computed from the original files, as are those of MNIST; widely printed.
    "cifar10": ChannelStatistics(
        (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    ),
    "cifar100": ChannelStatistics(
        (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    ),
    "mnist": ChannelStatistics((0.1307,) * 3, (0.3081,) * 3),
    # Of scikit-learn's digits, the 1,437 of this package's training split.
    "digits": ChannelStatistics((0.3058,) * 3, (0.3761,) * 3),
}
IMAGENET_STATISTICS = CHANNEL_STATISTICS["imagenet2012"]

# Examples from which those of any other dataset are computed, at most.
STANDARDIZE_EXAMPLES = 10_000
STANDARDIZATIONS = ("imagenet", "dataset", "none")


def channel_statistics(standardize: str) -> ChannelStatistics:
    """Returns the statistics that a resolved `standardize` names.

    Args:
      standardize: "imagenet", "none", or the result of `write_statistics`.

    Raises:
      UserError: for anything else.
    """
    if standardize == "imagenet":
        return IMAGENET_STATISTICS
    if standardize == "none":
        return ChannelStatistics((0.0,) * 3, (1.0,) * 3)
    if found := _read_statistics(standardize):
        return found
    raise UserError(
        f"standardize={standardize}: must be {standardization(standardize)}"
    )


def write_statistics(statistics: ChannelStatistics) -> str:
    """Returns statistics as a value of `standardize`: M,M,M/S,S,S."""
    return "/".join(",".join(f"{x:.6g}" for x in part) for part in statistics)


def _read_statistics(value: str) -> ChannelStatistics | None:
    """Returns the statistics that `value` spells, if it spells some."""
    number = r"\d+(?:\.\d+)?(?:e-?\d+)?"
    three = ",".join([f"({number})"] * 3)
    if not (match := re.fullmatch(f"{three}/{three}", value)):
        return None
    numbers = tuple(map(float, match.groups()))
    found = ChannelStatistics(numbers[:3], numbers[3:])
    return found if all(std > 0 for std in found.std) else None


def standardization(value: str) -> str | None:
    """What `standardize` may be, or None if `value` is that."""
    if value in STANDARDIZATIONS or _read_statistics(value):
        return None
    hint = did_you_mean(value, STANDARDIZATIONS)
    return (
        f"one of {', '.join(STANDARDIZATIONS)}, or three means and three"
        f" deviations above 0, M,M,M/S,S,S{hint}"
    )


class Kind(NamedTuple):
    """What a dataset is like, where it is not there to be looked at."""

    classes: int
    side: int


# By the first part of a dataset's name: what `--smoke` trains on has as many
# classes, and views as of images of so many pixels a side.
DATASET_KINDS = {
    "cifar10": Kind(10, 32),
    "cifar2": Kind(2, 32),
    "cifar100": Kind(100, 32),
    "mnist": Kind(10, 28),
    "fashion_mnist": Kind(10, 28),
    "kmnist": Kind(10, 28),
    "svhn_cropped": Kind(10, 32),
    "stl10": Kind(10, 96),
    "imagenet_resized": Kind(1000, 64),
    "imagenet2012": Kind(1000, DEFAULT_IMAGE_SIZE),
    "imagenet2012_subset": Kind(1000, DEFAULT_IMAGE_SIZE),
    "imagenet100": Kind(100, DEFAULT_IMAGE_SIZE),
    "imagenette": Kind(10, DEFAULT_IMAGE_SIZE),
    "food101": Kind(101, DEFAULT_IMAGE_SIZE),
    "oxford_iiit_pet": Kind(37, DEFAULT_IMAGE_SIZE),
    "oxford_flowers102": Kind(102, DEFAULT_IMAGE_SIZE),
    "places365_small": Kind(365, DEFAULT_IMAGE_SIZE),
    "sun397": Kind(397, DEFAULT_IMAGE_SIZE),
}
# Of any other one.
OTHER_KIND = Kind(10, DEFAULT_IMAGE_SIZE)


def kind_of(dataset: str) -> Kind:
    """Returns how many classes a dataset has, and how large its images are."""
    if inner := source_of(dataset):
        return kind_of(inner)
    return DATASET_KINDS.get(dataset_family(dataset), OTHER_KIND)


def stand_in(dataset: str) -> str:
    """Returns what serves in the place of a dataset that is not here.

    The embedded digits with as many classes; within a dataset that is made of
    another one (`of=NAME`), in the place of that one.
    """
    if inner := source_of(dataset):
        return dataset.replace(f"of={inner}", f"of={stand_in(inner)}")
    return f"digits/{kind_of(dataset).classes}"


def standing_in(dataset: str) -> str:
    """Returns a line that says what serves in the place of a dataset."""
    classes = "as many classes"
    if kind_of(dataset) is OTHER_KIND:
        classes = f"{OTHER_KIND.classes} classes (its own are not known here)"
    return (
        f"{stand_in(dataset)} stands in for {dataset}, which is not here, with"
        f" {classes}"
    )


def _service_address(value: str) -> str | None:
    if not value or re.fullmatch(r"grpc://[^/:\s]+:\d+", value):
        return None
    return "grpc://host:port, as launch/data_service prints it"


def split_name(value: str) -> str | None:
    """What a split may be called, or None if `value` is such a name."""
    if re.fullmatch(r"\w+(\[[\d%]*:[\d%]*\])?", value):
        return None
    return "a split such as train, test, train[:1000] or train[10%:]"


def whole(split: str) -> str:
    """Returns the split of which `split` is a slice."""
    return split.partition("[")[0]


@dataclasses.dataclass(frozen=True)
class Data:
    """Where images come from."""

    dataset: str = option(
        "digits",
        "digits (embedded), any TensorFlow Datasets name, folder:PATH,"
        " tfrecord:GLOB, csv:PATH (lines of path,label), or one of"
        f" {', '.join(PROBING_DATASETS)}, whose options the command datasets"
        " lists",
        check=dataset_name,
    )
    data_dir: str = option(
        "",
        "folder of prepared TensorFlow Datasets; empty: TFDS's own default",
        identity=False,
    )
    split: str = option(
        "train",
        "split to train on, as TFDS writes splits",
        check=split_name,
    )
    test_split: str = option(
        "test",
        "split on which the linear stage is scored (--linear_epochs)",
        check=split_name,
        identity=False,
    )
    validation_fraction: float = option(
        0.0,
        "share of the training split, in [0, 1), cut off for validation",
        minimum=0.0,
        maximum=0.9,
    )
    sampler: str = option(
        "shuffle",
        "order of the training examples; class_balanced gives every class the"
        " same share of every batch (one read of the data per class)",
        choices=SAMPLERS,
    )
    shuffle_buffer: int = option(
        50_000,
        "examples held, encoded, to shuffle among",
        minimum=1,
    )
    data_service: str = option(
        "",
        "grpc://host:port of the dispatcher of a tf.data service, which then"
        " makes the views (launch/data_service); empty: this machine does",
        check=_service_address,
        identity=False,
    )
    cache: str = option(
        "auto",
        "what is kept in memory; auto: the pixels of images of one shape, up to"
        " 1 GiB; memory: without that limit, and images of several shapes as"
        " they are encoded; workers of a data service keep none",
        choices=CACHES,
    )
    extra_channels: int = option(
        -1,
        "channels of the dataset's feature `extra`, which follow those of the"
        " views and are not augmented; -1: all that it has",
        minimum=-1,
    )
    max_bad_images: int = option(
        10,
        "images that cannot be read before a run on a folder stops",
        minimum=0,
        identity=False,
    )


def check_data_service(address: str, sampler: str) -> None:
    """Raises `UserError` for an order that a data service cannot give."""
    if address and sampler != "shuffle":
        raise UserError(
            f"`data_service` gives examples as they come, not in the order of"
            f" sampler={sampler}: give sampler=shuffle, or no"
            " `data_service`"
        )


def check_sampler(sampler: str, dataset: str, has_labels: bool) -> None:
    """Raises `UserError` if a sampler needs labels that are not there."""
    if sampler == "class_balanced" and not has_labels:
        raise UserError(
            f"sampler={sampler} needs labels, one of each image, which"
            f" {dataset} does not have: give sampler=shuffle"
        )


def check_extra_channels(channels: int, dataset: str, present: int) -> None:
    """Raises `UserError` if a dataset has fewer channels beside its images."""
    if channels > present:
        raise UserError(
            f"extra_channels={channels}: {dataset} has {present} channels of"
            f" feature extra: give extra_channels={present} or less"
        )


def check_encoder_channels(channels: int, dataset: str, present: int) -> None:
    """Raises `UserError` if a dataset lacks channels that an encoder takes.

    Args:
      channels: beyond the three colours, that the encoder takes.
      dataset: the dataset's name.
      present: channels of its feature `extra`.
    """
    if channels > present:
        raise UserError(
            f"the encoder takes {channels} channels beside the colours, and"
            f" {dataset} has {present} channels of feature extra: give the"
            " dataset that it was trained on, or one with as many"
        )
