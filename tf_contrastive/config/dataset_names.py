"""Names of datasets, and the options within a name."""

import dataclasses
import re
import typing
from typing import Any

from tf_contrastive.config.fields import matching, option, problem
from tf_contrastive.errors import UserError, did_you_mean

# Names are one of these, SCHEME:PATH, one of PROBING_DATASETS, or of TensorFlow
# Datasets.
EMBEDDED_DATASETS = ("digits",)
DATASET_SCHEMES = ("folder", "tfrecord", "csv", "packed")


@dataclasses.dataclass(frozen=True)
class MultiDigits:
    """MNIST's digits on a black canvas (Chen et al. 2021, 3.1, 4.1).

    Image i shows digit i of the split and others drawn at random. Its labels
    are all of their classes; with a single digit, its class.
    """

    count: int = option(1, "digits per image", minimum=1, maximum=64)
    digit: int = option(28, "side of a digit in pixels", minimum=4)
    sizes: str = option(
        "",
        "the side of each digit in pixels, such as 20+80; replaces count and"
        " digit",
        check=matching(
            r"\d+(\+\d+)*",
            "the side of each digit in pixels, joined by +, such as 20+80",
        ),
    )
    placement: str = option(
        "random",
        "random: anywhere, overlaps allowed; grid: in cells of a digit's size,"
        " at most one digit per cell",
        choices=("random", "grid"),
    )
    canvas: int = option(
        112, "side of the image in pixels", minimum=8, maximum=1024
    )
    seed: int = option(0, "seed of digits and places")

    @property
    def sides(self) -> tuple[int, ...]:
        """The side of each digit in pixels."""
        if self.sizes:
            return tuple(map(int, self.sizes.split("+")))
        return (self.digit,) * self.count

    @property
    def cells(self) -> int:
        """Number of cells of the grid."""
        return (self.canvas // self.digit) ** 2

    def conflict(self) -> str | None:
        """Returns what is allowed, if options do not go together."""
        changed = [
            name
            for name in ("count", "digit", "placement")
            if getattr(self, name) != getattr(MultiDigits, name)
        ]
        if self.sizes and changed:
            return "either sizes (placed at random) or count, digit, placement"
        if not 4 <= min(self.sides) <= max(self.sides) <= self.canvas:
            return f"digits of 4 to canvas={self.canvas} pixels"
        if self.placement == "grid" and self.count > self.cells:
            return (
                f"count at most {self.cells}, the number of cells of"
                f" {self.digit} pixels in a canvas of {self.canvas}"
            )
        return None


def _inner_dataset(value: str) -> str | None:
    allowed = dataset_name(value) if value else None
    return f"(last, if it has a colon) {allowed}" if allowed else None


def _of(help: str) -> Any:
    return option("", help, check=_inner_dataset, required=True)


@dataclasses.dataclass(frozen=True)
class DigitOnImage:
    """A digit of MNIST at nine places of each image (Chen et al. 2021, 4.1).

    The seed determines the digit of each image.
    """

    unique: int = option(
        0,
        "number of digits to use from MNIST's training split; 0: all; other"
        " splits use all of theirs",
    )
    label: str = option(
        "image",
        "the label: the image's class, or the digit's",
        choices=("image", "digit"),
    )
    blend: str = option(
        "add",
        "add: the clipped sum of the two; max: the maximum",
        choices=("add", "max"),
    )
    digit: int = option(
        0,
        "side of a digit in pixels; 0: an eighth of the image's side, and at"
        " least 8 if that fits; the paper's share of an image of 32 pixels is"
        " digit=4",
    )
    seed: int = option(0, "seed of the map from images to digits")
    of: str = _of("dataset of the images")


@dataclasses.dataclass(frozen=True)
class RandBit:
    """A random integer per image, as channels (Chen et al. 2021, 4.1).

    Its bits are feature `extra`: constant over the pixels, not augmented.
    """

    bits: int = option(10, "channels, each 0 or 1", maximum=32)
    seed: int = option(0, "seed of the integers")
    of: str = _of("dataset of the images")


@dataclasses.dataclass(frozen=True)
class KBits:
    """Black images with a random integer as channels (Chen et al. 2021, C).

    The bits of the integer are feature `extra`.
    """

    bits: int = option(4, "channels, each 0 or 1", minimum=1, maximum=32)
    side: int = option(
        32,
        "side of the image in pixels; 1 suffices for encoder=convnet, which is"
        " then an MLP",
        minimum=1,
    )
    examples: int = option(
        50_000, "images per split", minimum=1, maximum=1 << 24
    )
    seed: int = option(0, "seed of the integers")


@dataclasses.dataclass(frozen=True)
class Subset:
    """A class-balanced fraction of the training split (SimCLR, B.5).

    Other splits are unchanged. 1 % and 10 % of imagenet2012 are those of
    imagenet2012_subset, if it is prepared.
    """

    fraction: float = option(
        0.0, "fraction of the training examples", above=0.0, maximum=1.0
    )
    seed: int = option(0, "seed of the choice")
    of: str = _of("dataset of the examples")


@dataclasses.dataclass(frozen=True)
class Cifar2:
    """CIFAR-10's cats (0) and dogs (1) (Feeney and Hughes 2024)."""


@dataclasses.dataclass(frozen=True)
class ImageNet100:
    """100 classes of imagenet2012, in the order of Tian et al. 2020."""


# Written as NAME or NAME:OPTION=VALUE,OPTION=VALUE. A value of `of` that has a
# colon extends to the end of the name.
PROBING_DATASETS = {
    "multidigits": MultiDigits,
    "digit_on_image": DigitOnImage,
    "randbit": RandBit,
    "kbits": KBits,
    "subset": Subset,
    "cifar2": Cifar2,
    "imagenet100": ImageNet100,
}
# Appended to the name where MNIST is not available.
EMBEDDED_NOTE = " (digits instead of mnist)"


def probing_values(name: str) -> dict[str, str]:
    """Splits NAME:OPTION=VALUE,... ; `ValueError` with what is allowed."""
    _, colon, text = name.partition(":")
    values: dict[str, str] = {}
    while colon:
        key, _, rest = text.partition("=")
        value, colon, text = rest.partition(",")
        if key == "of" and ":" in value:
            value, colon = rest, ""
        if not (key and value) or key in values:
            raise ValueError("distinct OPTION=VALUE, separated by commas")
        values[key] = value
    return values


def _read_probing(name: str) -> Any:
    """Parses the options in a name; `ValueError` with what is allowed."""
    dataset = PROBING_DATASETS[name.partition(":")[0]]
    known = {field.name: field for field in dataclasses.fields(dataset)}
    values: dict[str, Any] = {}
    for key, text in probing_values(name).items():
        if key not in known:
            hint = did_you_mean(key, known)
            raise ValueError(f"{', '.join(known) or 'no options'}{hint}")
        try:
            # The type of an option of a dataset is int, float or str.
            values[key] = typing.cast(type, known[key].type)(text)
        except ValueError as error:
            kind = "an integer" if known[key].type is int else "a number"
            raise ValueError(f"{key} {kind}") from error
    options = dataset(**values)
    for field in known.values():
        if allowed := problem(field, getattr(options, field.name)):
            raise ValueError(f"{field.name} {allowed}")
    if hasattr(options, "conflict") and (allowed := options.conflict()):
        raise ValueError(allowed)
    return options


def read_probing(name: str) -> Any:
    """Returns the options in a name, such as a `MultiDigits`."""
    if allowed := dataset_name(name):
        raise UserError(f"dataset {name}: must be {allowed}")
    return _read_probing(name)


def dataset_name(value: str) -> str | None:
    """Checks the name of a dataset."""
    scheme, colon, rest = value.partition(":")
    if scheme in PROBING_DATASETS:
        try:
            _read_probing(value)
        except ValueError as error:
            return f"{scheme} with {error}"
        return None
    if colon and scheme in DATASET_SCHEMES:
        return None if rest else f"{scheme}:PATH with a path after the colon"
    if re.fullmatch(r"[A-Za-z]\w*(/[\w.\-]+)?(:[\d.*]+)?", value):
        return None
    hint = did_you_mean(scheme, PROBING_DATASETS)
    return (
        "digits, folder:PATH, tfrecord:GLOB, csv:PATH, packed:FOLDER, a name of"
        " TensorFlow Datasets such as cifar10, or one of"
        f" {', '.join(PROBING_DATASETS)}{hint}"
    )


def dataset_family(name: str) -> str:
    """Returns a dataset's name without config, version, options or path."""
    return re.split("[/: ]", name)[0]


def image_dataset(name: str) -> str:
    """Returns the dataset that a derived one takes its images from."""
    while dataset_family(name) in PROBING_DATASETS:
        inner = probing_values(name).get("of")
        if not inner:
            break
        name = inner
    return name
