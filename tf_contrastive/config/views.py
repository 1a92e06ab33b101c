"""Augmentation policies and preprocessings: their options and traits."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from tf_contrastive.base import callables
from tf_contrastive.base.errors import UserError, arg, did_you_mean
from tf_contrastive.config import own
from tf_contrastive.config.checks import one_of
from tf_contrastive.config.command import Group
from tf_contrastive.config.components import Component, Family, by_name
from tf_contrastive.config.data import Reading
from tf_contrastive.config.dataset import facts, image_dataset
from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE
from tf_contrastive.config.fields import argument, module_of, option

# Operations of `ablation:OP[+OP]`, and whether SimCLR's policy lacks them, so
# that `simclr+OP[+OP]` may add them.
OPERATIONS = {
    "crop": False,
    "rotate": True,
    "cutout": True,
    "noise": True,
    "sobel": True,
    "blur": False,
    "color": False,
    "color_drop": False,
    "color_jitter": False,
    "equalize": True,
    "solarize": True,
    "motion_blur": True,
}
# Those that round pixels to 256 levels.
_ON_LEVELS = {"equalize", "solarize", "motion_blur"}
# Defaults for small images: CIFAR's (SimCLR, appendix B.9).
SMALL_DEFAULTS = {"color_jitter_strength": 0.5, "blur": False}
# With small views, the smallest area of a large view's crop, which is the
# largest of a small one's, and its smallest (SwAV's code).
LARGE_CROP_AREA = 0.14
SMALL_CROP_AREA = 0.05


# ---- The policies ------------------------------------------------------------


class PolicyDeclaration(Component):
    """Traits of an augmentation policy.

    Attributes:
      augments: whether the views of an image differ.
      shares_crop: whether all views of an image begin with the same crop.
      crops: whether each view begins with a random crop of its own.
      acts_on_levels: whether all operations round to 256 levels.
      listable: the operations that may be listed, as `names`, in the policy's
        name behind its prefix, if any may.
    """

    implementation: ClassVar[str] = "tf_contrastive.views.policies"
    augments: ClassVar[bool] = True
    shares_crop: ClassVar[bool] = False
    acts_on_levels: ClassVar[bool] = False
    listable: ClassVar[tuple[str, ...]] = ()

    @property
    def crops(self) -> bool:
        """Whether each view begins with a random crop of its own."""
        return "min_crop_area" in self.defaults() and not self.shares_crop

    def sends_levels(self, on_device: bool) -> bool:
        """Whether the host's views have 256 levels, or get them `on_device`."""
        del on_device
        return self.acts_on_levels

    @property
    def rounds(self) -> bool:
        """Whether an operation rounds to 256 levels."""
        return self.acts_on_levels


class NoAugmentation(PolicyDeclaration):
    """No augmentation."""

    name = "none"
    augments = False


