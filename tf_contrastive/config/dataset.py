"""Datasets: how each is named, the options in its name, and facts about it.

A name is that of a declaration below, or one of TensorFlow Datasets, of which
some facts are known, too. A declaration names the function that opens it.
"""

import json
import os
import pathlib
import re
from typing import Any, ClassVar, NamedTuple

from tf_contrastive.base.errors import UserError, did_you_mean
from tf_contrastive.config import fields
from tf_contrastive.config.checks import matching
from tf_contrastive.config.command import Group
from tf_contrastive.config.fields import module_of, option

_FOLDER = pathlib.Path(__file__).parent


# ---- Facts -------------------------------------------------------------------


class ChannelStatistics(NamedTuple):
    """Mean and standard deviation of each channel, of pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class Corrupted(NamedTuple):
    """The corrupted version of a dataset, in TensorFlow Datasets."""

    name: str
    split: str  # The only one that it has.
    # Whether AlexNet's errors, by which ImageNet-C normalizes, are known.
    has_published_errors: bool = False


class Facts(NamedTuple):
    """What is known of images before they are read.

    Attributes:
      side: of the images in pixels; None: it varies, or is unknown.
      statistics: over all pixels of the training split. (The common deviations
        of CIFAR-10, such as 0.2023, are means over single images.)
      flip: whether a mirrored image could be one of the dataset, unlike a
        mirrored digit or letter.
      corrupted: their corrupted version, if there is one.
    """

    side: int | None = None
    statistics: ChannelStatistics | None = None
    flip: bool = True
    corrupted: Corrupted | None = None

    @classmethod
    def read(cls, about: dict[str, Any]) -> "Facts":
        """Returns the facts of an entry of facts.json."""
        if statistics := about.get("statistics"):
            about["statistics"] = ChannelStatistics(*map(tuple, statistics))
        if corrupted := about.get("corrupted"):
            about["corrupted"] = Corrupted(*corrupted)
        return cls(**about)


# As in torchvision.
IMAGENET_STATISTICS = ChannelStatistics(
    (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
)
# Of TensorFlow Datasets, by name without configuration and version.
_PREPARED = {
    name: Facts.read(about)
    for name, about in json.loads(
        (_FOLDER / "facts.json").read_text(encoding="utf-8")
    ).items()
}


# ---- Forms of names ----------------------------------------------------------


class DatasetDeclaration(Group):
    """Base of declarations. Its instances hold what a name says.

    The first line of a declaration's docstring describes it to users.

    Attributes:
      name: the name's first part.
      form: a whole name; of those with options an example.
      opener: MODULE:FUNCTION of (name, the declaration read from it, split,
        `datasets.source.Access`) -> source. It is imported late.
      facts: about its images.
      has_fixed_splits: whether `test_fraction` has no effect, and is refused.
        Otherwise it makes splits, here or in the dataset of the images.
    """

    name: ClassVar[str]
    form: ClassVar[str]
    opener: ClassVar[str]
    facts: ClassVar[Facts] = Facts()
    has_fixed_splits: ClassVar[bool] = True

    @classmethod
    def read(cls, name: str) -> "DatasetDeclaration":
        """Parses a name; `ValueError` with what is allowed."""
        if name != cls.name:
            raise ValueError(cls.name)
        return cls()


class Prepared(DatasetDeclaration):
    """Any prepared dataset of TensorFlow Datasets, such as cifar10."""

    name = form = "NAME"
    opener = "tf_contrastive.datasets.tfds_source:open_tfds"

    @classmethod
    def read(cls, name: str) -> "Prepared":
        """Parses NAME, NAME/CONFIG, NAME:VERSION or NAME/CONFIG:VERSION."""
        if not re.fullmatch(r"[A-Za-z]\w*(/[\w.\-]+)?(:[\d.*]+)?", name):
            hint = did_you_mean(dataset_family(name), DATASETS)
            raise ValueError(f"{FORMS}{hint}")
        return cls()


class Own(DatasetDeclaration):
    """Data of your own: a tf.data.Dataset, arrays, or a function of these."""

    name = "module"
    form = "module:name"
    opener = "tf_contrastive.datasets.own_data:own_data"

    part: str

    @classmethod
    def read(cls, name: str) -> "Own":
        """Parses MODULE:NAME."""
        return cls(name)


class Digits(DatasetDeclaration):
    """1,797 handwritten digits of 8x8 pixels, embedded."""

    name = form = "digits"
    opener = "tf_contrastive.datasets.array_source:digits"
    facts = Facts(
        8, ChannelStatistics((0.3058,) * 3, (0.3761,) * 3), flip=False
    )


class AtPath(DatasetDeclaration):
    """Files at a path, SCHEME:PATH."""

    path: str

    @classmethod
    def read(cls, name: str) -> "AtPath":
        """Parses SCHEME:PATH."""
        scheme, _, path = name.partition(":")
        if scheme != cls.name or not path:
            raise ValueError(f"{cls.form} with a path after the colon")
        return cls(path)


class Folder(AtPath):
    """A folder per class, or images without labels."""

    name = "folder"
    form = "folder:PATH"
    opener = "tf_contrastive.datasets.folders:open_folder"
    has_fixed_splits = False


class CSV(AtPath):
    """A table with columns path and, optionally, label and split."""

    name = "csv"
    form = "csv:PATH"
    opener = "tf_contrastive.datasets.tables:open_table"
    has_fixed_splits = False


class TFRecord(AtPath):
    """tf.train.Example with an encoded image and a label."""

    name = "tfrecord"
    form = "tfrecord:GLOB"
    opener = "tf_contrastive.datasets.tfrecord:tfrecord"


class WithOptions(DatasetDeclaration):
    """Images that are made, or taken from another dataset, as options say.

    A name is NAME, or NAME:OPTION=VALUE,OPTION=VALUE. A value of `of` that has
    a colon extends to the end of the name.
    """

    @classmethod
    def read(cls, name: str) -> "WithOptions":
        """Parses the options in a name."""
        if name.partition(":")[0] != cls.name:
            raise ValueError(f"{cls.name} with a colon before its options")
        given = _values(name)
        try:
            made = fields.replace(cls(), **given)
            fields.validate_fields(made)
        except UserError as error:
            raise ValueError(
                f"{cls.name} with valid options ({error})"
            ) from error
        if allowed := made.conflict():
            raise ValueError(f"{cls.name} with {allowed}")
        return made

    def conflict(self) -> str | None:
        """Returns what is allowed, if options do not go together."""


def _values(name: str) -> dict[str, str]:
    """Splits NAME:OPTION=VALUE,... ; `ValueError` with what is allowed."""
    form, colon, text = name.partition(":")
    values: dict[str, str] = {}
    while colon:
        key, _, rest = text.partition("=")
        value, colon, text = rest.partition(",")
        if key == "of" and ":" in value:
            value, colon = rest, ""
        if not (key and value) or key in values:
            raise ValueError(f"{form} with distinct OPTION=VALUE,OPTION=VALUE")
        values[key] = value
    return values


def _of(help: str) -> Any:
    def check(value: str) -> str | None:
        allowed = dataset_name(value) if value else None
        return f"(last, if it has a colon) {allowed}" if allowed else None

    return option("", help, check=check, required=True)


# ---- Datasets with options ---------------------------------------------------


class OfClasses(WithOptions):
    """Some classes of another dataset, in the order of their labels."""

    opener = "tf_contrastive.datasets.subsets:of_classes"
    of: ClassVar[str]
    classes: ClassVar[tuple[str, ...]]


class Cifar2(OfClasses):
    """Cats (0) and dogs (1) of cifar10 (Feeney and Hughes 2024, SINCERE)."""

    name = form = "cifar2"
    of = "cifar10"
    classes = ("cat", "dog")
    facts = Facts(32)


class ImageNet100(OfClasses):
    """100 classes of imagenet2012 (Tian et al. 2020, CMC)."""

    name = form = "imagenet100"
    of = "imagenet2012"
    # By WordNet's numbers.
    classes = tuple((_FOLDER / "imagenet100.txt").read_text().split())


class Subset(WithOptions):
    """A class-balanced fraction of the training split (SimCLR, B.5).

    Other splits are unchanged.
    """

    name = "subset"
    form = "subset:fraction=0.1,of=cifar10"
    opener = "tf_contrastive.datasets.subsets:subset"
    has_fixed_splits = False

    fraction: float = option(
        0.0, "fraction of the training examples", above=0.0, maximum=1.0
    )
    seed: int = option(0, "seed of the choice")
    of: str = _of("dataset of the examples")


class MultiDigits(WithOptions):
    """MNIST's digits on a black canvas (Chen et al. 2021, 3.1, 4.1).

    Image i shows digit i of the split and others drawn at random. Its labels
    are all of their classes; with a single digit, its class.
    """

    name = "multidigits"
    form = "multidigits:count=4,placement=grid"
    opener = "tf_contrastive.datasets.digit_canvases:multidigits"
    facts = Facts(flip=False)

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
        cells = (self.canvas // self.digit) ** 2
        if self.placement == "grid" and self.count > cells:
            return (
                f"count at most {cells}, the number of cells of {self.digit}"
                f" pixels in a canvas of {self.canvas}"
            )
        return None


class DigitOnImage(WithOptions):
    """A digit of MNIST at nine places of each image (Chen et al. 2021, 4.1).

    The seed determines the digit of each image.
    """

    name = "digit_on_image"
    form = "digit_on_image:unique=16,of=cifar10"
    opener = "tf_contrastive.datasets.digit_canvases:digit_on_image"
    has_fixed_splits = False

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
    digit: int = option(
        0,
        "side of a digit in pixels; 0: an eighth of the image's side, and at"
        " least 8 if that fits; the paper's share of an image of 32 pixels is"
        " digit=4",
    )
    seed: int = option(0, "seed of the map from images to digits")
    of: str = _of("dataset of the images")


class RandBit(WithOptions):
    """A random integer per image, as channels (Chen et al. 2021, 4.1).

    Its bits are feature `extra`: constant over the pixels, not augmented.
    """

    name = "randbit"
    form = "randbit:bits=5,of=cifar10"
    opener = "tf_contrastive.datasets.random_bits:randbit"
    has_fixed_splits = False

    bits: int = option(10, "channels, each 0 or 1", maximum=32)
    seed: int = option(0, "seed of the integers")
    of: str = _of("dataset of the images")


class KBits(WithOptions):
    """Black images with a random integer as channels (Chen et al. 2021, C).

    The bits of the integer are feature `extra`.
    """

    name = "kbits"
    form = "kbits:bits=5"
    opener = "tf_contrastive.datasets.random_bits:kbits"
    facts = Facts(side=32)

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


# ---- The datasets ------------------------------------------------------------

DATASETS: dict[str, type[DatasetDeclaration]] = {
    declared.name: declared
    for declared in (
        Digits,
        Folder,
        CSV,
        TFRecord,
        Own,
        Prepared,
        Cifar2,
        ImageNet100,
        Subset,
        MultiDigits,
        DigitOnImage,
        RandBit,
        KBits,
    )
}
_MADE = [x.name for x in DATASETS.values() if issubclass(x, WithOptions)]
_READ = [x.form for x in DATASETS.values() if x.name not in _MADE]
# What a name may be.
FORMS = (
    f"{', '.join(_READ)} of TensorFlow Datasets, or one of {', '.join(_MADE)}"
)


def _declaration(name: str) -> type[DatasetDeclaration]:
    other = Own if module_of(name) else Prepared
    return DATASETS.get(dataset_family(name), other)


def is_own(name: str) -> bool:
    """Whether a dataset's name is that of data of your own, `module:name`."""
    return _declaration(name) is Own


