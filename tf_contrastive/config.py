"""Every option of every command: its type, default, unit and help.

Layer 0. The dataclasses are grouped in the order in which data flows through
a run: data, views, encoder, projection, loss, probe, optimizer, schedule,
linear stage, runtime. `flags.py` makes one absl flag of each field; library
code takes the dataclasses, or plain keyword arguments whose defaults it reads
here. Nothing here imports TensorFlow, so that `--help` and a wrong flag answer
at once.
"""

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

# ---- Names that users choose from --------------------------------------------

# The options of each loss, with their defaults (`losses.build` reads them).
_PAIRWISE = {"normalize": True, "reduction": "mean", "block_size": 0}
_SUPCON = {
    "temperature": 0.1,
    "contrast": "all_views",
    "denominator": "all",
    "positives_cap": None,
    "keep_dropped_positives": False,
    "scale_by_temperature": False,
    **_PAIRWISE,
}
_OTHER_VIEW = {
    "negatives": "other_view",
    "mining": "none",
    "negative_reduction": "mean",
    **_PAIRWISE,
}
_SWD = {
    "weight": 5.0,
    "normalization": "mean",
    "normalize": False,
    "scale": 1.0,
}
LOSS_OPTIONS: dict[str, dict[str, Any]] = {
    "ntxent": {"temperature": 0.1, "negatives": "all_views", **_PAIRWISE},
    "supcon": _SUPCON,
    "supcon_in": _SUPCON,
    "sincere": {"temperature": 0.1, **_PAIRWISE},
    "eps_supinfonce": {
        "temperature": 0.1,
        "epsilon": 0.25,
        "epsilon_in": "logit",
        **_PAIRWISE,
    },
    "npairs": {"temperature": 1.0, **_PAIRWISE},
    "triplet": {"margin": 0.2, **_PAIRWISE},
    "margin": {"margin": 0.4, **_OTHER_VIEW},
    "nt_logistic": {"temperature": 0.1, **_OTHER_VIEW},
    "decoupled_ntxent": {"temperature": 1.0, "weight": 0.1, **_PAIRWISE},
    "align_uniform": {
        "temperature": 0.5,
        "weight": 1.0,
        "include_self": True,
        "normalize": True,
        "block_size": 0,
    },
    "swd_hypersphere": {**_SWD, "normalize": True, "scale": 1000.0},
    "swd_normal": _SWD,
    "swd_hypercube": _SWD,
    "moco": {"temperature": 0.1, **_PAIRWISE},
    "cross_entropy": {"label_smoothing": 0.0, "reduction": "mean"},
}
SUPERVISED_LOSSES = (
    "supcon",
    "supcon_in",
    "sincere",
    "eps_supinfonce",
    "npairs",
    "triplet",
    "cross_entropy",
)
# Losses that are a softmax over all other views of the batch, if none of these
# options says otherwise: ln(V * G - 1) where all candidates look alike.
SOFTMAX_OVER_VIEWS = ("ntxent", "supcon", "supcon_in")
OTHER_SOFTMAX = ("denominator", "negatives", "positives_cap", "reduction")
# Losses whose positives are the image's other views.
VIEW_LOSSES = (
    "ntxent",
    "margin",
    "nt_logistic",
    "decoupled_ntxent",
    "align_uniform",
    "swd_hypersphere",
    "swd_normal",
    "swd_hypercube",
    "moco",
)
LOSSES = tuple(LOSS_OPTIONS)
REDUCTIONS = ("mean", "sum")
CONTRASTS = ("all_views", "one_view")
DENOMINATORS = ("all", "one_positive", "only_negatives")
NEGATIVES = ("all_views", "other_view")
MININGS = ("none", "semi_hard")
EPSILON_PLACES = ("logit", "cosine")
NORMALIZATIONS = ("mean", "paper")

AUGMENTATIONS = (
    "simclr",
    "simaugment",
    "autoaugment",
    "randaugment",
    "stacked_randaugment",
    "broader",
    "crop",
    "none",
)
# What stands after `ablation:`, joined by plus signs.
ABLATIONS = (
    "rotate",
    "cutout",
    "noise",
    "sobel",
    "blur",
    "color_drop",
    "color_jitter",
    "equalize",
    "solarize",
    "motion_blur",
)
COLOR_JITTER_STYLES = ("tensorflow", "pytorch", "linear")
STACKED_ORDERS = ("paper", "code")
ABLATION_BRANCHES = ("one", "both")
ENCODERS = (
    "resnet10",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnet200",
)
# Networks of `keras:NAME` and `keras_cv:NAME`.
KERAS_BACKBONES = (
    "DenseNet121",
    "DenseNet169",
    "DenseNet201",
    "EfficientNetB0",
    "EfficientNetB1",
    "EfficientNetB2",
    "EfficientNetB3",
    "EfficientNetB4",
    "EfficientNetB5",
    "EfficientNetB6",
    "EfficientNetB7",
    "InceptionResNetV2",
    "InceptionV3",
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Large",
    "MobileNetV3Small",
    "RegNetX002",
    "RegNetX008",
    "RegNetX032",
    "RegNetX160",
    "RegNetY002",
    "RegNetY008",
    "RegNetY032",
    "RegNetY160",
    "ResNet50V2",
    "ResNet101V2",
    "ResNet152V2",
    "VGG16",
    "VGG19",
    "Xception",
)
KERAS_CV_BACKBONES = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnet18_v2",
    "resnet34_v2",
    "resnet50_v2",
    "resnet101_v2",
    "resnet152_v2",
    "csp_darknet_tiny",
    "csp_darknet_s",
    "csp_darknet_m",
    "csp_darknet_l",
    "csp_darknet_xl",
)
_BACKBONES = {"keras": KERAS_BACKBONES, "keras_cv": KERAS_CV_BACKBONES}
_ENCODER_FORMS = (*ENCODERS, "keras:NAME", "keras_cv:NAME")
STEMS = ("auto", "imagenet", "cifar")
PROJECTIONS = ("identity", "linear", "mlp")
# The options of each optimizer, with their defaults (`optimizers.build`).
_MOMENTUM = {"momentum": 0.9, "momentum_style": "classic", "nesterov": False}
# Kingma and Ba 2015, algorithm 1.
_ADAM = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8}
OPTIMIZER_OPTIONS: dict[str, dict[str, Any]] = {
    # SimCLR, section 2.2; its code's trust coefficient.
    "lars": {**_MOMENTUM, "weight_decay": 1e-6, "trust_coefficient": 0.001},
    "sgd": {**_MOMENTUM, "weight_decay": 1e-6},
    # SupCon's linear stage, as in the authors' code.
    "rmsprop": {
        "momentum": 0.9,
        "rho": 0.9,
        "epsilon": 1.0,
        "weight_decay": 1e-6,
    },
    "adam": {**_ADAM, "weight_decay": 1e-6},
    "adamw": {**_ADAM, "weight_decay": 0.01},
}
OPTIMIZERS = tuple(OPTIMIZER_OPTIONS)
# What a linear stage has in their place: SimCLR, appendix B.6.
LINEAR_OPTIMIZER_OPTIONS: dict[str, dict[str, Any]] = {
    # As in SimCLR's code, which leaves the classifier out of the adaptation:
    # it starts at zero, and LARS goes by the norm of the weights.
    "lars": {"weight_decay": 0.0, "trust_coefficient": None},
    "sgd": {"weight_decay": 0.0, "nesterov": True},
    "rmsprop": {"weight_decay": 0.0},
    "adam": {"weight_decay": 0.0},
    "adamw": {"weight_decay": 0.0},
}
MOMENTUM_STYLES = ("classic", "popular")
# The base learning rate of each, per 256 images: SimCLR's; those of SupCon's
# code for its cross entropy and its linear stage; Adam's own.
LEARNING_RATES = {
    "lars": 0.3,
    "sgd": 0.1,
    "rmsprop": 0.05,
    "adam": 0.001,
    "adamw": 0.001,
}
# The options of each schedule, with their defaults (`schedules.build`).
SCHEDULE_OPTIONS: dict[str, dict[str, Any]] = {
    "cosine": {},
    "linear": {},
    # SupCon's linear stage, as in the authors' code.
    "exponential": {"decay_rate": 0.97, "decay_epochs": 0.5, "staircase": True},
    # He et al. 2016, of 90 epochs or 100 on ImageNet.
    "piecewise": {"decay_rate": 0.1, "boundaries": (30.0, 60.0, 90.0)},
    "constant": {},
}
SCHEDULES = tuple(SCHEDULE_OPTIONS)
SCALINGS = ("linear", "sqrt", "none")
SAMPLERS = ("shuffle", "class_balanced")
AUGMENT_ON = ("auto", "host", "device")
CACHES = ("auto", "memory", "none")
STRATEGIES = ("auto", "default", "mirrored", "multiworker", "tpu")
# How replicas add -> the strategies that can do it so.
CROSS_DEVICE_OPS = {
    "auto": STRATEGIES,
    "nccl": ("mirrored", "multiworker"),
    "ring": ("multiworker",),
    "hierarchical_copy": ("mirrored",),
    "reduction_to_one_device": ("mirrored",),
}
PRECISIONS = ("auto", "float32", "mixed_bfloat16")
PROTOCOLS = (
    "knn",
    "prototype",
    "head",
    "linear",
    "logistic",
    "finetune",
    "transfer",
    "robustness",
    "separation",
    "kl_bound",
    "contrastive",
    "uniformity",
    "spectrum",
    "transforms",
    "tsne",
    "kmeans",
)
# Neighbours that vote where no list of them is given (SINCERE, appendix M).
KNN_K = 5
# What `--scale` stands for, beside the fields' own defaults, which are the
# papers': what each of them takes hours for on a CPU is cut down here.
SCALES: dict[str, dict[str, Any]] = {
    "paper": {},
    "cpu": {
        "linear_augmentation": "none",
        "linear_batch_size": 256,
        "finetune_fractions": "0.01,0.1",
        "finetune_epochs": "60,15",
        "finetune_batch_size": 256,
        # The untrained encoder, fine-tuned, is that baseline.
        "finetune_scratch": False,
        "transfer_methods": "linear",
        "transfer_examples": 5000,
        # A noise, a blur and a digital one.
        "robustness_corruptions": "gaussian_noise,defocus_blur,contrast",
        "robustness_examples": 2000,
        "view_examples": 2000,
        "transforms_train": 2000,
        "transforms_test": 2000,
    },
}
# Of 10 % of the labels (SimCLR, appendix B.5), and of shares of one's own.
FINETUNE_EPOCHS = "30"
# What `--linear_recipe` stands for, beside the fields' own defaults.
LINEAR_RECIPES: dict[str, dict[str, Any]] = {
    # Appendix B.6: Nesterov's momentum, which is the fields' default.
    "simclr": {},
    # The same with LARS, by the numbers of pretraining.
    "simclr_lars": {
        "linear_optimizer": "lars",
        "linear_learning_rate": 0.3,
        "linear_weight_decay": 1e-6,
        "linear_warmup_epochs": 10.0,
    },
    # Appendix J: learning rate chosen on a tenth of train.
    "sincere": {
        "linear_epochs": 100,
        "linear_batch_size": 128,
        "linear_nesterov": False,
        "linear_weight_decay": 1e-4,
        "linear_learning_rates": "0.01,0.03,0.1,0.3,1",
    },
    # Section 10.1, with the learning rate and decay of the authors' code, and
    # the augmentation of its best model.
    "supcon": {
        "linear_epochs": 350,
        "linear_batch_size": 2048,
        "linear_augmentation": "autoaugment",
        "linear_optimizer": "rmsprop",
        "linear_learning_rate": 0.05,
        "linear_weight_decay": 1e-6,
        "linear_schedule": "exponential",
    },
}

# What `export` writes: the SavedModel always, the others beside it.
EXPORT_FORMATS = ("savedmodel", "tflite", "onnx")
EXPORT_HEADS = ("none", "probe", "prototype", "knn")
# Format -> the ending of its files.
EMBEDDING_FORMATS = {
    "npz": ".npz",
    "tfrecord": ".tfrecord",
    "parquet": ".parquet",
}

# Datasets that are named by a scheme and what follows it; any other name but
# `digits` and those of PROBING_DATASETS is looked up in TensorFlow Datasets.
EMBEDDED_DATASETS = ("digits",)
DATASET_SCHEMES = ("folder", "tfrecord", "csv")

# ---- Defaults that depend on the data ----------------------------------------

# Side to which images of differing sizes are cropped when none is given.
DEFAULT_IMAGE_SIZE = 224

# What views do unless a table below, or a flag, says otherwise.
VIEW_DEFAULTS = {"flip": True, "color_jitter_strength": 1.0, "blur": True}
# SimCLR, appendix B.9: CIFAR's views; those of small images in general.
SMALL_VIEW_DEFAULTS = {"color_jitter_strength": 0.5, "blur": False}
# By the first part of a dataset's name. A mirrored digit or letter is another
# one, or none.
DATASET_VIEW_DEFAULTS = {
    name: {"flip": False}
    for name in (
        "digits",
        "mnist",
        "kmnist",
        "emnist",
        "svhn_cropped",
        "multidigits",
    )
}


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
# Examples from which those of any other dataset are computed, at most.
WHITEN_EXAMPLES = 10_000
WHITENINGS = ("imagenet", "dataset", "none")

