"""Augmentation policies.

Their options, defaults and bounds are those of `config.views.Views`.
"""

import dataclasses
from collections.abc import Callable

from tf_contrastive import errors
from tf_contrastive.config.views import (
    VIEW_DEFAULTS,
    Views,
    augmentation_name,
)
from tf_contrastive.views import ablation, autoaugment, color, crops, warp
from tf_contrastive.views.blur import GaussianBlur
from tf_contrastive.views.policy import Geometric, Photometric, Policy
from tf_contrastive.views.selection import RandomApply

_STRENGTH = float(VIEW_DEFAULTS["color_jitter_strength"])
# Of each further operation of `Broader`; the paper does not state it.
_BROADER_PROBABILITY = 0.2


def _color_operations(style: str, strength: float) -> tuple[Photometric, ...]:
    """Colour jitter, then grayscale; in one operation where it is linear."""
    gray = color.Grayscale()
    if style == "linear":
        return (color.LinearColorJitter(strength, gray=gray.probability),)
    return color.JITTERS[style](strength), gray


@dataclasses.dataclass(frozen=True)
class NoAugmentation(Policy):
    """The evaluation preprocessing; all views of an image are the same."""

    @property
    def crop(self) -> Geometric:
        """Resize and centre crop."""
        return crops.CenterCrop(self.image_size)


@dataclasses.dataclass(frozen=True)
class Crop(Policy):
    """Random crop and flip only."""

    min_crop_area: float = Views.min_crop_area
    flip: bool = bool(VIEW_DEFAULTS["flip"])

    @property
    def crop(self) -> Geometric:
        """Random crop, resize and flip."""
        return crops.RandomCrop(self.image_size, self.min_crop_area, self.flip)


@dataclasses.dataclass(frozen=True)
class SimCLR(Crop):
    """Crop, flip, colour jitter, grayscale, blur (Chen et al. 2020)."""

    color_jitter_strength: float = _STRENGTH
    color_jitter_style: str = Views.color_jitter_style
    blur: bool = bool(VIEW_DEFAULTS["blur"])

    @property
    def operations(self) -> tuple[Photometric, ...]:
        """Operations that follow the crop, in order."""
        return (*self._colors, *self._before_blur, *self._blurs)

    @property
    def _colors(self) -> tuple[Photometric, ...]:
        style, strength = self.color_jitter_style, self.color_jitter_strength
        return _color_operations(style, strength)

    @property
    def _before_blur(self) -> tuple[Photometric, ...]:
        return ()

    @property
    def _blurs(self) -> tuple[Photometric, ...]:
        return (GaussianBlur(),) if self.blur else ()


@dataclasses.dataclass(frozen=True)
class Broader(SimCLR):
    """SimCLR with more operations before the blur.

    The "broader composition" of Chen et al. 2020, appendix B.2: equalize,
    solarize, Sobel filtering and motion blur. Their order and probability are
    choices of this package.
    """

    @property
    def _before_blur(self) -> tuple[Photometric, ...]:
        added = (
            ablation.EQUALIZE,
            ablation.SOLARIZE,
            ablation.SOBEL,
            ablation.MotionBlur(),
        )
        return (RandomApply(added, _BROADER_PROBABILITY),)


@dataclasses.dataclass(frozen=True)
class SimAugment(SimCLR):
    """SimCLR with a warp before the blur (Khosla et al. 2020)."""

    warp_probability: float = Views.warp_probability

    @property
    def _before_blur(self) -> tuple[Photometric, ...]:
        probability = self.warp_probability
        return (warp.Warp(probability),) if probability else ()


@dataclasses.dataclass(frozen=True)
class AutoAugment(Crop):
    """Crop, flip, one of AutoAugment's sub-policies for ImageNet."""

    @property
    def operations(self) -> tuple[Photometric, ...]:
        """Operations that follow the crop, in order."""
        return (autoaugment.AutoAugment(),)


@dataclasses.dataclass(frozen=True)
class RandAugment(Crop):
    """Crop, flip, RandAugment (Cubuk et al. 2020)."""

    randaugment_layers: int = Views.randaugment_layers
    randaugment_magnitude: float = Views.randaugment_magnitude

    @property
    def operations(self) -> tuple[Photometric, ...]:
        """Operations that follow the crop, in order."""
        layers, magnitude = self.randaugment_layers, self.randaugment_magnitude
        return (autoaugment.RandAugment(layers, magnitude),)


@dataclasses.dataclass(frozen=True)
class StackedRandAugment(SimAugment):
    """RandAugment before simaugment's colour jitter, or after it."""

    randaugment_layers: int = Views.randaugment_layers
    randaugment_magnitude: float = Views.randaugment_magnitude
    stacked_randaugment_order: str = Views.stacked_randaugment_order

    @property
    def _colors(self) -> tuple[Photometric, ...]:
        layers, magnitude = self.randaugment_layers, self.randaugment_magnitude
        random = autoaugment.RandAugment(layers, magnitude)
        if self.stacked_randaugment_order == "code":
            jitter = color.JITTERS[self.color_jitter_style]
            strength = self.color_jitter_strength
            return jitter(strength), random, color.Grayscale()
        return (random, *super()._colors)


@dataclasses.dataclass(frozen=True)
class Ablation(Policy):
    """Operations on cropped views (Chen et al. 2020, figure 5).

    Attributes:
      names: keys of `ABLATIONS`, in the order in which they are applied.
    """

    names: tuple[str, ...] = ()
    min_crop_area: float = Views.min_crop_area
    color_jitter_strength: float = _STRENGTH
    color_jitter_style: str = Views.color_jitter_style
    ablation_branch: str = Views.ablation_branch

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "names", tuple(self.names))
        name = "ablation:" + "+".join(self.names)
        if allowed := augmentation_name(name):
            raise errors.UserError(f"augmentation={name}: must be {allowed}")

    @property
    def crop(self) -> Geometric:
        """Random crop and resize."""
        return crops.RandomCrop(self.image_size, self.min_crop_area, flip=False)

    @property
    def operations(self) -> tuple[Photometric, ...]:
        """Operations that follow the crop, in order."""
        return tuple(ABLATIONS[name](self) for name in self.names)

    @property
    def first_view_only(self) -> bool:
        """Whether the operations act on the first view of each image only."""
        return self.ablation_branch == "one"


POLICIES: dict[str, type[Policy]] = {
    "simclr": SimCLR,
    "simaugment": SimAugment,
    "autoaugment": AutoAugment,
    "randaugment": RandAugment,
    "stacked_randaugment": StackedRandAugment,
    "broader": Broader,
    "crop": Crop,
    "none": NoAugmentation,
}

ABLATIONS: dict[str, Callable[[Ablation], Photometric]] = {
    "rotate": lambda policy: ablation.Rotate(),
    "cutout": lambda policy: ablation.Cutout(),
    "noise": lambda policy: ablation.Noise(policy.image_size),
    "sobel": lambda policy: ablation.SOBEL,
    "blur": lambda policy: GaussianBlur(probability=1.0),
    "color_drop": lambda policy: color.Grayscale(probability=1.0),
    "color_jitter": lambda policy: color.JITTERS[policy.color_jitter_style](
        policy.color_jitter_strength, probability=1.0
    ),
    "equalize": lambda policy: ablation.EQUALIZE,
    "solarize": lambda policy: ablation.SOLARIZE,
    "motion_blur": lambda policy: ablation.MotionBlur(),
}
