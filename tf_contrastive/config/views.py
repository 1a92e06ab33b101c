"""Augmentation of images into views."""

import dataclasses
from typing import Any

from tf_contrastive.config.dataset import NOT_FLIPPED, facts, image_dataset
from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE
from tf_contrastive.config.fields import one_of, option
from tf_contrastive.errors import UserError, arg, did_you_mean

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
# Operations of `ablation:OP[+OP]`.
ABLATIONS = (
    "crop",
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
# Operations of `simclr+OP[+OP]`: those that SimCLR's policy lacks.
ADDITIONS = (
    "rotate",
    "cutout",
    "noise",
    "sobel",
    "equalize",
    "solarize",
    "motion_blur",
)
ABLATION_BRANCHES = ("one", "both")
# Evaluation preprocessing to a square of S pixels.
PREPROCESSINGS = ("center_crop", "shorter_side", "squash_crop", "squash")

# Prefix of SimCLR's policy with further operations.
_ADDED = "simclr+"

# Defaults of views, unless the table below or the dataset has others.
VIEW_DEFAULTS = {"flip": True, "color_jitter_strength": 1.0, "blur": True}
# For small images: CIFAR's (SimCLR, appendix B.9).
SMALL_VIEW_DEFAULTS = {"color_jitter_strength": 0.5, "blur": False}


def listed_operations(augmentation: str) -> list[str]:
    """Returns the operations of `ablation:OP[+OP]` or `simclr+OP[+OP]`."""
    if augmentation.startswith(_ADDED):
        return augmentation.removeprefix(_ADDED).split("+")
    return augmentation.partition(":")[2].split("+")


def augmentation_name(value: str) -> str | None:
    """Checks the name of an augmentation policy."""
    if value in AUGMENTATIONS:
        return None
    if value.startswith(_ADDED):
        form, known = f"{_ADDED}OP[+OP]", list(ADDITIONS)
    elif value.partition(":")[0] == "ablation":
        form, known = "ablation:OP[+OP]", list(ABLATIONS)
    else:
        return (
            f"ablation:OP[+OP], {_ADDED}OP[+OP], or"
            f" {one_of(value, AUGMENTATIONS)}"
        )
    names = listed_operations(value)
    bad = [name for name in names if name not in known]
    if not bad and len(set(names)) == len(names):
        return None
    hint = did_you_mean(bad[0], known) if bad else ""
    return f"{form} with distinct operations out of {', '.join(known)}{hint}"


@dataclasses.dataclass(frozen=True)
class Views:
    """Augmentation of images into views."""

    augmentation: str = option(
        "simclr",
        f"augmentation policy: {', '.join(AUGMENTATIONS)}; ablation:OP[+OP]:"
        f" operations on cropped views out of {', '.join(ABLATIONS)}; or"
        f" simclr+OP[+OP]: simclr, then some of {', '.join(ADDITIONS)}",
        check=augmentation_name,
    )
    augment_on: str = option(
        "auto",
        "where photometric augmentation runs (crop, resize and flip run on the"
        " host); auto: on a GPU or TPU if there is one",
        choices=("auto", "host", "device"),
        identity=False,
    )
    wire_dtype: str = option(
        "auto",
        "type of the pixels on their way from the host to the device; uint8"
        " rounds them to 256 levels, bfloat16 to 8 significant bits; auto: the"
        " smallest type that does not change the step's results",
        choices=("auto", "float32", "bfloat16", "uint8"),
        identity=False,
    )
    views: int = option(2, "views per image", minimum=1)
    image_size: int | None = option(
        None,
        "side of a view in pixels; auto: the dataset's, or 224 if it varies",
        minimum=1,
        auto=0,
    )
    min_crop_area: float = option(
        0.08,
        "smallest area of a random crop, as a fraction of the image's",
        above=0.0,
        maximum=1.0,
    )
    flip: bool | None = option(
        None,
        "flip half of the views horizontally; auto: true, but not for"
        f" {', '.join(NOT_FLIPPED)}",
    )
    color_jitter_strength: float | None = option(
        None,
        "strength s of the colour jitter (0.8s, 0.8s, 0.8s, 0.2s); auto:"
        f" {SMALL_VIEW_DEFAULTS['color_jitter_strength']:g} up to"
        f" {CIFAR_STEM_MAX_SIDE} pixels, else"
        f" {VIEW_DEFAULTS['color_jitter_strength']:g}",
    )
    color_jitter_style: str = option(
        "tensorflow",
        "tensorflow: as in SimCLR's paper (additive brightness, fixed order,"
        " one clip); tensorflow_shuffled: as in SupCon's code (random order,"
        " clip after each); pytorch: as in torchvision (multiplicative, random"
        " order, clip after each); linear: as tensorflow, with saturation and"
        " hue in YIQ instead of HSV, several times faster",
        choices=("tensorflow", "tensorflow_shuffled", "pytorch", "linear"),
    )
    blur: bool | None = option(
        None,
        "blur half of the views (simclr, broader, simaugment,"
        f" stacked_randaugment); auto: above {CIFAR_STEM_MAX_SIDE} pixels",
    )
    rotate: bool = option(
        False,
        "rotate views by 0, 90, 180 or 270 degrees before their colours change"
        " (simaugment, stacked_randaugment)",
    )
    warp_probability: float = option(
        0.5,
        "probability of warping a view (simaugment, stacked_randaugment)",
        maximum=1.0,
    )
    randaugment_layers: int = option(
        2, "RandAugment operations per view", minimum=1, maximum=16
    )
    randaugment_magnitude: float = option(
        10.0, "magnitude of RandAugment's operations", maximum=30.0
    )
    stacked_randaugment_order: str = option(
        "paper",
        "RandAugment before the colour jitter (paper) or after it (code)",
        choices=("paper", "code"),
    )
    ablation_branch: str = option(
        "one",
        "views that an ablation changes: one (the first) or both",
        choices=ABLATION_BRANCHES,
    )
    mixup_alpha: float = option(
        0.0,
        "MixUp's alpha: images and labels are blended, with a weight from"
        " Beta(alpha, alpha) (cross_entropy); 0: off; with --cutmix_alpha each"
        " is applied to half of the views",
    )
    cutmix_alpha: float = option(
        0.0,
        "CutMix's alpha: a box from another image is pasted in, with an area"
        " from Beta(alpha, alpha) (cross_entropy); 0: off",
    )

    @property
    def side(self) -> int:
        """Side of a view in pixels, of resolved options."""
        assert self.image_size is not None
        return self.image_size

    @property
    def mixed(self) -> bool:
        """Whether views are mixed with those of other images."""
        return bool(self.mixup_alpha or self.cutmix_alpha)

    def options(self) -> dict[str, Any]:
        """Returns the options of `views.build`, without name and image size.

        Options that are None have the value of `VIEW_DEFAULTS`.
        """
        others = {
            "augmentation",
            "views",
            "image_size",
            "augment_on",
            "wire_dtype",
            "mixup_alpha",
            "cutmix_alpha",
        }
        return {
            name: VIEW_DEFAULTS[name] if value is None else value
            for name, value in vars(self).items()
            if name not in others
        }


def resolve_views(views: Views, dataset: str, image_size: int) -> Views:
    """Returns the options with the defaults that depend on the data."""
    defaults: dict[str, Any] = dict(VIEW_DEFAULTS)
    if image_size <= CIFAR_STEM_MAX_SIDE:
        defaults |= SMALL_VIEW_DEFAULTS
    if not facts(image_dataset(dataset)).flip:
        defaults["flip"] = False
    missing = {k: v for k, v in defaults.items() if getattr(views, k) is None}
    return dataclasses.replace(views, image_size=image_size, **missing)


def resolve_wire_dtype(
    views: Views, *, extra_channels: int, rounds_input: bool
) -> str:
    """Returns `wire_dtype` with `auto` resolved.

    Args:
      views: resolved.
      extra_channels: channels that are appended to the views.
      rounds_input: whether the encoder casts its input to bfloat16 first.

    Raises:
      UserError: for uint8, if extra channels are appended.
    """
    given = views.wire_dtype
    if given == "uint8" and extra_channels:
        raise UserError(
            f"{arg('wire_dtype', given)}: the {extra_channels} channels of"
            f" feature `extra` are not pixels: set {arg('wire_dtype', 'auto')}"
            f" or {arg('extra_channels', '0')}"
        )
    if given != "auto":
        return given
    on_device = views.augment_on == "device"
    levels = views.augmentation in ("autoaugment", "randaugment") or (
        # Rounds what it gets to levels, and then leaves them.
        on_device
        and views.augmentation == "stacked_randaugment"
        and views.stacked_randaugment_order == "paper"
    )
    if levels and not extra_channels:
        return "uint8"
    if rounds_input and not (on_device or views.mixed):
        return "bfloat16"
    return "float32"


def check_pairs(batch_size: int, replicas: int) -> None:
    """Raises `UserError` if a replica has an odd number of images."""
    if batch_size // replicas % 2:
        raise UserError(
            f"{arg('batch_size', batch_size)} gives each of {replicas}"
            " replica(s) an odd number of images, which cannot be mixed in"
            f" pairs: use a multiple of {2 * replicas}"
        )