# ---- Constants that are no flag of their own ---------------------------------

# Images up to this side get the CIFAR stem (3x3/1, no pooling) by `auto`
# (the other stem costs accuracy here, or memory there).
CIFAR_STEM_MAX_SIDE = 64
# The smallest side that each stem can take: below it the last stage would
# see less than one pixel of real signal.
SMALLEST_SIDE = {"imagenet": 32, "cifar": 8}
# SimCLR and SupCon: momentum 0.9 and epsilon 1e-5, against Keras' 0.99, 1e-3.
BATCH_NORM_MOMENTUM = 0.9
BATCH_NORM_EPSILON = 1e-5
# When a run is said to have collapsed: the standard deviation of normalised
# embeddings (1 at most), the distance of the loss from that of a guess, and for
# how many epochs in a row.
COLLAPSE_STD = 0.05
GUESSING_MARGIN = 0.01
COLLAPSE_EPOCHS = 3
# Batch size at which a base learning rate is quoted (linear scaling).
REFERENCE_BATCH_SIZE = 256


# Seconds after which the host looks in at the latest, to hear a signal, save or
# show something, unless a single step takes longer.
LOOK_SECONDS = 10.0

# Exit status of a run that ended early and goes on if its command is repeated.
EXIT_RESUME = 42


class UserError(ValueError):
    """Bad input, in one line: what was given, what is allowed, what to do.

    Attributes:
      status: exit status of a command that it ends.
    """

    status = 2


class AbsentDataError(UserError):
    """Data that is not in the place where it was looked for."""


def nearest(given: str, known: Iterable[str]) -> str | None:
    """Returns the name in `known` that is most like `given`, if any is."""
    matches = difflib.get_close_matches(
        given.lower(), list(known), n=1, cutoff=0.5
    )
    return matches[0] if matches else None


def unknown(kind: str, given: object, known: Iterable[str]) -> UserError:
    """Returns the error for a name that is none of `known`."""
    known = list(known)
    match = nearest(str(given), known)
    hint = f"did you mean {match!r}? " if match else ""
    return UserError(
        f"unknown {kind} {given!r}: {hint}known: {', '.join(known)}"
    )


# ---- Fields ------------------------------------------------------------------


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    check: Callable[[Any], str | None] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    required: bool = False,
    identity: bool = True,
) -> Any:
    """A dataclass field that carries all that its flag needs.

    Args:
      default: the default; its type, or the field's annotation, is the flag's.
      help: one line, with the unit.
      choices: the closed set of values, if it is one.
      check: value -> None, or what is allowed, for open sets.
      minimum, maximum, above: bounds of a number (`above` is exclusive).
      required: whether the command needs it to be given.
      identity: whether it decides what the run computes. The others may differ
        when a run is resumed.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "check": check,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "required": required,
        "identity": identity,
    }
    return dataclasses.field(default=default, metadata=metadata)


# ---- Datasets with options in their name -------------------------------------


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
    allowed = _dataset_name(value)
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


def _probing_values(name: str) -> dict[str, str]:
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
    values = _probing_values(name)
    for key in values:
        if key not in known:
            match = nearest(key, known)
            hint = f" (did you mean {match}?)" if match else ""
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
    if allowed := _dataset_name(name):
        raise UserError(f"dataset {name}: must be {allowed}")
    return _read_probing(name)


def _dataset_name(value: str) -> str | None:
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
    match = nearest(scheme, PROBING_DATASETS)
    hint = f" (did you mean {match}?)" if match else ""
    return (
        "digits, folder:PATH, tfrecord:GLOB, csv:PATH, a name of TensorFlow"
        " Datasets such as cifar10, or one of"
        f" {', '.join(PROBING_DATASETS)}{hint}"
    )


def _optional_dataset_name(value: str) -> str | None:
    return _dataset_name(value) if value else None


def ablation_operations(augmentation: str) -> list[str]:
    """Returns the operations of `ablation:OP[+OP]`."""
    return augmentation.partition(":")[2].split("+")


def _augmentation_name(value: str) -> str | None:
    if value in AUGMENTATIONS:
        return None
    if value.partition(":")[0] != "ablation":
        match = nearest(value, AUGMENTATIONS)
        hint = f" (did you mean {match}?)" if match else ""
        return f"one of {', '.join(AUGMENTATIONS)}, ablation:OP[+OP]{hint}"
    names = ablation_operations(value)
    bad = [name for name in names if name not in ABLATIONS]
    if not bad and len(set(names)) == len(names):
        return None
    match = nearest(bad[0], ABLATIONS) if bad else None
    hint = f" (did you mean {match}?)" if match else ""
    return (
        "ablation:OP[+OP] with each operation once, out of"
        f" {', '.join(ABLATIONS)}{hint}"
    )


def channel_statistics(whiten: str) -> ChannelStatistics:
    """Returns what colours are standardised by, for a resolved `--whiten`.

    Args:
      whiten: "imagenet", "none", or the numbers that `write_statistics` wrote.

    Raises:
      UserError: for anything else.
    """
    if whiten == "imagenet":
        return IMAGENET_STATISTICS
    if whiten == "none":
        return ChannelStatistics((0.0,) * 3, (1.0,) * 3)
    if found := _read_statistics(whiten):
        return found
    raise UserError(f"whiten={whiten}: must be {_whitening(whiten)}")


def write_statistics(statistics: ChannelStatistics) -> str:
    """Returns statistics as a value of `--whiten`: mean,of,each/std,of,each."""
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


def _encoder_name(value: str) -> str | None:
    library, colon, network = value.partition(":")
    if value in ENCODERS or (colon and network in _BACKBONES.get(library, ())):
        return None
    if colon and library in _BACKBONES:
        known = [f"{library}:{name}" for name in _BACKBONES[library]]
    else:
        known = _ENCODER_FORMS
    match = nearest(value, known)
    hint = f" (did you mean {match}?)" if match else ""
    return f"one of {', '.join(known)}{hint}"


def _whitening(value: str) -> str | None:
    if value in WHITENINGS or _read_statistics(value):
        return None
    match = nearest(value, WHITENINGS)
    hint = f" (did you mean {match}?)" if match else ""
    return (
        f"one of {', '.join(WHITENINGS)}, or three means and three deviations"
        f" above 0, M,M,M/S,S,S{hint}"
    )


def _service_address(value: str) -> str | None:
    if not value or re.fullmatch(r"grpc://[^/:\s]+:\d+", value):
        return None
    return "grpc://host:port, as launch/data_service prints it"


def read_boundaries(value: str) -> tuple[float, ...]:
    """Returns the epochs that a value of `--boundaries` lists."""
    return tuple(float(part) for part in split_list(value))


def _boundaries(value: str) -> str | None:
    parts = split_list(value)
    if parts and all(re.fullmatch(r"\d+(\.\d+)?", part) for part in parts):
        epochs = read_boundaries(value)
        if epochs[0] > 0 and sorted(set(epochs)) == list(epochs):
            return None
    return "a comma-separated list of rising epochs above 0, such as 30,60,90"


def read_numbers(value: str) -> tuple[float, ...]:
    """Returns the numbers that a comma-separated value lists."""
    return tuple(float(part) for part in split_list(value))


def _rates(value: str) -> str | None:
    number = r"\d+(\.\d+)?(e-?\d+)?"
    parts = split_list(value)
    good = [re.fullmatch(number, part) and float(part) > 0 for part in parts]
    if all(good) and len(set(parts)) == len(parts):
        return None
    return "a comma-separated list of numbers above 0, such as 0.03,0.1,0.3"


def _some_rates(value: str) -> str | None:
    if value and not _rates(value):
        return None
    return "a comma-separated list of numbers above 0, such as 0.03,0.1,0.3"


def _decays(value: str) -> str | None:
    others = [part for part in split_list(value) if part != "0"]
    if value and not _rates(",".join(others)):
        return None
    return "a comma-separated list of numbers from 0 up, such as 0,1e-5,1e-4"


def _fractions(value: str) -> str | None:
    if value and not _rates(value) and max(read_numbers(value)) <= 1:
        return None
    return "a comma-separated list of shares above 0 up to 1, such as 0.01,0.1"


def _epoch_counts(value: str) -> str | None:
    parts = split_list(value)
    if parts and all(re.fullmatch(r"[1-9]\d*", part) for part in parts):
        return None
    return "a comma-separated list of whole numbers from 1 up, such as 60,30"


def read_counts(value: str) -> tuple[int, ...]:
    """Returns the whole numbers that a comma-separated value lists."""
    return tuple(int(part) for part in split_list(value))


def _counts(value: str) -> str | None:
    parts = split_list(value)
    good = [re.fullmatch(r"[1-9]\d*", part) for part in parts]
    if parts and all(good) and len(set(parts)) == len(parts):
        return None
    return "a comma-separated list of whole numbers from 1 up, such as 1,5"


def read_sides(value: str) -> tuple[str, str]:
    """Returns the two sides that a value of `--compare` names."""
    a, b = split_list(value)
    return a, b


def _two_names(value: str) -> str | None:
    if not value or len(split_list(value)) == 2:
        return None
    return "two runs or files of results, such as --compare runs/a runs/b"


def skipped_steps(policy: str) -> int:
    """Non-finite steps that `nan_policy` passes over at most."""
    return 0 if policy == "stop" else int(policy.removeprefix("skip:"))


def read_step_window(value: str) -> tuple[int, int] | None:
    """Returns (first, last) of `--profile_steps`, None if there are none."""
    if not value:
        return None
    first, last = map(int, value.split(","))
    return first, last


def _step_window(value: str) -> str | None:
    if not value:
        return None
    if re.fullmatch(r"[1-9]\d*,[1-9]\d*", value):
        first, last = read_step_window(value)
        if first <= last:
            return None
    return "FIRST,LAST, two steps counted from 1 such as 100,120"


def _nan_policy(value: str) -> str | None:
    if value == "stop" or re.fullmatch(r"skip:[1-9]\d*", value):
        return None
    return "stop, or skip:N for at most N steps, such as skip:10"


def _list_of(
    known: Iterable[str],
    problem_of: Callable[[str], str | None] | None = None,
) -> Callable[[str], str | None]:
    """Makes the check of a comma-separated list of names.

    Args:
      known: the names.
      problem_of: what is wrong with a name, if that takes more than `known`.
    """
    known = tuple(known)

    def check(value: str) -> str | None:
        names = split_list(value)
        if problem_of:
            bad = [name for name in names if problem_of(name)]
        else:
            bad = [name for name in names if name not in known]
        if names and not bad:
            return None
        match = nearest(bad[0], known) if bad else None
        hint = f" (did you mean {match}?)" if match else ""
        return f"a comma-separated list of {', '.join(known)}{hint}"

    return check


def _splits(value: str) -> str | None:
    if re.fullmatch(r"\w+(\[[\d%]*:[\d%]*\])?", value):
        return None
    return "a split such as train, test, train[:1000] or train[10%:]"


def split_list(value: str) -> list[str]:
    """Splits a comma-separated flag value."""
    return [part.strip() for part in value.split(",") if part.strip()]


def given_options(
    group: Any,
    kind: str,
    tables: dict[str, dict[str, Any]],
    prefix: str | None = None,
) -> dict[str, Any]:
    """Returns what was given of a group's options that depend on a name.

    Args:
      group: such as a `Loss`; an option that is None was not given.
      kind: the field that holds the name.
      tables: name -> its options.
      prefix: what may stand before an option's name in that of its field;
        None: `kind` and an underscore.

    Raises:
      UserError: for an option that what is named does not take.
    """
    chosen = getattr(group, kind)
    prefix = f"{kind}_" if prefix is None else prefix
    given = {}
    for field in dataclasses.fields(group):
        value = getattr(group, field.name)
        name = field.name.removeprefix(prefix)
        takers = [n for n, known in tables.items() if name in known]
        if value is None or not takers:
            continue
        if chosen not in takers:
            raise UserError(
                f"--{field.name} is no option of --{kind}={chosen}: it is one"
                f" of {', '.join(takers)}"
            )
        given[name] = value
    return given


# ---- The groups of a pretraining run, in the order of its data flow ----------


@dataclasses.dataclass(frozen=True)
class Data:
    """Where images come from."""

    dataset: str = option(
        "digits",
        "digits (embedded), any TensorFlow Datasets name, folder:PATH,"
        " tfrecord:GLOB, csv:PATH (lines of path,label), or one of"
        f" {', '.join(PROBING_DATASETS)}, whose options the command datasets"
        " lists",
        check=_dataset_name,
    )
    data_dir: str = option(
        "",
        "folder of prepared TensorFlow Datasets; empty: TFDS's own default",
        identity=False,
    )
    split: str = option(
        "train",
        "split to train on, as TFDS writes splits",
        check=_splits,
    )
    test_split: str = option(
        "test",
        "split on which the linear stage is scored (--linear_epochs)",
        check=_splits,
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


@dataclasses.dataclass(frozen=True)
class Views:
    """How an image becomes views."""

    augmentation: str = option(
        "simclr",
        f"augmentation policy of the views: {', '.join(AUGMENTATIONS)}, or"
        " ablation:OP[+OP], operations on cropped views, out of"
        f" {', '.join(ABLATIONS)}",
        check=_augmentation_name,
    )
    augment_on: str = option(
        "auto",
        "where colours change (crop, resize and flip are the host's); auto: on"
        " a GPU or TPU if there is one",
        choices=AUGMENT_ON,
        identity=False,
    )
    views: int = option(2, "views per image", minimum=1)
    image_size: int = option(
        0,
        "side of a view in pixels; 0: the dataset's own, or 224 if it varies",
        minimum=0,
    )
    min_crop_area: float = option(
        0.08,
        "smallest share of the image's area that a random crop keeps",
        above=0.0,
        maximum=1.0,
    )
    flip: bool | None = option(
        None,
        "mirror half of the views left to right; default: yes, but not of"
        f" {', '.join(DATASET_VIEW_DEFAULTS)}",
    )
    color_jitter_strength: float | None = option(
        None,
        "strength s of the colour jitter (0.8s, 0.8s, 0.8s, 0.2s); default:"
        f" {SMALL_VIEW_DEFAULTS['color_jitter_strength']:g} for views of at"
        f" most {CIFAR_STEM_MAX_SIDE} pixels, else"
        f" {VIEW_DEFAULTS['color_jitter_strength']:g}",
        minimum=0.0,
    )
    color_jitter_style: str = option(
        "tensorflow",
        "colour jitter of SimCLR's TensorFlow code (additive brightness, fixed"
        " order, one clip), of torchvision (multiplicative, random order, clip"
        " after each), or linear: the first with saturation and hue in YIQ in"
        " the place of HSV, several times as fast",
        choices=COLOR_JITTER_STYLES,
    )
    blur: bool | None = option(
        None,
        "blur half of the simclr, broader, simaugment and stacked views;"
        f" default: where they have more than {CIFAR_STEM_MAX_SIDE} pixels",
    )
    warp_probability: float = option(
        0.5,
        "share of the simaugment and stacked views that are warped",
        minimum=0.0,
        maximum=1.0,
    )
    randaugment_layers: int = option(
        2, "operations per view of RandAugment", minimum=1, maximum=16
    )
    randaugment_magnitude: float = option(
        10.0,
        "strength of RandAugment's operations, on a scale of 10",
        minimum=0.0,
        maximum=30.0,
    )
    stacked_randaugment_order: str = option(
        "paper",
        "RandAugment before the colour jitter (paper) or after it (code)",
        choices=STACKED_ORDERS,
    )
    ablation_branch: str = option(
        "one",
        "views that an ablation changes: the first of each image, or both",
        choices=ABLATION_BRANCHES,
    )
    mixup_alpha: float = option(
        0.0,
        "alpha of MixUp: images are blended with others, by a share drawn from"
        " Beta(alpha, alpha), and so are labels (cross_entropy); 0: off; with"
        " --cutmix_alpha each takes half of the views",
        minimum=0.0,
    )
    cutmix_alpha: float = option(
        0.0,
        "alpha of CutMix: a box of another image, of an area drawn from"
        " Beta(alpha, alpha), is pasted in (cross_entropy); 0: off",
        minimum=0.0,
    )

    @property
    def mixed(self) -> bool:
        """Whether views are mixed with those of other images."""
        return bool(self.mixup_alpha or self.cutmix_alpha)

    def options(self) -> dict[str, Any]:
        """The options of `views.build` beside the name and the image size.

        What is not given, and has no default of the data, is that of
        `VIEW_DEFAULTS`.
        """
        others = (
            "augmentation",
            "views",
            "image_size",
            "augment_on",
            "mixup_alpha",
            "cutmix_alpha",
        )
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in others
        }
        return {
            name: VIEW_DEFAULTS[name] if value is None else value
            for name, value in values.items()
        }


@dataclasses.dataclass(frozen=True)
class Encoder:
    """The network that is pretrained."""

    encoder: str = option(
        "resnet50",
        f"encoder network: {', '.join(ENCODERS)}; or keras:NAME or"
        " keras_cv:NAME, a network of theirs from random weights",
        check=_encoder_name,
    )
    init_from: str = option(
        "",
        "folder of a run or an export whose encoder this one starts as; empty:"
        " random weights",
    )
    width: float = option(
        1.0, "multiplier of the encoder's channels", above=0.0
    )
    stem: str = option(
        "auto",
        "first layers; auto: cifar (3x3, no pooling) for views of at most"
        f" {CIFAR_STEM_MAX_SIDE} pixels, else imagenet (7x7/2, pooling)",
        choices=STEMS,
    )
    whiten: str = option(
        "imagenet",
        "what colours are standardised by, in the encoder: ImageNet's mean and"
        " deviation, the dataset's own (its known ones, else computed from at"
        f" most {WHITEN_EXAMPLES} examples), none, or numbers M,M,M/S,S,S",
        check=_whitening,
    )


@dataclasses.dataclass(frozen=True)
class Projection:
    """The head whose output the loss sees."""

    projection: str = option("mlp", "projection head", choices=PROJECTIONS)
    projection_layers: int = option(
        2,
        "dense layers of an mlp projection",
        minimum=2,
        maximum=4,
    )
    projection_hidden: int = option(
        0,
        "units of the hidden layers; 0: as many as encoder features",
        minimum=0,
    )
    projection_output: int = option(128, "size of a projection", minimum=2)
    projection_batch_norm: bool = option(
        True,
        "batch normalization in the projection head",
    )


@dataclasses.dataclass(frozen=True)
class Loss:
    """What is minimised. An option that is not given is the loss's default."""

    loss: str = option("ntxent", "contrastive loss", choices=LOSSES)
    temperature: float | None = option(
        None, "what similarities are divided by", above=0.0
    )
    contrast: str | None = option(
        None,
        "anchors: all views, or the first alone against all (supcon,"
        " supcon_in)",
        choices=CONTRASTS,
    )
    denominator: str | None = option(
        None,
        "what a positive is compared with: all others, itself and negatives,"
        " negatives (supcon, supcon_in)",
        choices=DENOMINATORS,
    )
    positives_cap: int | None = option(
        None, "positives kept per anchor (supcon, supcon_in)", minimum=1
    )
    keep_dropped_positives: bool | None = option(
        None, "leave capped positives in the denominator (supcon, supcon_in)"
    )
    scale_by_temperature: bool | None = option(
        None, "multiply the loss by the temperature (supcon, supcon_in)"
    )
    epsilon: float | None = option(
        None, "margin of eps_supinfonce", minimum=0.0
    )
    epsilon_in: str | None = option(
        None,
        "whether epsilon is a margin of logits or of cosines (eps_supinfonce)",
        choices=EPSILON_PLACES,
    )
    margin: float | None = option(
        None,
        "margin, of squared distances (triplet) or cosines (margin)",
        minimum=0.0,
    )
    negatives: str | None = option(
        None,
        "candidates: all views, or the other view's alone (ntxent, margin,"
        " nt_logistic)",
        choices=NEGATIVES,
    )
    mining: str | None = option(
        None, "choice of negatives (margin, nt_logistic)", choices=MININGS
    )
    negative_reduction: str | None = option(
        None,
        "how an anchor's negatives are joined (margin, nt_logistic)",
        choices=REDUCTIONS,
    )
    loss_weight: float | None = option(
        None,
        "weight (lambda) of the distribution term (decoupled_ntxent,"
        " align_uniform, swd_*)",
        minimum=0.0,
    )
    include_self: bool | None = option(
        None, "count an anchor among its candidates (align_uniform)"
    )
    loss_normalization: str | None = option(
        None,
        "what the Wasserstein distance is divided by: as Algorithm 1 prints"
        " it, or so that the batch does not matter (swd_*)",
        choices=NORMALIZATIONS,
    )
    loss_scale: float | None = option(
        None, "factor of the whole loss (swd_*)", above=0.0
    )
    label_smoothing: float | None = option(
        None,
        "share of the target spread over all classes (cross_entropy)",
        minimum=0.0,
        maximum=0.9999,
    )
    loss_normalize: bool | None = option(
        None, "l2-normalise projections inside the loss"
    )
    loss_reduction: str | None = option(
        None, "over the anchors of the global batch", choices=REDUCTIONS
    )
    loss_block_size: int | None = option(
        None,
        "anchors compared at a time; 0: as many as suit the batch",
        minimum=0,
        identity=False,
    )
    key_momentum: float = option(
        0.999,
        "momentum of the key encoder's average (moco)",
        minimum=0.0,
        maximum=0.9999999,
    )
    queue_size: int = option(
        65_536, "keys of earlier batches kept as negatives (moco)", minimum=1
    )
    grad_cache_chunks: int = option(
        1,
        "parts in which a replica's images go through the encoder; the loss"
        " still sees the whole batch (memory falls, time grows by a third)",
        minimum=1,
    )

    def options(self) -> dict[str, Any]:
        """What was given, as options of `losses.build`.

        Raises:
          UserError: for an option that the loss does not take.
        """
        return given_options(self, "loss", LOSS_OPTIONS)


