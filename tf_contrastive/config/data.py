"""The dataset of a run, and the options of its input."""

import dataclasses
import functools
import re

from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config.checks import is_float32, matching, one_of
from tf_contrastive.config.command import Group
from tf_contrastive.config.dataset import (
    FORMS,
    IMAGENET_STATISTICS,
    ChannelStatistics,
    dataset_name,
    path_of,
)
from tf_contrastive.config.fields import argument, option, written

SAMPLERS = ("shuffle", "class_balanced")

# Side of views in pixels, for images of several shapes.
DEFAULT_IMAGE_SIZE = 224
# Examples from which the statistics of other datasets are computed, at most.
STANDARDIZE_EXAMPLES = 10_000
STANDARDIZATIONS = ("imagenet", "dataset", "none")
# Classes that the labels of data may make, at most.
MAX_CLASSES = 100_000
MAX_CHANNELS = 16
# Options that few set are given in one flag, FAMILY=KEY=VALUE,...
_reading = functools.partial(option, family="reading_options")
_input = functools.partial(option, family="data_options")


def channel_statistics(standardize: str | None) -> ChannelStatistics:
    """Returns statistics of a `standardize` that is not "dataset"."""
    standardize = standardize or "imagenet"
    known = {
        "imagenet": IMAGENET_STATISTICS,
        "none": ChannelStatistics((0.0,) * 3, (1.0,) * 3),
    }
    if statistics := known.get(standardize) or _read_statistics(standardize):
        return statistics
    raise UserError(
        f"{arg('standardize', standardize)}: must be"
        f" {standardization(standardize)}"
    )


def write_statistics(statistics: ChannelStatistics, digits: int = 6) -> str:
    """Returns statistics as a value of `standardize`: M,M,M/S,S,S."""
    return "/".join(
        ",".join(f"{x:.{digits}g}" for x in part) for part in statistics
    )


def _read_statistics(value: str) -> ChannelStatistics | None:
    """Returns the statistics that `write_statistics` wrote, else None."""
    number = r"\d+(?:\.\d+)?(?:e-?\d+)?"
    several = f"{number}(?:,{number})*"
    if not re.fullmatch(f"{several}/{several}", value):
        return None
    mean, std = (
        tuple(map(float, part.split(","))) for part in value.split("/")
    )
    held = all(map(is_float32, mean + std)) and min(std) > 0
    fits = len(mean) == len(std) and held
    return ChannelStatistics(mean, std) if fits else None


def standardization(value: str) -> str | None:
    """Checks a value of `standardize`."""
    if value in STANDARDIZATIONS or _read_statistics(value):
        return None
    return (
        "a mean and a deviation above 0 of each channel, M,M,M/S,S,S, or"
        f" {one_of(value, STANDARDIZATIONS)}"
    )


# The check of the name of a split.
split_name = matching(
    r"\w+(\[[\d%]*:[\d%]*\])?",
    "a split such as train, test, train[:1000] or train[10%:]",
)


# The check of the name of a feature or column, as one of a flag's options.
name_in_list = matching(r"[^,]+", "a name without a comma")
NO_FEATURE = "none"  # Labels are not read.


def without_slice(split: str) -> str:
    """Returns a split's name without its slice."""
    return split.partition("[")[0]


class Reading(Group):
    """How the images of a folder, CSV or TFRecord file are read."""

    channels: int = option(
        3,
        "channels of the images; other than 3, images of 8 or 16 bits or floats"
        " are read whole, each of the same channels",
        minimum=1,
        maximum=MAX_CHANNELS,
    )
    value_range: tuple[float, ...] = _reading(
        (),
        "LOW,HIGH: values that become 0 and 1, beyond which they are clipped;"
        " empty: the range of the type, 0 and 1 of floats; also reads 16 bits"
        " of 3 channels whole",
        minimum=-3e38,
    )
    color_channels: tuple[int, ...] = _reading(
        (),
        "R,G,B: three channels, from 0, whose colours are augmented and shown;"
        " empty: the channels of 3, else none",
        maximum=MAX_CHANNELS - 1,
    )
    label_feature: str | None = option(
        None,
        "column of a CSV file, or feature of TFRecord files or of a TensorFlow"
        f" dataset, that has the labels; {NO_FEATURE}: read no labels; auto:"
        " found by its name, such as label",
        check=name_in_list,
    )
    image_feature: str | None = _reading(
        None,
        "column of a CSV file that has the paths, or feature of TFRecord files"
        " or of a TensorFlow dataset that has the images; auto: found by its"
        " name, such as path or image",
        check=name_in_list,
    )
    raw_images: str = _reading(
        "",
        "TYPE:HxW, such as uint16:120x120: TFRecord files have images without a"
        " format, the bytes of an array [H, W, channels] in C order; empty:"
        " encoded images",
        check=matching(
            r"(uint8|uint16|float32):[1-9]\d{0,4}x[1-9]\d{0,4}",
            "uint8, uint16 or float32, and :HxW",
        ),
    )
    test_fraction: float = option(
        0.0,
        "fraction of each class of a folder or CSV file that has no split but"
        " train to hold out as split test, the same images in every run",
        maximum=0.9,
    )
    unlabelled: str = _reading(
        "refuse",
        "data of which only a part has labels: refuse them; own_views: read"
        " images without a label (an empty cell, a folder named unlabelled, no"
        " feature, -1), whose views are positives of each other only",
        choices=("refuse", "own_views"),
    )
    max_bad_images: int = option(
        10,
        "unreadable images to leave out before the command fails",
        identity=False,
    )

    @property
    def admits_unlabelled(self) -> bool:
        """Whether images may lack a label, which is -1, and others have one."""
        return self.unlabelled == "own_views"

    @property
    def float_channels(self) -> int | None:
        """Channels of images read as float32 in [0, 1]; None: uint8 of 3."""
        is_float = self.channels != 3 or self.value_range
        return self.channels if is_float else None

    @property
    def raw_form(self) -> tuple[str, tuple[int, int, int]] | None:
        """Type and shape [h, w, C] of images without a format."""
        if not self.raw_images:
            return None
        kind, height, width = re.split("[:x]", self.raw_images)
        return kind, (int(height), int(width), self.channels)

    @property
    def colors(self) -> tuple[int, ...]:
        """The channels of red, green and blue, or none."""
        usual = (0, 1, 2) if self.channels == 3 else ()
        return self.color_channels or usual

    def check(self) -> None:
        """Raises `UserError` for channels that do not go together."""
        limits, colors = self.value_range, self.color_channels
        if limits and not (len(limits) == 2 and limits[0] < limits[1]):
            raise UserError(
                f"{arg('value_range', written(limits))}: must be two numbers,"
                " the lower first"
            )
        for name in ("color_channels", "raw_images"):
            value = getattr(self, name)
            if value and not self.float_channels:
                raise UserError(
                    f"{arg(name, written(value))} has no effect on images of 3"
                    f" channels of 8 bits: set {arg('value_range')}, such as"
                    " 0,255, or leave it out"
                )
        is_triple = len({*colors}) == len(colors) == 3
        if colors and not (is_triple and max(colors) < self.channels):
            raise UserError(
                f"{arg('color_channels', written(colors))}: must be three"
                f" different channels below {self.channels}, from 0"
            )


