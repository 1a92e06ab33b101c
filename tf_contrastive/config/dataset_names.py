"""What a dataset may be called, and the options within such a name."""

import dataclasses
import re
from typing import Any

from tf_contrastive.config.fields import option, problem
from tf_contrastive.errors import UserError, did_you_mean

# Datasets that are named by a scheme and what follows it; any other name but
# `digits` and those of PROBING_DATASETS is looked up in TensorFlow Datasets.
EMBEDDED_DATASETS = ("digits",)
DATASET_SCHEMES = ("folder", "tfrecord", "csv")


def _digit_sizes(value: str) -> str | None:
    if re.fullmatch(r"(\d+(\+\d+)*)?", value):
        return None
    return "pixels joined by plus signs, one number per digit, such as 20+80"


@dataclasses.dataclass(frozen=True)
class MultiDigits:
    """MNIST's digits on a black canvas (Chen et al. 2021, 3.1, 4.1).

    Image i has digit i of the split, others drawn at random, and all classes
    that it shows as its labels; with a single digit, that one's class.
    """

    count: int = option(1, "digits of an image", minimum=1, maximum=64)
    digit: int = option(28, "side of a digit in pixels", minimum=4)
    sizes: str = option(
        "",
        "in place of count and digit: the side of each digit in pixels, such as"
        " 20+80",
        check=_digit_sizes,
    )
    placement: str = option(
        "random",
        "random: anywhere on the canvas, overlaps allowed; grid: in cells as"
        " large as a digit, one digit in each at most",
        choices=("random", "grid"),
    )
    canvas: int = option(
        112, "side of the image in pixels", minimum=8, maximum=1024
    )
    seed: int = option(0, "of what is drawn", minimum=0)

    @property
    def sides(self) -> tuple[int, ...]:
        """The side of each digit in pixels."""
        if self.sizes:
            return tuple(map(int, self.sizes.split("+")))
        return (self.digit,) * self.count

    @property
    def cells(self) -> int:
        """Cells of the grid."""
        return (self.canvas // self.digit) ** 2

    def conflict(self) -> str | None:
        """What is allowed, where options do not go together."""
        default = MultiDigits()
        alone = (self.count, self.digit, self.placement) == (
            default.count,
            default.digit,
            default.placement,
        )
        if self.sizes and not alone:
            return "either sizes (placed at random) or count, digit, placement"
        if not 4 <= min(self.sides) <= max(self.sides) <= self.canvas:
            return f"digits of 4 to canvas={self.canvas} pixels"
        if self.placement == "grid" and self.count > self.cells:
            return (
                f"count at most {self.cells}, the cells of {self.digit} pixels"
                f" in a canvas of {self.canvas}"
            )
        return None


def _inner_dataset(value: str) -> str | None:
    if not value:
        return None
    allowed = dataset_name(value)
    return f"(last, if it has a colon) {allowed}" if allowed else None


def _of(help: str) -> Any:
    return option("", help, check=_inner_dataset, required=True)


@dataclasses.dataclass(frozen=True)
class DigitOnImage:
    """A digit of MNIST at nine places of each image (Chen et al. 2021, 4.1).

    Which digit is fixed for every image, by the seed.
    """

    unique: int = option(
        0,
        "the first so many digits of MNIST's training split alone; 0: all;"
        " other splits have all of theirs",
        minimum=0,
    )
    label: str = option(
        "image",
        "what is to be told: the image's class, or the digit's",
        choices=("image", "digit"),
    )
    blend: str = option(
        "add",
        "add: the sum of the two, clipped; max: the larger of them",
        choices=("add", "max"),
    )
    digit: int = option(
        0,
        "side of a digit in pixels; 0: 28 where the image's is 224, in"
        " proportion elsewhere, but 8 where that fits",
        minimum=0,
    )
    seed: int = option(0, "of the map from images to digits", minimum=0)
    of: str = _of("dataset whose images they are")


@dataclasses.dataclass(frozen=True)
class RandBit:
    """A random integer for each image, as channels (Chen et al. 2021, 4.1).

    Its bits are feature `extra`: constant over the pixels, never augmented.
    """

    bits: int = option(10, "channels, each 0 or 1", minimum=0, maximum=32)
    seed: int = option(0, "of the integers", minimum=0)
    of: str = _of("dataset whose images they are")


@dataclasses.dataclass(frozen=True)
class KBits:
    """Nothing but a random integer, as channels (Chen et al. 2021, C).

    Its bits are feature `extra`; the three colours are black.
    """

    bits: int = option(4, "channels, each 0 or 1", minimum=1, maximum=32)
    side: int = option(32, "side of the image in pixels", minimum=8)
    examples: int = option(
        50_000, "images of a split", minimum=1, maximum=1 << 24
    )
    seed: int = option(0, "of the integers", minimum=0)


@dataclasses.dataclass(frozen=True)
class Subset:
    """Some labels of the training split, as many of each class (SimCLR, B.5).

    Other splits are left whole. 1 % and 10 % of imagenet2012 are those of
    imagenet2012_subset, where it is prepared.
    """

    fraction: float = option(
        0.0, "share of the training examples", above=0.0, maximum=1.0
    )
    seed: int = option(0, "of the draw", minimum=0)
    of: str = _of("dataset whose labels they are")


@dataclasses.dataclass(frozen=True)
class Cifar2:
    """CIFAR-10's cats (0) and dogs (1) (Feeney and Hughes 2023)."""


@dataclasses.dataclass(frozen=True)
class ImageNet100:
    """100 classes of imagenet2012, in the order of Tian et al. 2020."""


# NAME, or NAME:OPTION=VALUE,OPTION=VALUE. What follows `of` is all its own if
# it has a colon.
PROBING_DATASETS = {
    "multidigits": MultiDigits,
    "digit_on_image": DigitOnImage,
    "randbit": RandBit,
    "kbits": KBits,
    "subset": Subset,
    "cifar2": Cifar2,
    "imagenet100": ImageNet100,
}
# What follows the name where MNIST is not there.
EMBEDDED_NOTE = " (digits in the place of mnist)"


def probing_values(name: str) -> dict[str, str]:
    """Splits NAME:OPTION=VALUE,... into options and values.

    Raises:
      ValueError: if it is not written so; with what is allowed.
    """
    _, colon, text = name.partition(":")
    values: dict[str, str] = {}
    while colon:
        key, _, rest = text.partition("=")
        value, colon, text = rest.partition(",")
        if key == "of" and ":" in value:
            value, colon = rest, ""
        if not (key and value) or key in values:
            raise ValueError("OPTION=VALUE, each once, between commas")
        values[key] = value
    return values


def _option_value(field: dataclasses.Field, text: str) -> Any:
    """Reads the value of an option; `ValueError` with what is allowed."""
    try:
        value = field.type(text)
    except ValueError as error:
        kind = "a whole number" if field.type is int else "a number"
        raise ValueError(f"{field.name} {kind}") from error
    if allowed := problem(field, value):
        raise ValueError(f"{field.name} {allowed}")
    return value


def _read_probing(name: str) -> Any:
    """Reads the options in a name; `ValueError` with what is allowed."""
    made = PROBING_DATASETS[name.partition(":")[0]]
    known = {field.name: field for field in dataclasses.fields(made)}
    values = probing_values(name)
    for key in values:
        if key not in known:
            hint = did_you_mean(key, known)
            raise ValueError(f"{', '.join(known) or 'no options'}{hint}")
    read = {k: _option_value(known[k], text) for k, text in values.items()}
    options = made(**read)
    for field in known.values():
        if allowed := problem(field, getattr(options, field.name)):
            raise ValueError(f"{field.name} {allowed}")
    if hasattr(options, "conflict") and (allowed := options.conflict()):
        raise ValueError(allowed)
    return options


def read_probing(name: str) -> Any:
    """Reads the name of one of PROBING_DATASETS.

    Args:
      name: such as `multidigits:count=4` or `randbit:bits=5,of=cifar10`.

    Returns:
      Its options, such as `MultiDigits`.

    Raises:
      UserError: for options that it does not have, or values not allowed.
    """
    if allowed := dataset_name(name):
        raise UserError(f"dataset {name}: must be {allowed}")
    return _read_probing(name)


def dataset_name(value: str) -> str | None:
    """What a dataset may be called, or None if `value` is such a name."""
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
        "digits, folder:PATH, tfrecord:GLOB, csv:PATH, a name of TensorFlow"
        " Datasets such as cifar10, or one of"
        f" {', '.join(PROBING_DATASETS)}{hint}"
    )


def optional_dataset_name(value: str) -> str | None:
    """What a dataset may be called that need not be given, or None."""
    return dataset_name(value) if value else None


def dataset_family(name: str) -> str:
    """Returns a dataset's name without configuration, version or path."""
    return re.split("[/: ]", name)[0]


def source_of(dataset: str) -> str | None:
    """Returns the dataset of which a probing one is made, if it is."""
    if dataset_family(dataset) in PROBING_DATASETS:
        return probing_values(dataset).get("of")
    return None


def shown_family(name: str) -> str:
    """The family of the dataset whose images one shows, if it has one."""
    while inner := source_of(name):
        name = inner
    return dataset_family(name)