@dataclasses.dataclass(frozen=True)
class Probe:
    """The linear probe that is trained along, behind a stop-gradient."""

    probe: bool = option(True, "train a linear probe along, where labels exist")
    probe_learning_rate: float = option(
        0.1,
        "learning rate of the probe's SGD, per 256 images",
        above=0.0,
    )
    online_knn_size: int = option(
        0,
        "latest training images among which the nearest neighbour of each new"
        " one is looked for, where labels exist, such as 4096; a small part of"
        " an epoch; 0: none",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """How weights move. What is not given is the optimizer's default."""

    optimizer: str = option("lars", "optimizer", choices=OPTIMIZERS)
    momentum: float | None = option(
        None,
        "share of the velocity that a step keeps (lars, sgd, rmsprop);"
        " default: 0.9",
        minimum=0.0,
        maximum=0.9999,
    )
    momentum_style: str | None = option(
        None,
        "whether the learning rate is part of the velocity (classic; the"
        " default) or multiplies it, as in PyTorch (popular) (lars, sgd)",
        choices=MOMENTUM_STYLES,
    )
    nesterov: bool | None = option(
        None, "Nesterov's form of the momentum (lars, sgd)"
    )
    weight_decay: float | None = option(
        None,
        "weight decay, of weights of rank 2 and more that are no bias, scale or"
        " offset: L2, or decoupled from the gradient (adamw); default: 1e-6, or"
        f" {OPTIMIZER_OPTIONS['adamw']['weight_decay']:g} of adamw",
        minimum=0.0,
    )
    trust_coefficient: float | None = option(
        None,
        "trust coefficient (eta) of lars; default:"
        f" {OPTIMIZER_OPTIONS['lars']['trust_coefficient']:g}",
        above=0.0,
    )
    rho: float | None = option(
        None,
        "share of the squares' mean that a step keeps (rmsprop); default:"
        f" {OPTIMIZER_OPTIONS['rmsprop']['rho']:g}",
        minimum=0.0,
        maximum=0.999999,
    )
    beta_1: float | None = option(
        None,
        "share of the gradients' mean that a step keeps (adam, adamw); default:"
        f" {_ADAM['beta_1']:g}",
        minimum=0.0,
        maximum=0.999999,
    )
    beta_2: float | None = option(
        None,
        "share of the squares' mean that a step keeps (adam, adamw); default:"
        f" {_ADAM['beta_2']:g}",
        minimum=0.0,
        maximum=0.999999,
    )
    optimizer_epsilon: float | None = option(
        None,
        "added to the squares' mean (rmsprop; default:"
        f" {OPTIMIZER_OPTIONS['rmsprop']['epsilon']:g}) or to its root (adam,"
        f" adamw; default: {_ADAM['epsilon']:g})",
        above=0.0,
    )

    def options(self) -> dict[str, Any]:
        """What was given, as options of `optimizers.build`.

        Raises:
          UserError: for an option that the optimizer does not take.
        """
        return given_options(self, "optimizer", OPTIMIZER_OPTIONS)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long and how fast."""

    epochs: int = option(100, "epochs to train", minimum=1)
    batch_size: int = option(
        256,
        "images per step over all replicas (the global batch)",
        minimum=2,
    )
    learning_rate: float | None = option(
        None,
        "base learning rate, before scaling; default: "
        + ", ".join(
            f"{rate:g} ({name})" for name, rate in LEARNING_RATES.items()
        )
        + ", and a quarter of that to scale by sqrt",
        above=0.0,
    )
    learning_rate_scaling: str = option(
        "linear",
        "linear: base * batch_size / 256; sqrt: base * sqrt(batch_size)",
        choices=SCALINGS,
    )
    schedule: str = option(
        "cosine",
        "learning rate after the warm-up",
        choices=SCHEDULES,
    )
    decay_rate: float | None = option(
        None,
        "factor of each decay; default:"
        f" {SCHEDULE_OPTIONS['exponential']['decay_rate']:g} (exponential),"
        f" {SCHEDULE_OPTIONS['piecewise']['decay_rate']:g} (piecewise)",
        above=0.0,
        maximum=1.0,
    )
    decay_epochs: float | None = option(
        None,
        "epochs from decay to decay, after the warm-up (exponential); default:"
        f" {SCHEDULE_OPTIONS['exponential']['decay_epochs']:g}",
        above=0.0,
    )
    staircase: bool | None = option(
        None,
        "decay at once after so many epochs, not little by little"
        " (exponential); default: yes",
    )
    boundaries: str | None = option(
        None,
        "comma-separated epochs of the run, warm-up included, at which the"
        " learning rate decays (piecewise); default: 30,60,90",
        check=_boundaries,
    )
    warmup_epochs: float = option(
        -1.0,
        "epochs of linear warm-up; -1: 10, and at most a tenth of --epochs",
        minimum=-1.0,
    )
    learning_rate_floor: float = option(
        0.0,
        "share of the peak learning rate at which the warm-up starts, and"
        " towards which the rate decays",
        minimum=0.0,
        maximum=1.0,
    )

    def options(self) -> dict[str, Any]:
        """What was given, as options of `schedules.build`.

        Raises:
          UserError: for an option that the schedule does not take.
        """
        given = given_options(self, "schedule", SCHEDULE_OPTIONS)
        if "boundaries" in given:
            given["boundaries"] = read_boundaries(given["boundaries"])
        return given


@dataclasses.dataclass(frozen=True)
class LinearStage:
    """The linear classifier on the frozen encoder, trained when that is done.

    It changes nothing of the encoder, so that a finished run takes others.
    """

    linear_epochs: int = option(
        0,
        "epochs of a linear classifier on the frozen encoder, after the"
        " encoder's own; 0: none",
        minimum=0,
        identity=False,
    )
    linear_batch_size: int = option(
        256,
        "images per step of the linear stage, at most all",
        minimum=1,
        identity=False,
    )
    linear_augmentation: str = option(
        "none",
        "augmentation policy of the images that the linear stage learns from,"
        " new ones every epoch, with the run's other options of views; none:"
        " the images as they are, embedded once",
        check=_augmentation_name,
        identity=False,
    )
    linear_label_smoothing: float = option(
        0.0,
        "share of the linear stage's target spread over all classes",
        minimum=0.0,
        maximum=0.9999,
        identity=False,
    )
    linear_optimizer: str = option(
        "sgd",
        "optimizer of the linear stage",
        choices=OPTIMIZERS,
        identity=False,
    )
    linear_momentum: float | None = option(
        None,
        "as --momentum, of the linear stage (lars, sgd, rmsprop); default: 0.9",
        minimum=0.0,
        maximum=0.9999,
        identity=False,
    )
    linear_nesterov: bool | None = option(
        None,
        "as --nesterov, of the linear stage (lars, sgd); default: yes of sgd",
        identity=False,
    )
    linear_weight_decay: float | None = option(
        None,
        "as --weight_decay, of the linear stage; default: 0",
        minimum=0.0,
        identity=False,
    )
    linear_learning_rate: float | None = option(
        None,
        "learning rate of the linear stage, per 256 images; default: that of"
        " its optimizer, as for --learning_rate",
        above=0.0,
        identity=False,
    )
    linear_schedule: str = option(
        "cosine",
        "learning rate of the linear stage after its warm-up",
        choices=SCHEDULES,
        identity=False,
    )
    linear_decay_rate: float | None = option(
        None,
        "as --decay_rate, of the linear stage (exponential, piecewise)",
        above=0.0,
        maximum=1.0,
        identity=False,
    )
    linear_decay_epochs: float | None = option(
        None,
        "as --decay_epochs, of the linear stage (exponential)",
        above=0.0,
        identity=False,
    )
    linear_boundaries: str | None = option(
        None,
        "as --boundaries, of the linear stage (piecewise)",
        check=_boundaries,
        identity=False,
    )
    linear_warmup_epochs: float = option(
        0.0,
        "epochs of the linear stage's linear warm-up",
        minimum=0.0,
        identity=False,
    )

    def optimizer_options(self) -> dict[str, Any]:
        """Options of `optimizers.build` that are not that optimizer's own.

        Raises:
          UserError: for one that the optimizer does not take.
        """
        given = given_options(
            self, "linear_optimizer", OPTIMIZER_OPTIONS, "linear_"
        )
        return LINEAR_OPTIMIZER_OPTIONS[self.linear_optimizer] | given

    def schedule_options(self) -> dict[str, Any]:
        """What was given, as options of `schedules.build`.

        Raises:
          UserError: for an option that the schedule does not take.
        """
        given = given_options(
            self, "linear_schedule", SCHEDULE_OPTIONS, "linear_"
        )
        if "boundaries" in given:
            given["boundaries"] = read_boundaries(given["boundaries"])
        return given

    def knobs(self) -> dict[str, Any]:
        """All of it, as keyword arguments of `evaluation.linear_probe`."""
        return {
            "epochs": self.linear_epochs,
            "batch_size": self.linear_batch_size,
            "label_smoothing": self.linear_label_smoothing,
            "optimizer": self.linear_optimizer,
            "optimizer_options": self.optimizer_options(),
            "learning_rate": resolve_learning_rate(
                self.linear_learning_rate, self.linear_optimizer, "linear"
            ),
            "schedule": self.linear_schedule,
            "schedule_options": self.schedule_options(),
            "warmup_epochs": self.linear_warmup_epochs,
        }

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""
        if not self.linear_epochs:
            self._check_absent()
            return
        self.optimizer_options()
        warmup, epochs = self.linear_warmup_epochs, self.linear_epochs
        if warmup > epochs:
            raise UserError(
                f"--linear_warmup_epochs={warmup:g} is longer than"
                f" --linear_epochs={epochs}: give at most"
                f" --linear_warmup_epochs={epochs}"
            )
        decay = SCHEDULE_OPTIONS[self.linear_schedule] | self.schedule_options()
        if "boundaries" in decay:
            check_boundaries(decay["boundaries"], warmup, epochs, "linear_")

    def _check_absent(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                raise UserError(
                    f"--{field.name}={value} is of the linear stage, of which"
                    " --linear_epochs=0 leaves nothing: give its epochs, such"
                    f" as --linear_epochs={LinearProtocol.linear_epochs}"
                )


@dataclasses.dataclass(frozen=True)
class LinearProtocol(LinearStage):
    """The linear stage of an encoder that is there already."""

    linear_recipe: str = option(
        "simclr",
        "whose numbers: simclr (Nesterov's momentum, 90 epochs); simclr_lars;"
        " sincere (SGD, 100 epochs, its learning rate chosen); supcon (RMSProp"
        " with exponential decay, 350 epochs); flags beside it win",
        choices=tuple(LINEAR_RECIPES),
    )
    linear_epochs: int = option(
        90, "epochs of the linear classifier", minimum=1
    )
    linear_batch_size: int = option(
        4096, "images per step of the linear classifier, at most all", minimum=1
    )
    linear_augmentation: str = option(
        "crop",
        "augmentation policy of the images that the linear classifier learns"
        " from, new ones every epoch, with the run's other options of views;"
        " none: the images as they are, embedded once",
        check=_augmentation_name,
    )
    linear_learning_rates: str = option(
        "",
        "comma-separated learning rates per 256 images, of which the best on"
        " --validation_share of train is taken; empty: --linear_learning_rate",
        check=_rates,
    )

    def knobs(self) -> dict[str, Any]:
        """All of it, as keyword arguments of the linear protocol."""
        return super().knobs() | {
            "learning_rates": read_numbers(self.linear_learning_rates),
            "augmentation": self.linear_augmentation,
        }

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""
        super().check()
        if self.linear_learning_rates and self.linear_learning_rate:
            raise UserError(
                f"--linear_learning_rate={self.linear_learning_rate:g} and"
                f" --linear_learning_rates={self.linear_learning_rates}: give"
                " one of them, or --linear_learning_rates= for none"
            )


@dataclasses.dataclass(frozen=True)
class LogisticProtocol:
    """Logistic regression at the best of many penalties (SimCLR, B.8)."""

    logistic_penalties: int = option(
        45, "penalties of the path, log-spaced", minimum=1
    )
    logistic_lowest_penalty: float = option(
        1e-6, "lowest l2 penalty, against the sum of the losses", above=0.0
    )
    logistic_highest_penalty: float = option(
        1e5, "highest l2 penalty, where the path starts", above=0.0
    )

    def knobs(self) -> dict[str, Any]:
        """The keyword arguments of `evaluation.logistic.measure`."""
        return {
            field.name.removeprefix("logistic_"): getattr(self, field.name)
            for field in dataclasses.fields(self)
        }


# The corruptions of ImageNet-C that mCE is the mean of, and four more.
CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA_CORRUPTIONS = ("gaussian_blur", "saturate", "spatter", "speckle_noise")


@dataclasses.dataclass(frozen=True)
class RobustnessProtocol:
    """Corrupted test images (Hendrycks and Dietterich 2019)."""

    robustness_corruptions: str = option(
        ",".join(CORRUPTIONS),
        "comma-separated corruptions, each at five severities, out of"
        f" {', '.join((*CORRUPTIONS, *EXTRA_CORRUPTIONS))}",
        check=_list_of((*CORRUPTIONS, *EXTRA_CORRUPTIONS)),
    )
    robustness_examples: int = option(
        0, "test images that are corrupted, the first; 0: all", minimum=0
    )
    robustness_bins: int = option(
        15, "bins of confidence of the calibration error", minimum=1
    )
    robustness_baseline: str = option(
        "",
        "JSON file of a baseline's errors by corruption and of clean images,"
        " for mCE; empty: AlexNet's on ImageNet, none on other data",
    )

    def knobs(self) -> dict[str, Any]:
        """Keyword arguments of `evaluation.robustness.measure`."""
        return {
            "corruptions": split_list(self.robustness_corruptions),
            "examples": self.robustness_examples,
            "bins": self.robustness_bins,
            "baseline": self.robustness_baseline,
        }


@dataclasses.dataclass(frozen=True)
class FinetuneProtocol:
    """The encoder trained on, with few labels (SimCLR, appendix B.5)."""

    finetune_fractions: str = option(
        "0.01,0.1,1",
        "comma-separated shares of the training labels, the same number of"
        " every class",
        check=_fractions,
    )
    finetune_epochs: str = option(
        "60,30,30",
        "comma-separated epochs of each share, or one number for all",
        check=_epoch_counts,
    )
    finetune_batch_size: int = option(
        4096, "images per step, at most all", minimum=1
    )
    finetune_learning_rates: str = option(
        "0.05",
        "comma-separated learning rates per 256 images, of which the best on"
        " --validation_share of the labels is taken",
        check=_some_rates,
    )
    finetune_augmentation: str = option(
        "crop",
        "augmentation policy of the images learned from",
        check=_augmentation_name,
    )
    finetune_scratch: bool = option(
        True, "train a random encoder likewise, too, for comparison"
    )

    def knobs(self) -> dict[str, Any]:
        """Keyword arguments of `evaluation.finetune.measure`."""
        return {
            "fractions": list(read_numbers(self.finetune_fractions)),
            "epochs": list(read_counts(self.finetune_epochs)),
            "batch_size": self.finetune_batch_size,
            "learning_rates": list(read_numbers(self.finetune_learning_rates)),
            "augmentation": self.finetune_augmentation,
            "scratch": self.finetune_scratch,
        }

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""
        fractions = read_numbers(self.finetune_fractions)
        epochs = read_counts(self.finetune_epochs)
        if len(epochs) not in (1, len(fractions)):
            raise UserError(
                f"--finetune_epochs={self.finetune_epochs} for"
                f" --finetune_fractions={self.finetune_fractions}: give one"
                f" number for all, or {len(fractions)}"
            )


def _grid(steps: int, rates: str, decays: str) -> dict[str, Any]:
    return {
        "steps": steps,
        "learning_rates": list(read_numbers(rates)),
        "weight_decays": list(read_numbers(decays)),
    }


TRANSFER_SUITES = ("simclr", "sincere")
TRANSFER_METHODS = ("linear", "finetune", "scratch")


@dataclasses.dataclass(frozen=True)
class TransferProtocol:
    """The encoder on other datasets (SimCLR, appendix B.8; SINCERE, J)."""

    transfer_suite: str = option(
        "simclr",
        "simclr: 12 datasets, each with its own metric; sincere: six of them,"
        " by top-1, for encoders of 32 pixels",
        choices=TRANSFER_SUITES,
    )
    transfer_methods: str = option(
        ",".join(TRANSFER_METHODS),
        "comma-separated: linear (logistic regression on the frozen encoder),"
        " finetune, scratch (a random encoder, trained likewise)",
        check=_list_of(TRANSFER_METHODS),
    )
    transfer_examples: int = option(
        0, "examples of each split, the first; 0: all", minimum=0
    )
    transfer_batch_size: int = option(
        256, "images per step, at most all", minimum=1
    )
    transfer_steps: int = option(
        20_000, "steps of fine-tuning at each point of the grid", minimum=1
    )
    transfer_learning_rates: str = option(
        "1e-4,3.16e-4,1e-3,3.16e-3,1e-2,3.16e-2,0.1",
        "comma-separated learning rates of fine-tuning's grid",
        check=_some_rates,
    )
    transfer_weight_decays: str = option(
        "0,1e-6,3.16e-6,1e-5,3.16e-5,1e-4,3.16e-4,1e-3",
        "comma-separated weight decays of its grid, each divided by the"
        " learning rate",
        check=_decays,
    )
    transfer_scratch_steps: int = option(
        40_000, "steps of a random encoder", minimum=1
    )
    transfer_scratch_learning_rates: str = option(
        "1e-3,3.16e-3,1e-2,3.16e-2,0.1,0.316,1",
        "comma-separated learning rates of a random encoder's grid",
        check=_some_rates,
    )
    transfer_scratch_weight_decays: str = option(
        "1e-5,3.16e-5,1e-4,3.16e-4,1e-3,3.16e-3,1e-2,3.16e-2",
        "comma-separated weight decays of its grid, likewise divided",
        check=_decays,
    )

    def knobs(self) -> dict[str, Any]:
        """Keyword arguments of `evaluation.transfer.measure`."""
        return {
            "suite": self.transfer_suite,
            "methods": split_list(self.transfer_methods),
            "examples": self.transfer_examples,
            "batch_size": self.transfer_batch_size,
            "grid": _grid(
                self.transfer_steps,
                self.transfer_learning_rates,
                self.transfer_weight_decays,
            ),
            "scratch_grid": _grid(
                self.transfer_scratch_steps,
                self.transfer_scratch_learning_rates,
                self.transfer_scratch_weight_decays,
            ),
        }


@dataclasses.dataclass(frozen=True)
class Runtime:
    """Where and how it runs."""

    workdir: str = option(
        "",
        "folder of the run; the same folder and flags resume it",
        required=True,
        identity=False,
    )
    seed: int = option(0, "seed of weights, order and views", minimum=0)
    strategy: str = option(
        "auto",
        "tf.distribute strategy; auto: by the devices found",
        choices=STRATEGIES,
        identity=False,
    )
    virtual_devices: int = option(
        0,
        "split the CPU into so many devices, to try mirrored without GPUs",
        minimum=0,
        identity=False,
    )
    tpu: str = option("local", "local, or the name of a TPU", identity=False)
    cross_device_ops: str = option(
        "auto",
        "how replicas add; nccl: GPUs; ring: multiworker; hierarchical_copy and"
        " reduction_to_one_device: mirrored",
        choices=tuple(CROSS_DEVICE_OPS),
        identity=False,
    )
    precision: str = option(
        "auto",
        "precision policy; auto: mixed_bfloat16 on TPUs, else float32",
        choices=PRECISIONS,
    )
    nan_policy: str = option(
        "stop",
        "when a loss or gradient is not finite: stop, or skip:N to pass over at"
        " most N such steps",
        check=_nan_policy,
        identity=False,
    )
    steps_per_execution: int = option(
        0,
        "steps between two looks of the host; 0: as many as take half of"
        f" {LOOK_SECONDS:g} s, and at most up to the next point in TensorBoard,"
        " checkpoint or end of an epoch",
        minimum=0,
        identity=False,
    )
    checkpoint_every_steps: int = option(
        0,
        "steps between checkpoints; 0: at the end of every epoch",
        minimum=0,
        identity=False,
    )
    keep_checkpoint_every_hours: float = option(
        0.0,
        "hours after each of which one checkpoint is kept for good, beside the"
        " newest; 0: none",
        minimum=0.0,
        identity=False,
    )
    keep_checkpoints: int = option(
        3,
        "newest checkpoints to keep",
        minimum=1,
        identity=False,
    )
    log_every_steps: int = option(
        50,
        "steps between points in TensorBoard",
        minimum=1,
        identity=False,
    )
    histograms_every_epochs: int = option(
        5,
        "epochs between histograms in TensorBoard, of similarities, norms and"
        " trust ratios of one small batch of views; 0: none",
        minimum=0,
        identity=False,
    )
    projector_examples: int = option(
        500,
        "images whose features TensorBoard's projector shows when the run is"
        " finished, of the validation cut if there is one; 0: none",
        minimum=0,
        maximum=10_000,
        identity=False,
    )
    profile_steps: str = option(
        "",
        "FIRST,LAST: steps, counted from 1, of which TensorBoard gets a"
        " profile; empty: none",
        check=_step_window,
        identity=False,
    )
    smoke: bool = option(
        False,
        "try the recipe out: two steps in seconds, with a small encoder, small"
        " views and few images (digits, where the dataset is not here), and"
        " all else as it is",
        identity=False,
    )


# ---- The commands ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pretrain:
    """All options of `pretrain`."""

    data: Data = dataclasses.field(default_factory=Data)
    views: Views = dataclasses.field(default_factory=Views)
    encoder: Encoder = dataclasses.field(default_factory=Encoder)
    projection: Projection = dataclasses.field(default_factory=Projection)
    loss: Loss = dataclasses.field(default_factory=Loss)
    probe: Probe = dataclasses.field(default_factory=Probe)
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    linear: LinearStage = dataclasses.field(default_factory=LinearStage)
    runtime: Runtime = dataclasses.field(default_factory=Runtime)

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        validate_fields(self)
        schedule, runtime = self.schedule, self.runtime
        if schedule.warmup_epochs > schedule.epochs:
            raise UserError(
                f"--warmup_epochs={schedule.warmup_epochs:g} is longer than"
                f" --epochs={schedule.epochs}: give at most"
                f" --warmup_epochs={schedule.epochs}"
            )
        self.optimizer.options()
        decay = SCHEDULE_OPTIONS[schedule.schedule] | schedule.options()
        if "boundaries" in decay:
            check_boundaries(
                decay["boundaries"], schedule.warmup_epochs, schedule.epochs
            )
        replicas = runtime.virtual_devices
        if replicas:
            if runtime.strategy not in ("auto", "mirrored"):
                raise UserError(
                    f"--virtual_devices={replicas} needs --strategy=mirrored,"
                    f" not {runtime.strategy}"
                )
            check_divisible(schedule.batch_size, replicas)
        check_cross_device_ops(
            runtime.cross_device_ops, runtime.strategy, replicas
        )
        check_data_service(self.data.data_service, self.data.sampler)
        self._check_loss()
        self._check_mixing()
        self.linear.check()
        if self.views.image_size:
            resolve_encoder(self.encoder, self.views.image_size)

    def _check_loss(self) -> None:
        loss, views = self.loss, self.views.views
        options = LOSS_OPTIONS[loss.loss] | loss.options()
        if loss.loss in VIEW_LOSSES and views < 2:
            raise UserError(
                f"--views={views} leaves {loss.loss} without positives: give"
                " --views=2 or more"
            )
        of_two = loss.loss == "moco" or options.get("negatives") == "other_view"
        if of_two and views != 2:
            raise UserError(
                f"--views={views}: {loss.loss}"
                + (
                    ""
                    if loss.loss == "moco"
                    else " with --negatives=other_view"
                )
                + " compares two views: give --views=2"
            )
        if loss.loss == "moco" and loss.queue_size < self.schedule.batch_size:
            raise UserError(
                f"--queue_size={loss.queue_size} holds less than one batch of"
                f" {self.schedule.batch_size}: give at least"
                f" --queue_size={self.schedule.batch_size}"
            )
        if loss.loss == "moco" and self.runtime.nan_policy != "stop":
            raise UserError(
                f"--nan_policy={self.runtime.nan_policy}: keys that are no"
                " numbers would stay in moco's queue: give --nan_policy=stop"
            )
        online, size = self.probe.online_knn_size, self.schedule.batch_size
        if 0 < online < size:
            raise UserError(
                f"--online_knn_size={online} holds less than one batch of"
                f" {size}: give at least --online_knn_size={size}, or 0"
            )
        replicas = max(self.runtime.virtual_devices, 1)
        check_chunks(loss.grad_cache_chunks, size, replicas)

    def _check_mixing(self) -> None:
        views = self.views
        if not views.mixed:
            return
        name = "mixup_alpha" if views.mixup_alpha else "cutmix_alpha"
        flag = f"--{name}={getattr(views, name):g}"
        if self.loss.loss != "cross_entropy":
            raise UserError(
                f"{flag} makes labels of several classes, of which"
                f" --loss={self.loss.loss} can make nothing: give"
                f" --loss=cross_entropy, or --{name}=0"
            )
        if self.data.sampler != "shuffle":
            raise UserError(
                f"{flag} mixes each image with its neighbour in the batch,"
                f" which --sampler={self.data.sampler} chooses by its class:"
                f" give --sampler=shuffle, or --{name}=0"
            )
        check_pairs(
            self.schedule.batch_size, max(self.runtime.virtual_devices, 1)
        )


# ---- A run that is only tried out --------------------------------------------

# What `--smoke` makes of a run: steps, images a step, channels of a resnet10.
SMOKE_STEPS = 2
SMOKE_BATCH_SIZE = 16
SMOKE_ENCODER = "resnet10"
SMOKE_WIDTH = 0.25
# Side of its views in pixels, by the stem that the recipe's views have.
SMOKE_SIDE = {"imagenet": 32, "cifar": 16}


def stand_in(dataset: str) -> str:
    """Returns what serves in the place of a dataset that is not here.

    The embedded digits with as many classes; within a dataset that is made of
    another one (`of=NAME`), in the place of that one.
    """
    if inner := _source_of(dataset):
        return dataset.replace(f"of={inner}", f"of={stand_in(inner)}")
    return f"digits/{kind_of(dataset).classes}"


def kind_of(dataset: str) -> Kind:
    """Returns how many classes a dataset has, and how large its images are."""
    if inner := _source_of(dataset):
        return kind_of(inner)
    return DATASET_KINDS.get(dataset_family(dataset), OTHER_KIND)


def standing_in(dataset: str) -> str:
    """Returns a line that says what serves in the place of a dataset."""
    classes = "as many classes"
    if kind_of(dataset) is OTHER_KIND:
        classes = f"{OTHER_KIND.classes} classes (its own are not known here)"
    return (
        f"{stand_in(dataset)} stands in for {dataset}, which is not here, with"
        f" {classes}"
    )


def _source_of(dataset: str) -> str | None:
    """Returns the dataset of which a probing one is made, if it is."""
    if dataset_family(dataset) in PROBING_DATASETS:
        return _probing_values(dataset).get("of")
    return None


def smoke(
    run: Pretrain,
    *,
    dataset: str,
    side: int,
    examples: int,
    test_examples: int = 0,
) -> Pretrain:
    """Shrinks a run to two steps that take seconds on a CPU.

    Smaller get image, encoder, data, batch, and how long it lasts; the machine
    is one device, or the virtual ones that were given. What makes a recipe is
    kept: views, head, loss, probe, optimizer and its base learning rate,
    schedule, precision, stages. What has its default by the size of an image
    has that of the recipe's own size.

    Args:
      run: validated.
      dataset: what to train on: that of the run, or its `stand_in`.
      side: of the run's images in pixels, if it does not say `--image_size`.
      examples: how many there are of the training split, unsliced.
      test_examples: likewise of the test split, if there is a linear stage.

    Returns:
      A run without `--smoke` that does it.
    """
    side = run.views.image_size or side
    stem = resolve_stem(run.encoder.stem, side)
    chunks = min(run.loss.grad_cache_chunks, 2)
    # Pairs on every replica, and in every chunk.
    unit = 2 * chunks * max(run.runtime.virtual_devices, 1)
    # A cut of which a batch can be made.
    cut = run.data.validation_fraction and max(
        run.data.validation_fraction, 1 / 3
    )
    room = int(examples * (1 - cut)) // SMOKE_STEPS
    room = min(SMOKE_BATCH_SIZE, run.schedule.batch_size, room)
    batch = max(room // unit, 1) * unit
    taken = min(math.ceil(SMOKE_STEPS * batch / (1 - cut)), examples)
    train, test = whole(run.data.split), whole(run.data.test_split)
    linear = {}
    if dataset != run.data.dataset:
        train, test = "train", "test"
        linear = {"test_split": test}
    if run.linear.linear_epochs:
        linear = {
            "test_split": f"{test}[:{min(batch, test_examples)}]",
            "linear_batch_size": min(run.linear.linear_batch_size, batch),
            **_shortened(run.linear, "linear_"),
        }
    views = resolve_views(run.views, run.data.dataset, side)
    return replace(
        dataclasses.replace(run, views=views),
        dataset=dataset,
        split=f"{train}[:{taken}]",
        validation_fraction=cut,
        data_service="",
        image_size=min(SMOKE_SIDE[stem], side),
        encoder=SMOKE_ENCODER,
        init_from="",
        width=min(SMOKE_WIDTH, run.encoder.width),
        stem=stem,
        grad_cache_chunks=chunks,
        batch_size=batch,
        **_memories(run, batch),
        **_shortened(run.schedule),
        **linear,
        strategy="mirrored" if run.runtime.virtual_devices else "default",
        tpu=Runtime.tpu,
        cross_device_ops=Runtime.cross_device_ops,
        steps_per_execution=Runtime.steps_per_execution,
        checkpoint_every_steps=Runtime.checkpoint_every_steps,
        keep_checkpoint_every_hours=Runtime.keep_checkpoint_every_hours,
        log_every_steps=1,
        # What is only looked at is no part of a recipe.
        histograms_every_epochs=0,
        projector_examples=0,
        profile_steps="",
        smoke=False,
    )


def whole(split: str) -> str:
    """Returns the split of which `split` is a slice."""
    return split.partition("[")[0]


def _memories(run: Pretrain, batch: int) -> dict[str, int]:
    """Returns the sizes of what remembers earlier batches, if anything does."""
    sizes = {}
    if run.loss.loss == "moco":
        sizes["queue_size"] = run.loss.queue_size
    if run.probe.online_knn_size:
        sizes["online_knn_size"] = run.probe.online_knn_size
    return {k: max(min(size, 4 * batch), batch) for k, size in sizes.items()}


def _shortened(
    group: Schedule | LinearStage, prefix: str = ""
) -> dict[str, Any]:
    """Returns the durations of a schedule of one epoch of two steps.

    A warm-up becomes one step; where the rate decays stays where it was
    between the warm-up and the end.
    """
    values = {
        field.name.removeprefix(prefix): getattr(group, field.name)
        for field in dataclasses.fields(group)
    }
    epochs = values["epochs"]
    warmup = resolve_warmup(values["warmup_epochs"], epochs)
    start = 1 / SMOKE_STEPS if warmup else 0.0
    short = {"epochs": 1, "warmup_epochs": start}
    name = values["schedule"]
    decays = values["boundaries"] or SCHEDULE_OPTIONS[name].get("boundaries")
    if decays:
        if isinstance(decays, str):
            decays = read_boundaries(decays)
        places = [(b - warmup) / (epochs - warmup) for b in decays]
        short["boundaries"] = ",".join(
            f"{start + (1 - start) * place:.6f}" for place in places
        )
    return {f"{prefix}{name}": value for name, value in short.items()}


def differences(before: Any, after: Any) -> list[str]:
    """Returns what two configs of a command differ in, as `--name=old -> new`.

    Options that were not given before are left out.
    """
    return [
        f"--{field.name}={old} -> {new if new != '' else '(none)'}"
        for (_, field, old), (_, _, new) in zip(
            fields(before), fields(after), strict=True
        )
        if old is not None and old != new
    ]


@dataclasses.dataclass(frozen=True)
class DoctorRuntime(Runtime):
    """Where and how the run would run."""

    workdir: str = option(
        "",
        "folder of the run, in which doctor.json is written; empty: nothing is",
        identity=False,
    )


@dataclasses.dataclass(frozen=True)
class Doctor(Pretrain):
    """All options of `doctor`: those of `pretrain`, of which it tells."""

    runtime: DoctorRuntime = dataclasses.field(default_factory=DoctorRuntime)


@dataclasses.dataclass(frozen=True)
class RepresentationProtocols:
    """How far the protocols go that look at representations themselves."""

    view_examples: int = option(
        10_000,
        "test images whose augmented views are compared, at most (contrastive,"
        " uniformity, kl_bound)",
        minimum=2,
    )
    contrastive_batch_size: int = option(
        4096,
        "images among which the other view is to be found (contrastive)",
        minimum=2,
    )
    kl_batch_size: int = option(
        512, "images that are compared with one another (kl_bound)", minimum=2
    )
    random_directions: int = option(
        12, "orthogonal directions of histograms (uniformity)", minimum=1
    )
    transforms_train: int = option(
        10_000, "training images that are transformed, at most", minimum=20
    )
    transforms_test: int = option(
        10_000, "test images that are transformed, at most", minimum=2
    )
    transforms_hidden: int = option(
        512, "hidden units of the networks that tell transformations", minimum=1
    )
    tsne_examples: int = option(
        2000, "test images on the t-SNE map, at most", minimum=4
    )
    tsne_classes: int = option(
        10, "random classes on the t-SNE map, at most", minimum=1
    )
    tsne_perplexity: float = option(
        30.0, "neighbours that t-SNE heeds, less of few images", above=1.0
    )
    kmeans_images: int = option(
        4, "random test images whose local features are clustered", minimum=1
    )
    kmeans_clusters: str = option(
        "2,4,8,16",
        "comma-separated numbers of clusters of each image (kmeans)",
        check=_counts,
    )
    kmeans_scale: int = option(
        2,
        "times the encoder's own image side at which local features are made"
        " (kmeans; an export takes its own side only)",
        minimum=1,
        maximum=8,
    )

    def knobs(self, protocol: str) -> dict[str, Any]:
        """The keyword arguments of a protocol's `measure`, without the seed."""
        values = {name: getattr(self, name) for name in _KNOBS[protocol]}
        if "kmeans_clusters" in values:
            values["kmeans_clusters"] = list(read_counts(self.kmeans_clusters))
        return values


_KNOBS: dict[str, tuple[str, ...]] = {
    "separation": (),
    "kl_bound": ("view_examples", "kl_batch_size"),
    "contrastive": ("view_examples", "contrastive_batch_size"),
    "uniformity": ("view_examples", "random_directions"),
    "spectrum": (),
    "transforms": ("transforms_train", "transforms_test", "transforms_hidden"),
    "tsne": ("tsne_examples", "tsne_classes", "tsne_perplexity"),
    "kmeans": ("kmeans_images", "kmeans_clusters", "kmeans_scale"),
}


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What `evaluate` measures, and on what."""

    workdir: str = option("", "folder of the run to evaluate")
    saved_model: str = option(
        "", "export to evaluate instead of a run (needs --dataset)"
    )
    output_dir: str = option(
        "",
        "folder to write results into; empty: that of the run; of an export:"
        " none, a table is all",
    )
    compare: str = option(
        "",
        "A,B: two runs, or results within them (RUN:untrained,"
        " RUN/evaluation/trained-knn.npz), to be told apart by tests; the two"
        " words after --compare are it",
        check=_two_names,
    )
    protocols: str = option(
        "knn,prototype,linear",
        f"comma-separated protocols out of {', '.join(PROTOCOLS)}; all: each"
        " whose data is there",
        check=_list_of((*PROTOCOLS, "all")),
    )
    scale: str = option(
        "paper",
        "paper: the papers' protocols, for accelerators; cpu: versions of their"
        " own, for minutes on a CPU (linear on embeddings that are made once);"
        " flags beside it win",
        choices=tuple(SCALES),
    )
    watch: bool = option(
        False, "evaluate each new checkpoint of the run until it has ended"
    )
    watch_every_seconds: float = option(
        30.0, "seconds between two looks for a new checkpoint", above=0.0
    )
    untrained: bool = option(
        True, "evaluate a random encoder of the same kind, too"
    )
    dataset: str = option(
        "", "dataset; empty: that of the run", check=_optional_dataset_name
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    train_split: str = option(
        "train", "split that the classifiers learn from", check=_splits
    )
    test_split: str = option("test", "split that is scored", check=_splits)
    validation_share: float = option(
        0.1,
        "share of each class of train on which what must be chosen is chosen;"
        " never on test",
        above=0.0,
        maximum=0.9,
    )
    knn_k: str = option(
        "1,5",
        "comma-separated numbers of neighbours that vote (1: 1NN)",
        check=_counts,
    )
    embedding_batch_size: int = option(
        256, "images embedded at a time", minimum=1
    )
    seed: int = option(
        0, "seed of all that is drawn: orders, views, parts of train", minimum=0
    )
    smoke: bool = option(
        False,
        "try the protocols out: on few images (digits, where --dataset is not"
        " here), for an epoch or two steps, at a point or two of their grids",
    )


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """All options of `evaluate`."""

    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    linear: LinearProtocol = dataclasses.field(default_factory=LinearProtocol)
    logistic: LogisticProtocol = dataclasses.field(
        default_factory=LogisticProtocol
    )
    robustness: RobustnessProtocol = dataclasses.field(
        default_factory=RobustnessProtocol
    )
    finetune: FinetuneProtocol = dataclasses.field(
        default_factory=FinetuneProtocol
    )
    transfer: TransferProtocol = dataclasses.field(
        default_factory=TransferProtocol
    )
    representation: RepresentationProtocols = dataclasses.field(
        default_factory=RepresentationProtocols
    )

    @classmethod
    def presets(cls, given: dict[str, Any]) -> dict[str, Any]:
        """What `--scale` and `--linear_recipe` stand for.

        Args:
          given: options that were given.

        Returns:
          Options beside them, over which those that were given win.
        """
        recipe = given.get("linear_recipe", LinearProtocol.linear_recipe)
        chosen = dict(LINEAR_RECIPES.get(recipe, {}))
        if "linear_learning_rate" in given:
            chosen.pop("linear_learning_rates", None)
        if given.get("linear_learning_rates"):
            chosen.pop("linear_learning_rate", None)
        if "linear_optimizer" in given:
            # Of another optimizer these would be no options, or other ones.
            for name in ("nesterov", "weight_decay", "learning_rate"):
                chosen.pop(f"linear_{name}", None)
        scale = dict(SCALES.get(given.get("scale", Evaluation.scale), {}))
        size = "linear_batch_size"
        if size in scale and size in chosen:
            chosen[size] = min(chosen[size], scale.pop(size))
        chosen |= scale
        if "finetune_fractions" in given:
            # One number, whatever their number is.
            chosen["finetune_epochs"] = FINETUNE_EPOCHS
        epochs = given.get("linear_epochs")
        if epochs and "linear_warmup_epochs" in chosen:
            # As of pretraining: at most a tenth.
            chosen["linear_warmup_epochs"] = resolve_warmup(-1, epochs)
        return chosen

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        validate_fields(self)
        e = self.evaluation
        if e.compare:
            self._check_compare()
            return
        if bool(e.workdir) == bool(e.saved_model):
            raise UserError(
                "give one of --workdir=RUN and --saved_model=EXPORT/VERSION,"
                " or --compare A B"
            )
        if e.saved_model and not e.dataset:
            raise UserError(
                "--saved_model needs --dataset=NAME: an export does not say on"
                " what it is to be scored"
            )
        if e.watch and not e.workdir:
            raise UserError(
                "--watch needs --workdir=RUN: an export gets no new checkpoint"
            )
        self.linear.check()
        self.finetune.check()

    def _check_compare(self) -> None:
        e = self.evaluation
        for name in ("workdir", "saved_model", "watch"):
            if value := getattr(e, name):
                raise UserError(
                    f"--compare={e.compare} reads results that are there, and"
                    f" takes no --{name}={value}: give one or the other"
                )


def smoke_evaluation(
    options: Evaluate,
    *,
    dataset: str,
    train: tuple[str, int],
    test: tuple[str, int],
) -> Evaluate:
    """Shrinks what `evaluate` does to seconds on a CPU; see `smoke`.

    Args:
      options: validated.
      dataset: what to evaluate on: that of the options or the run, or its
        `stand_in`.
      train: its split to learn from, unsliced, and how many examples it has.
      test: likewise the one that is scored.
    """
    few, many = SMOKE_BATCH_SIZE, 4 * SMOKE_BATCH_SIZE
    chosen = split_list(options.evaluation.protocols)
    shrunk = _smoke_protocols(options)
    if "all" not in chosen:
        shrunk = {name: shrunk.get(name, {}) for name in chosen}
    values = {k: v for of in shrunk.values() for k, v in of.items()}
    return replace(
        options,
        dataset=dataset,
        train_split=f"{train[0]}[:{min(many, train[1])}]",
        test_split=f"{test[0]}[:{min(2 * few, test[1])}]",
        embedding_batch_size=few,
        **values,
        smoke=False,
    )


def _smoke_protocols(options: Evaluate) -> dict[str, dict[str, Any]]:
    """Returns what `--smoke` makes of the options of each protocol."""
    few = SMOKE_BATCH_SIZE

    def first(name: str, count: int = 1) -> dict[str, str]:
        (value,) = (v for _, f, v in fields(options) if f.name == name)
        return {name: ",".join(split_list(value)[:count])}

    logistic = {"logistic_penalties": 3}
    return {
        "linear": {
            "linear_batch_size": min(options.linear.linear_batch_size, few),
            **_shortened(options.linear, "linear_"),
            **first("linear_learning_rates", 2),
        },
        "logistic": logistic,
        "robustness": {
            "robustness_examples": few,
            **first("robustness_corruptions"),
        },
        "finetune": {
            "finetune_epochs": "1",
            "finetune_batch_size": few,
            **first("finetune_learning_rates", 2),
        },
        "transfer": {
            "transfer_examples": 4 * few,
            "transfer_batch_size": few,
            "transfer_steps": SMOKE_STEPS,
            "transfer_scratch_steps": SMOKE_STEPS,
            **first("transfer_learning_rates"),
            **first("transfer_weight_decays", 2),
            **first("transfer_scratch_learning_rates"),
            **first("transfer_scratch_weight_decays"),
            **logistic,
        },
        "kl_bound": {"view_examples": 2 * few, "kl_batch_size": few},
        "contrastive": {
            "view_examples": 2 * few,
            "contrastive_batch_size": few,
        },
        "uniformity": {"view_examples": 2 * few},
        "transforms": {"transforms_train": 2 * few, "transforms_test": few},
        "tsne": {"tsne_examples": 2 * few},
        "kmeans": {"kmeans_images": 1},
    }


def evaluate(**given: Any) -> Evaluate:
    """Options of `evaluate`, with what `scale` and `linear_recipe` stand for.

    Args:
      **given: by the name of the flag, whatever its group.
    """
    return replace(Evaluate(), **(Evaluate.presets(given) | given))


@dataclasses.dataclass(frozen=True)
class Exporting:
    """What `export` writes."""

    workdir: str = option("", "folder of the run to export", required=True)
    output_dir: str = option(
        "", "folder to write <version>/ into; empty: <workdir>/export"
    )
    checkpoint: int = option(
        -1, "step of the checkpoint to export; -1: the newest", minimum=-1
    )
    format: str = option(
        "savedmodel",
        "comma-separated formats: savedmodel, which is written always, tflite"
        " (float32, and with 8 bits) and onnx (extra [onnx])",
        check=_list_of(EXPORT_FORMATS),
    )
    head: str = option(
        "none",
        "classifier of the signature `classify`: the run's own linear probe,"
        " class prototypes or the nearest neighbours, the latter two of the"
        " run's training split",
        choices=EXPORT_HEADS,
    )
    head_knn_k: int = option(5, "neighbours that vote (--head=knn)", minimum=1)
    head_temperature: float = option(
        0.1,
        "what cosines are divided by to make probabilities (--head=prototype)",
        above=0.0,
    )
    data_dir: str = option(
        "",
        "folder of prepared TensorFlow Datasets, if it is another one than the"
        " run's",
    )
    calibration_images: int = option(
        128,
        "images of the run's training split by which other formats are"
        " calibrated and checked",
        minimum=1,
    )
    max_image_pixels: int = option(
        2**27,
        "most pixels of an encoded image that is served; larger ones are"
        " refused by their header, so that none fills the memory",
        minimum=1,
    )


@dataclasses.dataclass(frozen=True)
class Export:
    """All options of `export`."""

    exporting: Exporting = dataclasses.field(default_factory=Exporting)

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        validate_fields(self)
        e = self.exporting
        for name, head in (
            ("head_knn_k", "knn"),
            ("head_temperature", "prototype"),
        ):
            value = getattr(e, name)
            if value != getattr(Exporting, name) and e.head != head:
                raise UserError(
                    f"--{name}={value:g} is no option of --head={e.head}: give"
                    f" --head={head}"
                )


def _word(value: str) -> str | None:
    if re.fullmatch(r"\w*", value):
        return None
    return "the name of a runner of Apache Beam, such as DirectRunner"


@dataclasses.dataclass(frozen=True)
class Embedding:
    """What `embed` embeds."""

    workdir: str = option("", "folder of the run whose encoder embeds")
    saved_model: str = option("", "export that embeds instead of a run")
    input: str = option(
        "",
        "dataset to embed, named as for --dataset; empty: that of the run",
        check=_optional_dataset_name,
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    split: str = option("test", "split to embed", check=_splits)
    output: str = option("", "file to write", required=True)
    format: str = option(
        "auto",
        "what is written; auto: by the ending of --output, or else npz; parquet"
        " needs pyarrow (extra [beam])",
        choices=("auto", *EMBEDDING_FORMATS),
    )
    shard_size: int = option(
        0,
        "examples of a file, of several: NAME-00000-of-00009.npz; a job that"
        " was killed goes on at the next one; 0: one file",
        minimum=0,
    )
    embedding_batch_size: int = option(
        256, "images embedded at a time", minimum=1
    )
    max_bad_images: int = option(
        10,
        "images that cannot be read before it stops; they are listed in"
        " NAME.bad.txt",
        minimum=0,
    )
    runner: str = option(
        "",
        "runner of Apache Beam that does it, such as DirectRunner or"
        " DataflowRunner (extra [beam]); empty: this process",
        check=_word,
    )
    beam_options: str = option(
        "",
        "further options for Beam, such as '--direct_num_workers=2"
        " --direct_running_mode=multi_processing'",
    )

    @property
    def file_format(self) -> str:
        """The format, in the place of `auto`."""
        if self.format != "auto":
            return self.format
        return next(
            (
                name
                for name, ending in EMBEDDING_FORMATS.items()
                if self.output.endswith(ending)
            ),
            "npz",
        )


@dataclasses.dataclass(frozen=True)
class Embed:
    """All options of `embed`."""

    embedding: Embedding = dataclasses.field(default_factory=Embedding)

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        validate_fields(self)
        e = self.embedding
        if bool(e.workdir) == bool(e.saved_model):
            raise UserError(
                "give one of --workdir=RUN and --saved_model=EXPORT/VERSION"
            )
        if e.saved_model and not e.input:
            raise UserError("--saved_model needs --input=DATASET")
        if e.beam_options and not e.runner:
            raise UserError(
                f"--beam_options={e.beam_options} is for Apache Beam: give its"
                " --runner, such as --runner=DirectRunner"
            )


@dataclasses.dataclass(frozen=True)
class Listing:
    """What `datasets` shows."""

    show: str = option(
        "",
        "dataset of which to write a contact sheet",
        check=_optional_dataset_name,
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    split: str = option("train", "split to show", check=_splits)
    output: str = option("contact_sheet.png", "PNG file to write")


@dataclasses.dataclass(frozen=True)
class Datasets:
    """All options of `datasets`."""

    listing: Listing = dataclasses.field(default_factory=Listing)

    def validate(self) -> None:
        """Raises `UserError` for values that cannot work."""
        validate_fields(self)


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """Which of the papers' claims `reproduce` looks at, and how."""

    claim: str = option(
        "", "claim, or table or figure, to run, by its id, such as SI-T1"
    )
    scale: str = option(
        "cpu",
        "cpu: a small recipe, minutes on two cores; paper: the paper's own, for"
        " a TPU or GPU host",
        choices=("cpu", "paper"),
    )
    list: bool = option(
        False, "print every table and figure, with its recipes and its status"
    )
    report: bool = option(
        False, "write RESULTS.md and its pictures, from the results there are"
    )
    dry_run: bool = option(False, "print the commands of a claim; run nothing")
    seeds: int = option(
        0,
        "runs of every arm; 0: as many as the claim says. Of fewer than five no"
        " test can reach p = 0.05",
        minimum=0,
    )
    workdir: str = option("", "folder of runs and results; the same resumes")
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    claims: str = option("", "JSON file of other claims; empty: the package's")
    configs_dir: str = option("configs", "folder of the flagfiles")
    report_dir: str = option("docs", "folder that RESULTS.md is written into")


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """All options of `reproduce`."""

    reproduction: Reproduction = dataclasses.field(default_factory=Reproduction)

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        validate_fields(self)
        r = self.reproduction
        if sum((bool(r.claim), r.list, r.report)) != 1:
            raise UserError(
                "give one of --list, --claim=ID (such as SI-T1), and --report"
            )
        if not r.workdir and not r.list and not r.dry_run:
            raise UserError(
                "--workdir is missing: give a folder, such as"
                " --workdir=reproduction; the same folder resumes"
            )


BENCHMARKS = ("loss", "input", "views", "step", "evaluation", "serving")
BENCHMARK_LOSSES = ("ntxent", "supcon", "supcon_in", "sincere")


def _benchmark_name(value: str) -> str | None:
    if value in BENCHMARKS:
        return None
    match = nearest(value, BENCHMARKS)
    hint = f" (did you mean {match}?)" if match else ""
    return (
        f"one of {', '.join(BENCHMARKS)}{hint}, as in: benchmark"
        f" {BENCHMARKS[0]}"
    )


def _batch_sizes(value: str) -> str | None:
    sizes = split_list(value)
    if sizes and all(
        re.fullmatch(r"[0-9]+", n) and int(n) >= 4 and int(n) % 2 == 0
        for n in sizes
    ):
        return None
    return (
        "a comma-separated list of even numbers from 4 up (two views of each"
        " image), such as 1024,4096"
    )


@dataclasses.dataclass(frozen=True)
class Benchmarking:
    """What `benchmark` measures, and how."""

    benchmark: str = option(
        "",
        f"what is measured, one of {', '.join(BENCHMARKS)}; the word after the"
        " command is it",
        check=_benchmark_name,
        required=True,
    )
    only_ours: bool = option(False, "leave out what it is compared with")
    repeats: int = option(
        7,
        "runs of which the median is taken; fewer where one takes seconds",
        minimum=1,
    )
    memory: bool = option(
        True, "measure peak memory, of each in a fresh process"
    )
    output: str = option(
        "", "JSON file to write; empty: benchmark_<what is measured>.json"
    )


@dataclasses.dataclass(frozen=True)
class LossBenchmark:
    """What `benchmark loss` computes: values and gradients by projections."""

    losses: str = option(
        ",".join(BENCHMARK_LOSSES),
        f"comma-separated losses out of {', '.join(BENCHMARK_LOSSES)}",
        check=_list_of(BENCHMARK_LOSSES),
    )
    sizes: str = option(
        "1024,4096,16384,65536",
        "comma-separated numbers of embeddings, two views of each image",
        check=_batch_sizes,
    )
    dimension: int = option(128, "size of an embedding", minimum=2)
    classes: int = option(100, "classes of the images", minimum=2)
    temperature: float = option(
        0.1, "what similarities are divided by", above=0.0
    )
    block_size: int = option(
        0,
        "anchors that ours compares at a time; 0: as many as suit the batch",
        minimum=0,
    )
    dense_limit: int = option(
        16384,
        "most embeddings for what needs memory that grows with their square",
        minimum=0,
    )


def _sides(value: str) -> str | None:
    sides = split_list(value)
    if sides and all(re.fullmatch(r"[1-9][0-9]*", side) for side in sides):
        return None
    return "a comma-separated list of sides in pixels, such as 224,32"


@dataclasses.dataclass(frozen=True)
class InputBenchmark:
    """What `benchmark input` makes: two views an example."""

    policies: str = option(
        "simclr,simaugment,autoaugment,randaugment,stacked_randaugment",
        "comma-separated augmentation policies",
        check=_list_of(AUGMENTATIONS, _augmentation_name),
    )
    image_sizes: str = option(
        "224,32",
        "comma-separated sides of views; above 64 pixels they are made of JPEG"
        " files, else of arrays",
        check=_sides,
    )
    input_batch_size: int = option(
        0, "examples of a batch; 0: 64, or 512 of at most 64 pixels", minimum=0
    )
    seconds: float = option(
        3.0, "length of one measurement, of which there are --repeats", above=0
    )
    profile: bool = option(False, "measure every operation by itself, too")
    device_share: bool = option(
        False,
        "measure compiled colours against a ResNet-50's forward and backward"
        " pass, too",
    )


@dataclasses.dataclass(frozen=True)
class SheetBenchmark:
    """What `benchmark views` shows."""

    plot: str = option("views.png", "PNG file of `benchmark views`")
    sheet_size: int = option(96, "side of a view on it in pixels", minimum=8)


def _replica_counts(value: str) -> str | None:
    counts = split_list(value)
    if counts and all(re.fullmatch(r"[1-9][0-9]*", n) for n in counts):
        return None
    return "a comma-separated list of numbers from 1 up, such as 1,2"


@dataclasses.dataclass(frozen=True)
class StepBenchmark:
    """What `benchmark step` trains."""

    run_flags: str = option(
        "--dataset=digits --image_size=32 --encoder=resnet18 --batch_size=64",
        "pretrain's flags, of the run whose step is measured",
    )
    precisions: str = option(
        "float32,mixed_bfloat16",
        "comma-separated precisions",
        check=_list_of(p for p in PRECISIONS if p != "auto"),
    )
    replicas: str = option(
        "1,2",
        "comma-separated numbers of replicas; beyond 1 they are virtual ones,"
        " of the CPU",
        check=_replica_counts,
    )
    end_to_end_seconds: float = option(
        20.0, "length of the measurement with the run's own input", above=0
    )


def _counts(value: str) -> str | None:
    counts = split_list(value)
    if counts and all(re.fullmatch(r"[1-9][0-9]*", n) for n in counts):
        return None
    return "a comma-separated list of numbers from 1 up, such as 1,8,64"


@dataclasses.dataclass(frozen=True)
class ServingBenchmark:
    """What `benchmark serving` serves."""

    serving_model: str = option(
        "", "export to serve; empty: one of an encoder with random weights"
    )
    serving_encoder: str = option(
        "resnet18", "that encoder, with 10 classes", choices=ENCODERS
    )
    serving_image_size: int = option(
        32, "side of the images of that encoder in pixels", minimum=8
    )
    serving_batch_sizes: str = option(
        "1,8,64", "comma-separated images of a request", check=_counts
    )
    serving_seconds: float = option(10.0, "length of each measurement", above=0)


EVALUATION_TASKS = ("knn", "logistic")


@dataclasses.dataclass(frozen=True)
class EvaluationBenchmark:
    """What `benchmark evaluation` classifies."""

    tasks: str = option(
        ",".join(EVALUATION_TASKS),
        f"comma-separated tasks out of {', '.join(EVALUATION_TASKS)}",
        check=_list_of(EVALUATION_TASKS),
    )
    queries: int = option(10_000, "embeddings that kNN classifies", minimum=1)
    bank: int = option(50_000, "embeddings that it looks through", minimum=1)
    bank_dimension: int = option(2048, "size of those embeddings", minimum=2)
    bank_classes: int = option(100, "classes of the bank", minimum=2)
    neighbors: int = option(5, "neighbours that vote", minimum=1)
    path_examples: int = option(
        10_000, "embeddings that logistic regression is fitted to", minimum=2
    )
    path_dimension: int = option(512, "size of those embeddings", minimum=2)
    path_classes: int = option(10, "classes of those embeddings", minimum=2)
    path_penalties: int = option(45, "penalties, each a fit", minimum=1)
    path_steps: int = option(
        100,
        "most steps of one of scikit-learn's fits; its own default, with which"
        " those of low penalties end before they are done",
        minimum=1,
    )


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """All options of `benchmark`."""

    benchmarking: Benchmarking = dataclasses.field(default_factory=Benchmarking)
    loss: LossBenchmark = dataclasses.field(default_factory=LossBenchmark)
    input: InputBenchmark = dataclasses.field(default_factory=InputBenchmark)
    sheet: SheetBenchmark = dataclasses.field(default_factory=SheetBenchmark)
    step: StepBenchmark = dataclasses.field(default_factory=StepBenchmark)
    evaluation: EvaluationBenchmark = dataclasses.field(
        default_factory=EvaluationBenchmark
    )
    serving: ServingBenchmark = dataclasses.field(
        default_factory=ServingBenchmark
    )

    def validate(self) -> None:
        """Raises `UserError` for values that cannot work."""
        validate_fields(self)


# ---- Reading and checking ----------------------------------------------------


def fields(config: Any) -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Yields (group name, field, value) of every option of a command."""
    for group in dataclasses.fields(config):
        values = getattr(config, group.name)
        for field in dataclasses.fields(values):
            yield group.name, field, getattr(values, field.name)


def replace(config: Any, **values: Any) -> Any:
    """Returns `config` with the named fields replaced, whatever their group."""
    groups: dict[str, dict[str, Any]] = {}
    for group, field, _ in fields(config):
        if field.name in values:
            groups.setdefault(group, {})[field.name] = values.pop(field.name)
    if values:
        known = [field.name for _, field, _ in fields(config)]
        raise unknown("option", next(iter(values)), known)
    return dataclasses.replace(
        config,
        **{
            name: dataclasses.replace(getattr(config, name), **changed)
            for name, changed in groups.items()
        },
    )


def problem(field: dataclasses.Field, value: Any) -> str | None:
    """Returns what is allowed for `field`, or None if `value` is."""
    m = field.metadata
    if value is None:
        return None if field.default is None else "given"
    if m["choices"] and value not in m["choices"]:
        match = nearest(str(value), m["choices"])
        hint = f" (did you mean {match}?)" if match else ""
        return f"one of {', '.join(m['choices'])}{hint}"
    if m["check"] and (allowed := m["check"](value)):
        return allowed
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if m["minimum"] is not None and not value >= m["minimum"]:
        return f"at least {m['minimum']:g}"
    if m["above"] is not None and not value > m["above"]:
        return f"above {m['above']:g}"
    if m["maximum"] is not None and not value <= m["maximum"]:
        return f"at most {m['maximum']:g}"
    if m["required"] and value in ("", None):
        return "given; it has no default"
    return None


def validate_fields(config: Any) -> None:
    """Raises `UserError` for the first option whose value is not allowed."""
    for _, field, value in fields(config):
        if allowed := problem(field, value):
            given = (
                f"--{field.name}={value}" if value != "" else f"--{field.name}"
            )
            raise UserError(f"{given}: must be {allowed}")


def resolve_stem(stem: str, image_size: int) -> str:
    """Returns the stem that `auto` stands for at this side of an image."""
    if stem != "auto":
        return stem
    return "cifar" if image_size <= CIFAR_STEM_MAX_SIDE else "imagenet"


def resolve_encoder(encoder: Encoder, image_size: int) -> Encoder:
    """Returns an encoder whose stem suits views of so many pixels a side.

    Raises:
      UserError: for views that are too small for it, or a width or stem for a
        network that has one of its own.
    """
    if encoder.encoder not in ENCODERS:
        check_backbone(encoder.encoder, encoder.width, encoder.stem)
        return encoder
    stem = resolve_stem(encoder.stem, image_size)
    check_image_size(image_size, stem)
    return dataclasses.replace(encoder, stem=stem)


def resolve_warmup(warmup_epochs: float, epochs: float) -> float:
    """Returns the warm-up in epochs; -1: 10, at most a tenth of the run."""
    return min(10.0, epochs / 10) if warmup_epochs == -1 else warmup_epochs


def resolve_learning_rate(
    learning_rate: float | None, optimizer: str, scaling: str
) -> float:
    """Returns the base learning rate: the given one, or the optimizer's.

    SimCLR, appendix B.1: scaled by sqrt, a quarter of the base gives the same
    at a batch of 4096.
    """
    if learning_rate is not None:
        return learning_rate
    return LEARNING_RATES[optimizer] / (4 if scaling == "sqrt" else 1)


def check_boundaries(
    boundaries: tuple[float, ...],
    warmup_epochs: float,
    epochs: float,
    prefix: str = "",
) -> None:
    """Raises `UserError` for epochs at which no learning rate can decay.

    Args:
      boundaries: epochs of the run, rising.
      warmup_epochs: as for `resolve_warmup`.
      epochs: of the run.
      prefix: of the flags' names.
    """
    start = resolve_warmup(warmup_epochs, epochs)
    rising = sorted(set(boundaries)) == list(boundaries)
    if not rising or not all(start <= b < epochs for b in boundaries):
        given = ",".join(f"{b:g}" for b in boundaries)
        raise UserError(
            f"--{prefix}boundaries={given}: give epochs that rise, from"
            f" --{prefix}warmup_epochs={start:g} to less than"
            f" --{prefix}epochs={epochs:g}"
        )


def check_encoder_name(name: str) -> None:
    """Raises `UserError` for a name that is no encoder's."""
    if _encoder_name(name):
        library = name.partition(":")[0]
        known = [f"{library}:{n}" for n in _BACKBONES.get(library, ())]
        raise unknown("encoder", name, known or _ENCODER_FORMS)


def check_backbone(name: str, width: float, stem: str) -> None:
    """Raises `UserError` for options that only our own networks have."""
    if width != Encoder.width:
        raise UserError(
            f"--width={width:g}: {name} has a width of its own: leave --width"
            f" out, or give one of --encoder={','.join(ENCODERS)}"
        )
    if stem != "auto":
        raise UserError(
            f"--stem={stem}: {name} has a stem of its own: leave --stem out, or"
            f" give one of --encoder={','.join(ENCODERS)}"
        )


def check_image_size(image_size: int, stem: str) -> None:
    """Raises `UserError` if views are too small for the encoder's stem."""
    smallest = SMALLEST_SIDE[stem]
    if image_size < smallest:
        other = " or --stem=cifar" if stem == "imagenet" else ""
        raise UserError(
            f"views of {image_size} pixels are too small for the {stem} stem,"
            f" which takes {smallest} and more: give --image_size={smallest}"
            f" or more{other}"
        )


def resolve_views(views: Views, dataset: str, image_size: int) -> Views:
    """Returns views in which what depends on the data has its default.

    Args:
      views: what was given.
      dataset: its name, as for `--dataset`.
      image_size: side of a view in pixels.
    """
    defaults = dict(VIEW_DEFAULTS)
    if image_size <= CIFAR_STEM_MAX_SIDE:
        defaults |= SMALL_VIEW_DEFAULTS
    defaults |= DATASET_VIEW_DEFAULTS.get(_shown_family(dataset), {})
    missing = {k: v for k, v in defaults.items() if getattr(views, k) is None}
    return dataclasses.replace(views, image_size=image_size, **missing)


def dataset_family(name: str) -> str:
    """Returns a dataset's name without configuration, version or path."""
    return re.split("[/: ]", name)[0]


def _shown_family(name: str) -> str:
    """The family of the dataset whose images one shows, if it has one."""
    while dataset_family(name) in PROBING_DATASETS:
        inner = _probing_values(name).get("of")
        if not inner:
            break
        name = inner
    return dataset_family(name)


def cannot_write(path: str, error: Exception, advice: str) -> UserError:
    """Returns the error for a file or folder that cannot be written."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return UserError(f"cannot write {path} ({reason}): {advice}")


def check_pairs(batch_size: int, replicas: int) -> None:
    """Raises `UserError` if a replica's images cannot be mixed in pairs."""
    if batch_size // replicas % 2:
        raise UserError(
            f"--batch_size={batch_size} gives each of {replicas} replica(s) an"
            " odd number of images, which cannot be mixed in pairs: give a"
            f" multiple of {2 * replicas}"
        )


def check_profile_steps(value: str, steps: int) -> None:
    """Raises `UserError` if a run of so many steps does not have them all."""
    window = read_step_window(value)
    if window and window[1] > steps:
        raise UserError(
            f"--profile_steps={value}: the run has {steps:,} steps: give steps"
            f" from 1 to {steps}"
        )


def check_divisible(batch_size: int, replicas: int) -> None:
    """Raises `UserError` if replicas cannot share the global batch evenly."""
    if batch_size % replicas:
        lower = max(batch_size // replicas, 1) * replicas
        raise UserError(
            f"--batch_size={batch_size} is not divisible by the {replicas}"
            f" replicas that share it: give --batch_size={lower} or"
            f" {lower + replicas}"
        )


def check_chunks(chunks: int, batch_size: int, replicas: int) -> None:
    """Raises `UserError` if a replica's images do not make so many chunks."""
    per_replica = batch_size // replicas
    if per_replica % chunks:
        fitting = [c for c in range(1, per_replica + 1) if per_replica % c == 0]
        best = min(fitting, key=lambda c: abs(c - chunks))
        raise UserError(
            f"--grad_cache_chunks={chunks} does not divide the {per_replica}"
            f" images of a replica: give --grad_cache_chunks={best}"
        )


def check_cross_device_ops(
    ops: str, strategy: str, virtual_devices: int
) -> None:
    """Raises `UserError` for collectives that a strategy does not have.

    Args:
      ops: of `CROSS_DEVICE_OPS`.
      strategy: `auto` has those of any.
      virtual_devices: CPU devices to mirror over, 0 for none.
    """
    if virtual_devices and strategy == "auto":
        strategy = "mirrored"
    can = CROSS_DEVICE_OPS[ops]
    if strategy != "auto" and strategy not in can:
        known = [k for k, able in CROSS_DEVICE_OPS.items() if strategy in able]
        raise UserError(
            f"--cross_device_ops={ops} goes with --strategy={' or '.join(can)},"
            f" not {strategy}: give --cross_device_ops={' or '.join(known)}"
        )
    if virtual_devices and ops == "nccl":
        raise UserError(
            f"--cross_device_ops=nccl needs GPUs, --virtual_devices="
            f"{virtual_devices} are none: give --cross_device_ops=auto"
        )


def check_data_service(address: str, sampler: str) -> None:
    """Raises `UserError` for an order that a data service cannot give."""
    if address and sampler != "shuffle":
        raise UserError(
            f"--data_service gives examples as they come, not in the order of"
            f" --sampler={sampler}: give --sampler=shuffle, or no"
            " --data_service"
        )


def check_extra_channels(channels: int, dataset: str, present: int) -> None:
    """Raises `UserError` if a dataset has fewer channels beside its images."""
    if channels > present:
        raise UserError(
            f"--extra_channels={channels}: {dataset} has {present} channels of"
            f" feature extra: give --extra_channels={present} or less"
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


def check_several_labels(run: Pretrain, dataset: str) -> None:
    """Raises `UserError` for what takes one label per image, not several."""
    given = {
        f"--online_knn_size={run.probe.online_knn_size}": "--online_knn_size=0",
        f"--sampler={run.data.sampler}": "--sampler=shuffle",
        f"--mixup_alpha={run.views.mixup_alpha:g}": "--mixup_alpha=0",
        f"--cutmix_alpha={run.views.cutmix_alpha:g}": "--cutmix_alpha=0",
    }
    for flag, instead in given.items():
        if flag != instead:
            raise UserError(
                f"{flag} takes one label per image, and {dataset} has several:"
                f" give {instead}"
            )


def check_labels(loss: str, dataset: str, has_labels: bool) -> None:
    """Raises `UserError` if a supervised loss is to train without labels."""
    if loss in SUPERVISED_LOSSES and not has_labels:
        others = ", ".join(n for n in LOSSES if n not in SUPERVISED_LOSSES)
        raise UserError(
            f"--loss={loss} needs labels, and {dataset} has none: give a"
            f" labelled dataset, or a loss without labels ({others})"
        )