def inherited(given: Reading, run: Reading) -> Reading:
    """Returns how to read the data of a run: as it did, but for what is set."""
    values = vars(given).items()
    changed = {n: x for n, x in values if x != getattr(Reading, n)}
    fraction = run.test_fraction or given.test_fraction
    if given.test_fraction not in (0.0, fraction):
        raise UserError(
            f"{arg('test_fraction', given.test_fraction)}: the run has held out"
            f" {fraction:g} of the same images: leave it out"
        )
    return dataclasses.replace(run, **changed | {"test_fraction": fraction})


def with_channels(given: Reading, run: Reading) -> Reading:
    """Returns how to read other data for a run's encoder."""
    if given.float_channels or given.color_channels:
        return given
    names = ("channels", "value_range", "color_channels")
    return dataclasses.replace(given, **{n: getattr(run, n) for n in names})


# ---- Options of a run --------------------------------------------------------


class Data(Group):
    """The dataset and its input pipeline."""

    dataset: str = option(
        "digits",
        f"{FORMS}; the command datasets describes them",
        check=dataset_name,
    )
    data_dir: str = option(
        "",
        "folder of prepared TensorFlow Datasets; empty: the default of TFDS",
        identity=False,
        per_host=True,
    )
    split: str = option(
        "train",
        "split to train on, such as train or train[:90%]",
        check=split_name,
    )
    test_split: str = option(
        "test",
        "split to score the linear stage on, of other images than split",
        check=split_name,
        identity=False,
    )
    validation_fraction: float = option(
        0.0, "fraction of the training split to use for validation", maximum=0.9
    )
    sampler: str = option(
        "shuffle",
        "order of the training examples; shuffle: a new random order in each"
        " epoch; class_balanced: batches with equally many examples of each"
        " class (reads the data once per class)",
        choices=SAMPLERS,
    )
    # Encoded examples.
    shuffle_buffer: int = argument(50_000, minimum=1)
    cache: str = _input(
        "auto",
        "what to keep in memory; auto: decoded images of one shape, up to 1"
        " GiB; memory: no limit, and records of several shapes encoded",
        choices=("auto", "memory", "none"),
    )
    extra_channels: int | None = _input(
        None,
        "channels of the dataset's feature `extra` to append to the views,"
        " without augmentation; auto: all",
    )
    allow_changed_data: bool = _input(
        False,
        "resume although the number of images has changed since the start",
        identity=False,
    )

    @property
    def balances_classes(self) -> bool:
        """Whether a batch's examples depend on their class; each needs one."""
        return self.sampler == "class_balanced"


def check_pod(workdir: str, data: Data) -> None:
    """Raises `UserError` for what several hosts of a TPU cannot do.

    They share no disk, and run graphs, but no Python.
    """
    paths = {"workdir": workdir, "data_dir": data.data_dir}
    paths["dataset"] = path_of(data.dataset)
    for name, path in paths.items():
        if path and "://" not in path:
            raise UserError(
                f"{arg(name, path)}: the hosts of this TPU share no disk: use"
                " gs://"
            )


def extra_of_encoder(
    channels: int, dataset: str, own: int, present: int
) -> int:
    """Returns the extra channels that an encoder of `channels` takes.

    Of a dataset whose images have `own` channels, and `present` extra ones.

    Raises:
      UserError: if the dataset has fewer, or its images have more.
    """
    if own <= channels <= own + present:
        return channels - own
    raise UserError(
        f"the encoder takes {channels} channels, and {dataset} has {own} and"
        f" {present} in addition: use the dataset that it was trained on, one"
        f" with as many, or {arg('channels', channels)}"
    )