def read(name: str) -> DatasetDeclaration:
    """Returns a dataset's declaration, with what its name says."""
    try:
        return _declaration(name).read(name)
    except ValueError as error:
        raise UserError(f"dataset {name}: must be {error}") from error


def dataset_name(value: str) -> str | None:
    """Checks the name of a dataset."""
    try:
        _declaration(value).read(value)
    except ValueError as error:
        return str(error)
    return None


def dataset_family(name: str) -> str:
    """Returns a dataset's name without config, version, options or path."""
    return re.split("[/: ]", name)[0]


def image_dataset(name: str) -> str:
    """Returns the dataset that the images of one with option `of` are from."""
    while issubclass(_declaration(name), WithOptions):
        inner = _values(name).get("of")
        if not inner:
            break
        name = inner
    return name


def path_of(name: str) -> str:
    """Returns the path in a dataset's name, or an empty string."""
    images = image_dataset(name)
    is_at_path = issubclass(_declaration(images), AtPath)
    return images.partition(":")[2] if is_at_path else ""


def canonical(name: str, resolve: bool = True) -> str:
    """Returns a dataset's name with an absolute path; `resolve`: no links."""
    path = path_of(name)
    if not path or "://" in path:
        return name
    whole = os.path.realpath if resolve else os.path.abspath
    return name.removesuffix(path) + whole(os.path.expanduser(path))


def or_of_run(name: str, run: str) -> str:
    """Returns a dataset's name; that of the run if it is empty or the same."""
    return run if not name or canonical(name) == canonical(run) else name


def facts(name: str) -> Facts:
    """Returns what is known of a dataset, by its name or by `Info.name`."""
    family = dataset_family(name)
    return _PREPARED.get(family) or _declaration(name).facts
