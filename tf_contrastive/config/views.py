"""How an image becomes views."""

import dataclasses
from typing import Any

from tf_contrastive.config.dataset_names import shown_family
from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE
from tf_contrastive.config.fields import option
from tf_contrastive.errors import UserError, did_you_mean

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
AUGMENT_ON = ("auto", "host", "device")

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


def ablation_operations(augmentation: str) -> list[str]:
    """Returns the operations of `ablation:OP[+OP]`."""
    return augmentation.partition(":")[2].split("+")


def augmentation_name(value: str) -> str | None:
    """What a policy may be called, or None if `value` is such a name."""
    if value in AUGMENTATIONS:
        return None
    if value.partition(":")[0] != "ablation":
        hint = did_you_mean(value, AUGMENTATIONS)
        return f"one of {', '.join(AUGMENTATIONS)}, ablation:OP[+OP]{hint}"
    names = ablation_operations(value)
    bad = [name for name in names if name not in ABLATIONS]
    if not bad and len(set(names)) == len(names):
        return None
    hint = did_you_mean(bad[0], ABLATIONS) if bad else ""
    return (
        "ablation:OP[+OP] with each operation once, out of"
        f" {', '.join(ABLATIONS)}{hint}"
    )


@dataclasses.dataclass(frozen=True)
class Views:
    """How an image becomes views."""

    augmentation: str = option(
        "simclr",
        f"augmentation policy of the views: {', '.join(AUGMENTATIONS)}, or"
        " ablation:OP[+OP], operations on cropped views, out of"
        f" {', '.join(ABLATIONS)}",
        check=augmentation_name,
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
    defaults |= DATASET_VIEW_DEFAULTS.get(shown_family(dataset), {})
    missing = {k: v for k, v in defaults.items() if getattr(views, k) is None}
    return dataclasses.replace(views, image_size=image_size, **missing)


def check_pairs(batch_size: int, replicas: int) -> None:
    """Raises `UserError` if a replica's images cannot be mixed in pairs."""
    if batch_size // replicas % 2:
        raise UserError(
            f"batch_size={batch_size} gives each of {replicas} replica(s) an"
            " odd number of images, which cannot be mixed in pairs: give a"
            f" multiple of {2 * replicas}"
        )
