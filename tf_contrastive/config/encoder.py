"""The encoder and the projection head."""

import dataclasses

from tf_contrastive.config.data import STANDARDIZE_EXAMPLES, standardization
from tf_contrastive.config.fields import one_of, option
from tf_contrastive.errors import UserError, arg, unknown

ENCODERS = (
    "resnet10",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnet200",
)
# The small network of the notebook of Chen et al. 2021: one width, no stem.
CONVNET = "convnet"
# Networks of `keras:NAME` and `keras_cv:NAME`.
KERAS_BACKBONES = (
    "DenseNet121",
    "DenseNet169",
    "DenseNet201",
    *(f"EfficientNetB{number}" for number in range(8)),
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
_RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
KERAS_CV_BACKBONES = (
    *_RESNETS,
    *(f"{name}_v2" for name in _RESNETS),
    *(f"csp_darknet_{size}" for size in ("tiny", "s", "m", "l", "xl")),
)
_BACKBONES = {"keras": KERAS_BACKBONES, "keras_cv": KERAS_CV_BACKBONES}
_ENCODER_FORMS = (*ENCODERS, CONVNET, "keras:NAME", "keras_cv:NAME")
STEMS = ("auto", "imagenet", "cifar")
PROJECTIONS = ("identity", "linear", "mlp")

# Stem `auto` is cifar (3x3/1, no pooling) up to this image side: imagenet would
# cost accuracy below it, cifar would cost memory above it.
CIFAR_STEM_MAX_SIDE = 64
# The smallest image side of each stem: below it the last stage has less than
# one pixel.
SMALLEST_SIDE = {"imagenet": 32, "cifar": 8}


def _encoder_name(value: str) -> str | None:
    library, colon, network = value.partition(":")
    if value in (*ENCODERS, CONVNET) or (
        colon and network in _BACKBONES.get(library, ())
    ):
        return None
    known = [f"{library}:{name}" for name in _BACKBONES.get(library, ())]
    return one_of(value, known or _ENCODER_FORMS)


@dataclasses.dataclass(frozen=True)
class Encoder:
    """The encoder."""

    encoder: str = option(
        "resnet50",
        f"encoder: {', '.join(ENCODERS)}; {CONVNET} (three convolutions, for"
        " MNIST); or keras:NAME or keras_cv:NAME, with"
        " random weights",
        check=_encoder_name,
    )
    init_from: str = option(
        "",
        "encoder with the initial weights: folder of a run or an export, or"
        " pretrained:NAME (see `encoders`); empty: random weights",
    )
    width: float = option(
        1.0, "multiplier of the number of channels", above=0.0
    )
    stem: str = option(
        "auto",
        "first layers: cifar (3x3, no pooling) or imagenet (7x7/2, pooling);"
        f" auto: cifar up to {CIFAR_STEM_MAX_SIDE} pixels",
        choices=STEMS,
    )
    standardize: str = option(
        "imagenet",
        "mean and standard deviation of the channels, by which the encoder's"
        " first layer standardizes images: ImageNet's, the dataset's (known, or"
        f" computed from at most {STANDARDIZE_EXAMPLES} examples), none, or"
        " numbers M,M,M/S,S,S",
        check=standardization,
    )
    zero_init_residual: bool = option(
        True,
        "start the last scale of residual branches at zero (resnet; SimCLR's"
        " and SupCon's code); SINCERE's code starts it at one",
    )


@dataclasses.dataclass(frozen=True)
class Projection:
    """The projection head, whose output is the loss's input."""

    projection: str = option("mlp", "projection head", choices=PROJECTIONS)
    projection_layers: int = option(
        2, "dense layers of the mlp", minimum=2, maximum=4
    )
    projection_hidden: int = option(
        0, "units of the hidden layers; 0: the dimension of the features"
    )
    projection_output: int = option(
        128, "dimension of the projections", minimum=2
    )
    projection_batch_norm: bool = option(
        True, "batch normalization in the projection head"
    )
    projection_bias: bool = option(
        False,
        "bias of the projection head's last layer; with batch normalization"
        " its offset (beta)",
    )
    l2_normalize_features: bool = option(
        False,
        "l2-normalize the encoder's output before the projection head and the"
        " linear probe (SupCon's code on ImageNet)",
    )


def resolve_stem(stem: str, image_size: int) -> str:
    """Returns the stem for an image side, with `auto` resolved."""
    if stem != "auto":
        return stem
    return "cifar" if image_size <= CIFAR_STEM_MAX_SIDE else "imagenet"


def resolve_encoder(encoder: Encoder, image_size: int) -> Encoder:
    """Returns the encoder options for an image side, with `auto` resolved."""
    if encoder.encoder not in ENCODERS:
        check_backbone(encoder.encoder, encoder.width, encoder.stem)
        return encoder
    stem = resolve_stem(encoder.stem, image_size)
    check_image_size(image_size, stem)
    return dataclasses.replace(encoder, stem=stem)


def check_encoder_name(name: str) -> None:
    """Raises `UserError` for a name that is not an encoder's."""
    if _encoder_name(name):
        library = name.partition(":")[0]
        known = [f"{library}:{n}" for n in _BACKBONES.get(library, ())]
        raise unknown("encoder", name, known or _ENCODER_FORMS)


def check_backbone(name: str, width: float, stem: str) -> None:
    """Raises `UserError` for options that a Keras network does not have."""
    for option_name, value, default in (
        ("width", width, Encoder.width),
        ("stem", stem, "auto"),
    ):
        if value != default:
            raise UserError(
                f"{arg(option_name, value)}: {name} has its own: remove"
                f" {arg(option_name)}, or use one of"
                f" {arg('encoder', ','.join(ENCODERS))}"
            )


def check_image_size(image_size: int, stem: str) -> None:
    """Raises `UserError` if views are too small for the encoder's stem."""
    smallest = SMALLEST_SIDE[stem]
    if image_size < smallest:
        other = f" or {arg('stem', 'cifar')}" if stem == "imagenet" else ""
        raise UserError(
            f"views of {image_size} pixels are too small for the {stem} stem:"
            f" set {arg('image_size', smallest)} or more{other}"
        )