class _Cropped(PolicyDeclaration):
    min_crop_area: float = option(
        0.08,
        "smallest area of a random crop, as a fraction of the image's; auto:"
        f" 0.08, or {LARGE_CROP_AREA} with small views, whose largest it is",
        above=0.0,
        maximum=1.0,
    )
    max_crop_area: float = argument(1.0, above=0.0, maximum=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_crop_area > self.max_crop_area:
            raise UserError(
                f"{arg('min_crop_area', self.min_crop_area)} is more than"
                f" {arg('max_crop_area', self.max_crop_area)}: set less"
            )


class Crop(_Cropped):
    """Crop and flip."""

    name = "crop"

    flip: bool = option(
        True,
        "flip half of the views horizontally; auto: true, but not for datasets"
        " of digits and letters",
    )


class _Jittered(_Cropped):
    color_jitter_strength: float = option(
        1.0,
        "strength s of the colour jitter (0.8s, 0.8s, 0.8s, 0.2s); auto:"
        f" {SMALL_DEFAULTS['color_jitter_strength']:g} up to"
        f" {CIFAR_STEM_MAX_SIDE} pixels, else 1",
    )
    color_jitter_style: str = option(
        "tensorflow",
        "tensorflow: as in SimCLR's paper (additive brightness, fixed order,"
        " one clip); tensorflow_shuffled: as in SupCon's code (random order,"
        " clip after each); pytorch: as in torchvision (multiplicative, random"
        " order, clip after each)",
        choices=("tensorflow", "tensorflow_shuffled", "pytorch"),
    )


class SimCLR(_Jittered, Crop):
    """SimCLR's policy."""

    name = "simclr"

    blur: bool = option(
        True,
        f"blur half of the views; auto: above {CIFAR_STEM_MAX_SIDE} pixels",
    )


class Broader(SimCLR):
    """SimCLR's broader composition."""

    name = "broader"

    @property
    def rounds(self) -> bool:
        """Whether an operation rounds to 256 levels: several do."""
        return True


class SimAugment(SimCLR):
    """SimAugment."""

    name = "simaugment"

    # Of a view.
    warp_probability: float = argument(0.5, maximum=1.0)
    rotate: bool = option(
        False,
        "rotate views by 0, 90, 180 or 270 degrees before their colours change",
    )


class AutoAugment(Crop):
    """AutoAugment."""

    name = "autoaugment"
    acts_on_levels = True


class RandAugment(Crop):
    """RandAugment."""

    name = "randaugment"
    acts_on_levels = True

    # Operations per view, and their magnitude.
    randaugment_layers: int = argument(2, minimum=1, maximum=16)
    randaugment_magnitude: float = argument(10.0, maximum=30.0)


class StackedRandAugment(SimAugment, RandAugment):
    """Stacked RandAugment."""

    name = "stacked_randaugment"

    stacked_randaugment_order: str = option(
        "paper",
        "RandAugment before the colour jitter (paper) or after it (code)",
        choices=("paper", "code"),
    )

    def sends_levels(self, on_device: bool) -> bool:
        """RandAugment rounds what it gets; the colour jitter is not rounded."""
        return on_device and self.stacked_randaugment_order == "paper"


class _Listing(PolicyDeclaration):
    names: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The name with the operations."""
        return self.name + "+".join(self.names)

    @property
    def rounds(self) -> bool:
        """Whether an operation rounds to 256 levels."""
        return not _ON_LEVELS.isdisjoint(self.names)


class SimCLRPlus(_Listing, SimCLR):
    """SimCLR's policy with further operations."""

    name = "simclr+"
    listable = tuple(name for name, lacking in OPERATIONS.items() if lacking)


class Ablation(_Listing, _Jittered, Crop):
    """Operations on cropped views, as in SimCLR's figure 5.

    The operation crop also flips, and rotate turns by 90, 180 or 270 degrees.
    """

    name = "ablation:"
    shares_crop = True
    listable = tuple(OPERATIONS)

    # Whether the operations change the first view alone, or both views.
    ablation_branch: str = argument("one", choices=("one", "both"))


class OwnViews(Crop):
    """A function of your own, image -> view, or a Keras layer of images.

    It may take `seed`, int32 [2]. Other parameters are its options.
    """

    name = "module:name"

    after_crop: bool = option(
        True,
        "whether it changes crops, float32 [S, S, 3] in [0, 1]; false: it makes"
        " a view of a whole image, uint8 [h, w, 3]",
    )

    @property
    def crops(self) -> bool:
        """Whether it changes crops."""
        return self.after_crop


def own_options(part: Any, given: Iterable[str] = ()) -> dict[str, Any]:
    """Returns the options of views of your own, and refuses anything else."""
    if callables.is_layer(part):
        return callables.options_of(part, (), given)
    image = next(iter(callables.parameters(part)), "") if callable(part) else ""
    options = callables.options_of(part, [image, "seed"], given, "augmentation")
    taken = {"image_size", "part", *OwnViews.defaults()} & options.keys()
    if not image or isinstance(part, type) or taken:
        raise UserError(
            f"augmentation {callables.name_of(part)} is of the wrong form: must"
            " be a function image -> view, or a Keras layer of images"
            + f", without a parameter {min(taken, default='')}"
            * bool(taken)
        )
    return options


@functools.cache
def own_views(name: str) -> type[OwnViews]:
    """Returns the declaration of views of your own, `module:name`."""
    options = own_options(own.load("augmentation", name))
    return own.declare(name, OwnViews, options)


POLICIES: dict[str, type[PolicyDeclaration]] = by_name(
    [
        SimCLR,
        SimAugment,
        AutoAugment,
        RandAugment,
        StackedRandAugment,
        Broader,
        Crop,
        NoAugmentation,
    ]
)
# By prefix; operations follow it.
LISTING: dict[str, Any] = by_name([Ablation, SimCLRPlus])


def split_name(augmentation: str) -> tuple[str, tuple[str, ...]]:
    """Splits `PREFIX OP[+OP]` into the prefix of a policy and operations.

    Other names are returned whole, without operations.
    """
    for prefix in LISTING:
        if augmentation.startswith(prefix):
            operations = augmentation.removeprefix(prefix).split("+")
            return prefix, tuple(operations)
    return augmentation, ()


def augmentation_name(value: str) -> str | None:
    """Checks the name of an augmentation policy."""
    name, operations = split_name(value)
    if name in POLICIES or is_own(value):
        return None
    if name not in LISTING:
        forms = ", ".join(f"{prefix}OP[+OP]" for prefix in LISTING)
        return f"{forms}, or {one_of(value, POLICIES)}"
    known = LISTING[name].listable
    bad = [name for name in operations if name not in known]
    if not bad and len(set(operations)) == len(operations):
        return None
    hint = did_you_mean(bad[0], known) if bad else ""
    return (
        f"{name}OP[+OP] with distinct operations out of"
        f" {', '.join(known)}{hint}"
    )


def is_own(augmentation: str) -> bool:
    """Whether a name is that of views of your own, `module:name`."""
    is_listing = augmentation.startswith(tuple(LISTING))
    return not is_listing and bool(module_of(augmentation))


# ---- Preprocessings of evaluation --------------------------------------------


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the S x S pixels of its centre, antialiased.

    Attributes:
      help: one line for the command line.
      keeps_aspect: whether its shorter side is resized to the target; otherwise
        both sides are.
      crops: whether the target is 8/7 S (256 for 224), and S up to
        `CIFAR_STEM_MAX_SIDE`; otherwise it is S.
      kernel: of the interpolation, as in `tf.raw_ops.ScaleAndTranslate`.
      keeps_size: whether an image of S x S pixels is not resized at all.
    """

    help: str
    keeps_aspect: bool = False
    crops: bool = False
    kernel: str = "triangle"
    keeps_size: bool = False


PREPROCESSINGS: Mapping[str, Preprocessing] = {
    "center_crop": Preprocessing(
        "resize the shorter side to 8/7 S (S up to 64 pixels) and keep the"
        " centre",
        keeps_aspect=True,
        crops=True,
        keeps_size=True,
    ),
    # SimCLR, appendix B.8, linear classifiers on other datasets.
    "shorter_side": Preprocessing(
        "resize it to S (bicubic) and keep the centre",
        keeps_aspect=True,
        kernel="keyscubic",
    ),
    # SimCLR, appendices B.5 and B.6.
    "squash_crop": Preprocessing(
        "resize both sides to 8/7 S (S up to 64 pixels) and keep the centre",
        crops=True,
    ),
    # SINCERE's code.
    "squash": Preprocessing("resize both sides to S"),
}
# That of serving.
DEFAULT_PREPROCESSING = "center_crop"


# ---- Options of a run --------------------------------------------------------


def declare(augmentation: str) -> PolicyDeclaration:
    """Returns a policy with its defaults, by a name that was checked."""
    if is_own(augmentation):
        return own_views(augmentation)()
    prefix, names = split_name(augmentation)
    return LISTING[prefix](names=names) if names else POLICIES[prefix]()


# The policy ignores others' options.
POLICY = Family(
    kind="augmentation",
    members=POLICIES | LISTING,
    help=f"augmentation policy: {', '.join(POLICIES)}; ablation:OP[+OP]:"
    f" operations on cropped views out of {', '.join(Ablation.listable)}; or"
    f" simclr+OP[+OP]: simclr, then some of {', '.join(SimCLRPlus.listable)};"
    " or module:name, a function or a Keras layer of your own",
    check=augmentation_name,
    flags=("min_crop_area", "flip", "color_jitter_strength", "blur"),
    declare=declare,
    ignores_others=True,
).option(SimCLR())


class Views(Group):
    """Augmentation of images into views."""

    policy: PolicyDeclaration = POLICY
    augment_on: str = option(
        "auto",
        "where photometric augmentation runs (crop, resize and flip run on the"
        " host); auto: on a GPU or TPU if there is one",
        choices=("auto", "host", "device"),
        identity=False,
    )
    # Of the pixels on their way from the host to the device: auto is the
    # smallest type that does not change the step's results.
    wire_dtype: str = argument("auto", choices=("auto", "float32", "uint8"))
    views: int = option(2, "views per image", minimum=1)
    image_size: int | None = option(
        None,
        "side of a view in pixels; auto: the dataset's, or 224 if it varies",
        minimum=2,
    )
    small_views: int = option(
        0,
        "further views per image, of fewer pixels and smaller crops (SwAV's"
        " multi-crop), which the loss compares with the large ones",
        maximum=64,
    )
    small_image_size: int | None = option(
        None,
        "side of a small view in pixels; auto: 3/7 of --image_size (96 of 224)",
        minimum=2,
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
    def small_side(self) -> int:
        """Side of a small view in pixels, of resolved options."""
        assert self.small_image_size is not None
        return self.small_image_size

    @property
    def pixels(self) -> int:
        """Pixels of all views of an image, of resolved options."""
        small = self.small_views and self.small_views * self.small_side**2
        return self.views * self.side**2 + small

    @property
    def summary(self) -> str:
        """Number, policy and size of the views, of resolved options."""
        text = f"{self.views} x {self.policy.label} at {self.side}x{self.side}"
        if self.small_views:
            side = self.small_side
            text += f", {self.small_views} x {side}x{side}"
        return text

    @property
    def mixed(self) -> bool:
        """Whether views are mixed with those of other images."""
        return bool(self.mixup_alpha or self.cutmix_alpha)


def check_channels(
    policy: PolicyDeclaration, float_channels: int | None
) -> None:
    """Raises `UserError` for a policy that would round images of floats."""
    if float_channels and policy.rounds:
        fitting = ", ".join(n for n, x in POLICIES.items() if not x().rounds)
        raise UserError(
            f"{arg('augmentation', policy.label)} rounds pixels to 8 bits, and"
            f" {arg('channels', float_channels)} or {arg('value_range')} keeps"
            f" them whole: use {fitting}"
        )


def resolve_views(views: Views, dataset: str, image_size: int) -> Views:
    """Returns the options with the defaults that depend on the data."""
    is_small = image_size <= CIFAR_STEM_MAX_SIDE
    defaults = dict(SMALL_DEFAULTS if is_small else {})
    if not facts(image_dataset(dataset)).flip:
        defaults["flip"] = False
    small = views.small_image_size
    if views.small_views:
        defaults["min_crop_area"] = LARGE_CROP_AREA
        small = small or max(round(image_size * 3 / 7), 1)
    resolved = dataclasses.replace(
        views,
        policy=views.policy.with_defaults(**defaults),
        image_size=image_size,
        small_image_size=small,
    )
    if views.small_views:
        _check_small(resolved)
    return resolved


def _check_small(views: Views) -> None:
    """Raises `UserError` for small views that are not smaller."""
    if views.small_side >= views.side:
        raise UserError(
            f"{arg('small_image_size', views.small_side)} is not less than the"
            f" {views.side} pixels of the other views: set a smaller one"
        )
    largest = views.policy.arguments()["min_crop_area"]
    if largest < SMALL_CROP_AREA:
        raise UserError(
            f"{arg('min_crop_area', largest)}: it is the largest area of a"
            f" small view's crop, too: set at least {SMALL_CROP_AREA}"
        )


def resolve_wire_dtype(
    views: Views, extra_channels: int, reading: Reading
) -> str:
    """Returns `wire_dtype` of views to which `extra_channels` are appended."""
    given, floats = views.wire_dtype, ""
    if reading.float_channels:
        floats = "images that are read whole"
    if extra_channels:
        floats = f"the {extra_channels} channels of feature `extra`"
    if given == "uint8" and floats:
        raise UserError(
            f"{arg('wire_dtype', given)} rounds {floats}: set"
            f" {arg('wire_dtype', 'auto')}"
        )
    if given != "auto":
        return given
    levels = views.policy.sends_levels(views.augment_on == "device")
    return "uint8" if levels and not extra_channels else "float32"
