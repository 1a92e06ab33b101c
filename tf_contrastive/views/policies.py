"""Augmentation policies: from an image and a seed to a view.

A policy has a geometric part (crop, resize and flip, from images of any size)
and photometric operations on views of one size. Both act on whole batches with
parameters per view; the randomness of a view is a function of its seed alone.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config import components
from tf_contrastive.config import own as own_parts
from tf_contrastive.config import views as declared
from tf_contrastive.views import (
    ablation,
    any_channels,
    autoaugment,
    color,
    crops,
    own,
    prng,
    warp,
)
from tf_contrastive.views.gaussian_blur import GaussianBlur
from tf_contrastive.views.preprocessing import check_images
from tf_contrastive.views.selection import RandomApply

# Of each further operation of `Broader`; the paper does not state it.
_BROADER_PROBABILITY = 0.2
# Of each operation that `SimCLRPlus` adds.
_ADDED_PROBABILITY = 0.5
# Bytes of the views that the host changes at a time: the intermediate results
# of the operations then stay in the cache.
_GROUP_BYTES = 2_000_000


class Photometric(Protocol):
    """Changes views that are cropped and resized."""

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers per view, by stream."""

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1].

        The uniform numbers are float32 [m, k] in [0, 1), by stream. `static`
        keeps shapes independent of them, as XLA requires.
        """


_Crop: TypeAlias = crops.RandomCrop | crops.CenterCrop


# Without AutoGraph: this code has no Python control flow on tensors, and its
# conversion would take longer than the rest of the first batch.
@tf.autograph.experimental.do_not_convert
def _random_numbers(seeds: tf.Tensor, *parts: Any) -> dict[str, tf.Tensor]:
    streams = {k: n for part in parts for k, n in part.streams.items()}
    return prng.uniform(seeds, streams)


@dataclasses.dataclass(eq=False)
class Policy(declared.PolicyDeclaration):
    """Augmentation policy; stateless, so the same in eager code and tf.data.

    Subclasses also inherit from their declaration in `config.views`, a
    dataclass of their options. `image_size` is the side of a view in pixels, S.
    With `channels`, K, images are float32 [..., K] in [0, 1] instead of uint8
    of three, and operations on colours act on the three channels `colors`, or
    are left out if there are none.

    Raises:
      UserError: for an option that is out of bounds, or images that are not
        uint8 [..., 3].
    """

    image_size: int
    channels: int | None = dataclasses.field(default=None, kw_only=True)
    colors: tuple[int, ...] = dataclasses.field(default=(0, 1, 2), kw_only=True)

    def __post_init__(self) -> None:
        if self.image_size < 2:
            raise errors.UserError(
                f"{errors.arg('image_size', self.image_size)}: must be at least"
                " 2 pixels"
            )
        declared.check_channels(self, self.channels)
        super().__post_init__()
        if self.channels is not None:
            self._check_colors(self.channels)
            if not self.colors:
                any_channels.report_left_out(self.label, self._operations)

    def _check_colors(self, channels: int) -> None:
        """Raises `UserError` for colors that are not channels."""
        known = {*self.colors} & {*range(channels)}
        is_right = len(self.colors) == len(known) == 3
        has_colors = any_channels.OnColors in map(type, self.operations)
        if channels < 1 or (has_colors and not is_right):
            raise errors.UserError(
                f"colors={self.colors} of {errors.arg('channels', channels)}:"
                " must be three different ones, counted from 0, or ()"
            )

    @property
    def _crop(self) -> _Crop:
        """Crop, resize and flip."""
        raise NotImplementedError

    @property
    def _operations(self) -> tuple[Photometric, ...]:
        """Operations that follow the crop, in order."""
        return ()

    @functools.cached_property
    def operations(self) -> tuple[Photometric, ...]:
        """The operations, of as many channels as the images have."""
        if self.channels is None:
            return self._operations
        return tuple(any_channels.on_channels(self._operations, self.colors))

    @property
    def _first_view_only(self) -> bool:
        """Whether the operations act on the first view of each image only."""
        return False

    def __call__(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Makes a view float32 [S, S, 3] of uint8 [h, w, 3] and int32 [2].

        `batch` is many times as fast for small images.
        """
        image = check_images(image, 3, self.channels)
        seed = tf.ensure_shape(tf.convert_to_tensor(seed, tf.int32), [2])
        return self.batch(image[tf.newaxis], seed[tf.newaxis])[0]

    @tf.autograph.experimental.do_not_convert
    def batch(self, images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """Makes one view of each image, with the pixels of `__call__`.

        uint8 [n, h, w, 3] and seeds int32 [n, 2] -> float32 [n, S, S, 3].
        """
        images = tf.convert_to_tensor(images)
        image_ids = tf.range(images.shape[0] or tf.shape(images)[0])
        pixels = self.crop(images, image_ids, self.numbers(seeds))
        return self.photometric(pixels, seeds, view=tf.zeros_like(image_ids))

    @tf.autograph.experimental.do_not_convert
    def numbers(self, seeds: tf.Tensor) -> dict[str, tf.Tensor]:
        """Draws the numbers of `crop`, float32 [m, k] of each stream."""
        return _random_numbers(seeds, self._crop)

    @tf.autograph.experimental.do_not_convert
    def crop(
        self, images: tf.Tensor, image_ids: tf.Tensor, numbers: prng.Uniforms
    ) -> tf.Tensor:
        """Crops, resizes and flips, on the host: the first part of a view.

        The images are uint8 [n, h, w, 3], the image of each view int32 [m], its
        `numbers` float32 [m, k], and the views float32 [m, S, S, 3] in [0, 1].
        """
        images = check_images(images, 4, self.channels)
        return self._crop(images, image_ids, numbers)

    @tf.autograph.experimental.do_not_convert
    def halvings(
        self, height: tf.Tensor, width: tf.Tensor, numbers: prng.Uniforms
    ) -> tf.Tensor:
        """How often an image can be halved and still have its views' pixels.

        The sides of the image are int32 [], the `numbers` those of its views,
        and the result is 0 to 3, int32 [].
        """
        least = tf.reduce_min(self._crop.reduction(height, width, numbers))
        return tf.reduce_sum(tf.cast(least >= [2.0, 4.0, 8.0], tf.int32))

    @tf.autograph.experimental.do_not_convert
    def photometric(
        self,
        pixels: tf.Tensor,
        seeds: tf.Tensor,
        static: bool = False,
        view: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Applies the operations to float32 [m, S, S, 3] in [0, 1].

        Args:
          pixels: results of `crop`.
          seeds: int32 [m, 2], the seeds of their `numbers`.
          static: whether to keep shapes independent of the random numbers, so
            that XLA can compile it; the pixels are the same to rounding.
          view: int32 [m], number of each view among those of its image;
            required by ablations of one branch.
        """
        uniforms = _random_numbers(seeds, *self.operations)
        changed = self._in_groups(pixels, uniforms, static)
        if not self._first_view_only:
            return changed
        if view is None:
            raise ValueError(
                f"{self} changes only the first view of an image: pass view=,"
                " int32 [m], the number of each view"
            )
        first = tf.reshape(view, [-1, 1, 1, 1]) == 0
        return tf.where(first, changed, pixels)

    def _in_groups(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool
    ) -> tf.Tensor:
        """Applies the operations; on a host, to some views at a time."""

        def apply(pixels: tf.Tensor, uniforms: prng.Uniforms) -> tf.Tensor:
            for operation in self.operations:
                pixels = operation(pixels, uniforms, static)
            return pixels

        if static or not self._operations:
            return apply(pixels, uniforms)
        size = 4 * (self.channels or 3) * self.image_size**2
        group = max(_GROUP_BYTES // size, 1)
        count = tf.maximum(tf.shape(pixels)[0], 1)

        def step(
            start: tf.Tensor, results: tf.TensorArray
        ) -> tuple[tf.Tensor, tf.TensorArray]:
            rows = slice(start, start + group)
            part = {stream: u[rows] for stream, u in uniforms.items()}
            changed = apply(pixels[rows], part)
            return start + group, results.write(start // group, changed)

        results = tf.TensorArray(
            tf.float32,
            (count + group - 1) // group,
            infer_shape=False,
            element_shape=[None, *pixels.shape[1:]],
        )
        _, results = tf.while_loop(lambda i, _: i < count, step, (0, results))
        return tf.ensure_shape(results.concat(), pixels.shape)


@dataclasses.dataclass(eq=False)
class NoAugmentation(declared.NoAugmentation, Policy):
    """The evaluation preprocessing; all views of an image are the same."""

    @property
    def _crop(self) -> _Crop:
        return crops.CenterCrop(self.image_size)


@dataclasses.dataclass(eq=False)
class Crop(declared.Crop, Policy):
    """Random crop and flip only."""

    @property
    def _crop(self) -> _Crop:
        return crops.RandomCrop(
            self.image_size, self.min_crop_area, self.flip, self.max_crop_area
        )


def _jitter(policy: Any, **options: float) -> Photometric:
    jitter = color.JITTERS[policy.color_jitter_style]
    return jitter(policy.color_jitter_strength, **options)


@dataclasses.dataclass(eq=False)
class SimCLR(declared.SimCLR, Crop):
    """Crop, flip, colour jitter, grayscale, blur (Chen et al. 2020)."""

    @property
    def _operations(self) -> tuple[Photometric, ...]:
        blur = (GaussianBlur(),) if self.blur else ()
        return (*self._colors, *self._before_blur, *blur)

    @property
    def _colors(self) -> tuple[Photometric, ...]:
        return _jitter(self), color.Grayscale()

    @property
    def _before_blur(self) -> tuple[Photometric, ...]:
        return ()


@dataclasses.dataclass(eq=False)
class Broader(declared.Broader, SimCLR):
    """SimCLR with more operations before the blur.

    The "broader composition" of Chen et al. 2020, appendix B.2: equalize,
    solarize, Sobel filtering and motion blur. Their order and probability are
    choices of this package.
    """

    @property
    def _before_blur(self) -> tuple[Photometric, ...]:
        fixed = ablation.EQUALIZE, ablation.SOLARIZE, ablation.SOBEL
        added = (*fixed, ablation.MotionBlur())
        return (RandomApply(added, _BROADER_PROBABILITY),)


@dataclasses.dataclass(eq=False)
class SimAugment(declared.SimAugment, SimCLR):
    """SimCLR with a warp before the blur (Khosla et al. 2020)."""

    @property
    def _operations(self) -> tuple[Photometric, ...]:
        turn = (ablation.Rotate(),) if self.rotate else ()
        return (*turn, *super()._operations)

    @property
    def _before_blur(self) -> tuple[Photometric, ...]:
        probability = self.warp_probability
        return (warp.Warp(probability),) if probability else ()


@dataclasses.dataclass(eq=False)
class AutoAugment(declared.AutoAugment, Crop):
    """Crop, flip, one of AutoAugment's sub-policies for ImageNet."""

    @property
    def _operations(self) -> tuple[Photometric, ...]:
        return (autoaugment.AutoAugment(),)


@dataclasses.dataclass(eq=False)
class RandAugment(declared.RandAugment, Crop):
    """Crop, flip, RandAugment (Cubuk et al. 2020)."""

    @property
    def _operations(self) -> tuple[Photometric, ...]:
        layers, magnitude = self.randaugment_layers, self.randaugment_magnitude
        return (autoaugment.RandAugment(layers, magnitude),)


@dataclasses.dataclass(eq=False)
class StackedRandAugment(declared.StackedRandAugment, SimAugment):
    """RandAugment before simaugment's colour jitter, or after it."""

    @property
    def _colors(self) -> tuple[Photometric, ...]:
        layers, magnitude = self.randaugment_layers, self.randaugment_magnitude
        random = autoaugment.RandAugment(layers, magnitude)
        if self.stacked_randaugment_order == "code":
            return _jitter(self), random, color.Grayscale()
        return (random, *super()._colors)


class OwnViews(declared.OwnViews, Crop):
    """Views of your own, of crops or of whole images.

    Args:
      image_size: side of a view in pixels, S.
      part: a function, image -> view float32 [S, S, 3] in [0, 1], that may take
        `seed`, int32 [2]; or a Keras layer of images.
      min_crop_area, max_crop_area, flip: of the crop before it.
      after_crop: whether the image is a crop, float32 [S, S, 3] in [0, 1];
        otherwise it is whole, uint8 [h, w, 3].
      **options: of the function.
    """

    def __init__(
        self,
        image_size: int,
        part: Any,
        *,
        min_crop_area: float = declared.OwnViews.min_crop_area,
        max_crop_area: float = declared.OwnViews.max_crop_area,
        flip: bool = declared.OwnViews.flip,
        after_crop: bool = declared.OwnViews.after_crop,
        channels: int | None = None,
        colors: tuple[int, ...] = (0, 1, 2),
        **options: Any,
    ) -> None:
        declared.own_options(part, options)
        self.part, self.options, self.after_crop = part, options, after_crop
        Crop.__init__(
            self,
            image_size=image_size,
            min_crop_area=min_crop_area,
            max_crop_area=max_crop_area,
            flip=flip,
            channels=channels,
            colors=colors,
        )

    @property
    def _crop(self) -> Any:
        return super()._crop if self.after_crop else own.WholeView(self._own)

    @property
    def _own(self) -> own.OwnOperation:
        shape = self.image_size, self.image_size, self.channels or 3
        return own.OwnOperation(self.part, self.options, shape)

    @property
    def _operations(self) -> tuple[Photometric, ...]:
        return (self._own,) if self.after_crop else ()


@dataclasses.dataclass(eq=False)
class _Listing(Policy):
    """A policy of which `names` lists operations, keys of `OPERATIONS`."""

    names: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.names = tuple(self.names)
        _check_name(self.name + "+".join(self.names))


@dataclasses.dataclass(eq=False)
class SimCLRPlus(declared.SimCLRPlus, _Listing, SimCLR):
    """SimCLR, then rotation, noise or Sobel filtering (its table 3).

    The rotation is by one of four angles, 0 among them; each other operation
    changes half of the views, as in the paper's tasks of telling them.
    """

    @property
    def _operations(self) -> tuple[Photometric, ...]:
        added = _listed(self, *(n for n in self.names if n != "rotate"))
        turn = (ablation.Rotate(),) if "rotate" in self.names else ()
        chosen = (RandomApply(added, _ADDED_PROBABILITY),) if added else ()
        return (*super()._operations, *turn, *chosen)


@dataclasses.dataclass(eq=False)
class Ablation(declared.Ablation, _Listing):
    """Operations on cropped views, in order (Chen et al. 2020, figure 5)."""

    @property
    def _crop(self) -> _Crop:
        return crops.RandomCrop(
            self.image_size,
            self.min_crop_area,
            flip=False,
            max_area=self.max_crop_area,
        )

    @property
    def _operations(self) -> tuple[Photometric, ...]:
        return _listed(self, *self.names)

    @property
    def _first_view_only(self) -> bool:
        return self.ablation_branch == "one"


# Name -> the operations of a policy.
OPERATIONS: dict[str, Callable[[Any], tuple[Photometric, ...]]] = {
    "crop": lambda policy: (
        ablation.SecondCrop(policy.min_crop_area, flip=policy.flip),
    ),
    "rotate": lambda policy: (ablation.Rotate(turned=True),),
    "cutout": lambda policy: (ablation.Cutout(),),
    "noise": lambda policy: (
        ablation.Noise(policy.image_size, channels=policy.channels or 3),
    ),
    "sobel": lambda policy: (ablation.SOBEL,),
    "blur": lambda policy: (GaussianBlur(probability=1.0),),
    "color": lambda policy: (_jitter(policy), color.Grayscale()),
    "color_drop": lambda policy: (color.Grayscale(probability=1.0),),
    "color_jitter": lambda policy: (_jitter(policy, probability=1.0),),
    "equalize": lambda policy: (ablation.EQUALIZE,),
    "solarize": lambda policy: (ablation.SOLARIZE,),
    "motion_blur": lambda policy: (ablation.MotionBlur(),),
}


def _listed(policy: Policy, *names: str) -> tuple[Photometric, ...]:
    return tuple(x for name in names for x in OPERATIONS[name](policy))


POLICIES: dict[str, type[Policy]] = components.implementations(
    declared.POLICIES
)
_LISTING: dict[str, type[Policy]] = components.implementations(declared.LISTING)


def _check_name(augmentation: str) -> None:
    if allowed := declared.augmentation_name(augmentation):
        raise errors.UserError(
            f"{errors.arg('augmentation', augmentation)}: must be {allowed}"
        )


def build(
    name: Any,
    *,
    image_size: int,
    channels: int | None = None,
    colors: tuple[int, ...] = (0, 1, 2),
    **options: Any,
) -> Policy:
    """Builds an augmentation policy by its name, or of views of your own.

    Args:
      name: a key of `POLICIES`, `ablation:OP[+OP]` or `simclr+OP[+OP]`; or a
        function or Keras layer of your own, or its `module:name`; see
        `OwnViews`.
      image_size: side of a view in pixels, S.
      channels, colors: see `Policy`.
      **options: arguments of the policy, such as `flip=False`.

    Raises:
      UserError: for an unknown name, option or value.
    """
    form: dict[str, Any] = {"channels": channels, "colors": colors}
    if not isinstance(name, str):
        return OwnViews(image_size, name, **form, **options)
    _check_name(name)
    if declared.is_own(name):
        part = own_parts.load("augmentation", name)
        return OwnViews(image_size, part, **form, **options)
    prefix, names = declared.split_name(name)
    members = POLICIES | _LISTING
    policy = components.pick("augmentation", prefix, members, options)
    listed = {"names": names} if names else {}
    return policy(image_size, **listed, **form, **options)
