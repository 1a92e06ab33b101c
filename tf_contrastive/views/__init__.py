"""Views: from images uint8 [h, w, 3] to float32 [S, S, 3] in [0, 1].

A policy is a framing (crop, resize, flip) and photometric operations, both on
whole batches with parameters per view. The randomness of a view is a function
of its seed alone.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config import fields
from tf_contrastive.config.views import Views, ablation_operations
from tf_contrastive.views import (
    ablation,
    autoaugment,
    color,
    crops,
    preprocessing,
    prng,
    selection,
    warp,
)
from tf_contrastive.views import blur as blurring
from tf_contrastive.views.policy import (
    Photometric,
    Policy,
    as_images,
    indices,
)

__all__ = [
    "ABLATIONS",
    "POLICIES",
    "Policy",
    "build",
    "coloring",
    "evaluation",
    "framing",
    "views",
]


JITTERS = {
    "tensorflow": color.ColorJitter,
    "pytorch": color.PyTorchColorJitter,
    "linear": color.LinearColorJitter,
}


def _random_crop(options: Views) -> crops.RandomCrop:
    return crops.RandomCrop(
        options.image_size, options.min_crop_area, options.flip
    )


def _jitter(options: Views) -> Photometric:
    jitter = JITTERS[options.color_jitter_style]
    return jitter(options.color_jitter_strength)


def _colors(options: Views) -> tuple[Photometric, ...]:
    """Colour jitter, then grayscale; in one operation where it is linear."""
    jitter, gray = _jitter(options), color.Grayscale()
    if isinstance(jitter, color.LinearColorJitter):
        return (dataclasses.replace(jitter, gray=gray.probability),)
    return jitter, gray


def _blur(options: Views) -> tuple[Photometric, ...]:
    return (blurring.GaussianBlur(),) if options.blur else ()


def _warp(options: Views) -> tuple[Photometric, ...]:
    share = options.warp_probability
    return (warp.Warp(share),) if share else ()


def _rand_augment(options: Views) -> Photometric:
    return autoaugment.RandAugment(
        options.randaugment_layers, options.randaugment_magnitude
    )


def _policy(options: Views, *operations: Photometric) -> Policy:
    return Policy(
        options.augmentation,
        options.image_size,
        _random_crop(options),
        operations,
    )


def _simclr(options: Views) -> Policy:
    """Crop, flip, colour jitter, grayscale, blur (Chen et al. 2020)."""
    return _policy(options, *_colors(options), *_blur(options))


# The paper does not say how many views each of its further operations changes.
BROADER_SHARE = 0.2


def _broader(options: Views) -> Policy:
    """SimCLR's policy and more operations (Chen et al. 2020, appendix B.2).

    "Broader composition": equalize, solarize, Sobel filtering and motion blur,
    between the colours and the blur. Order and shares are ours.
    """
    names = ("equalize", "solarize", "sobel", "motion_blur")
    more = selection.Sometimes(
        tuple(ABLATIONS[name](options) for name in names), BROADER_SHARE
    )
    return _policy(options, *_colors(options), more, *_blur(options))


def _simaugment(options: Views) -> Policy:
    """SimCLR's policy with a warp before the blur (Khosla et al. 2020)."""
    rest = (*_warp(options), *_blur(options))
    return _policy(options, *_colors(options), *rest)


def _autoaugment(options: Views) -> Policy:
    """Crop, flip, one of AutoAugment's sub-policies for ImageNet."""
    return _policy(options, autoaugment.AutoAugment())


def _randaugment(options: Views) -> Policy:
    """Crop, flip, RandAugment."""
    return _policy(options, _rand_augment(options))


def _stacked_randaugment(options: Views) -> Policy:
    """RandAugment before simaugment's colour jitter, or after it."""
    random = _rand_augment(options)
    rest = (*_warp(options), *_blur(options))
    if options.stacked_randaugment_order == "code":
        between = (_jitter(options), random, color.Grayscale())
        return _policy(options, *between, *rest)
    return _policy(options, random, *_colors(options), *rest)


def _crop(options: Views) -> Policy:
    """Crop and flip only."""
    return _policy(options)


def _none(options: Views) -> Policy:
    """The evaluation preprocessing; every view of an image is the same."""
    framing = preprocessing.CentreCrop(options.image_size)
    return Policy("none", options.image_size, framing)


POLICIES: dict[str, Callable[[Views], Policy]] = {
    "simclr": _simclr,
    "simaugment": _simaugment,
    "autoaugment": _autoaugment,
    "randaugment": _randaugment,
    "stacked_randaugment": _stacked_randaugment,
    "broader": _broader,
    "crop": _crop,
    "none": _none,
}

ABLATIONS: dict[str, Callable[[Views], Photometric]] = {
    "rotate": lambda options: ablation.Rotate(),
    "cutout": lambda options: ablation.Cutout(),
    "noise": lambda options: ablation.Noise(options.image_size),
    "sobel": lambda options: ablation.Sobel(),
    "blur": lambda options: blurring.GaussianBlur(probability=1.0),
    "color_drop": lambda options: color.Grayscale(probability=1.0),
    "color_jitter": lambda options: dataclasses.replace(
        _jitter(options), probability=1.0
    ),
    "equalize": lambda options: ablation.Equalize(),
    "solarize": lambda options: ablation.Solarize(),
    "motion_blur": lambda options: ablation.MotionBlur(),
}


def _ablation(options: Views) -> Policy:
    """Operations one after the other on cropped views (SimCLR, figure 5)."""
    names = ablation_operations(options.augmentation)
    framing = crops.RandomCrop(
        options.image_size, options.min_crop_area, flip=False
    )
    return Policy(
        options.augmentation,
        options.image_size,
        framing,
        tuple(ABLATIONS[name](options) for name in names),
        first_view_only=options.ablation_branch == "one",
    )


def _check(options: Views) -> None:
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if allowed := fields.problem(field, value):
            raise errors.UserError(f"{field.name}={value}: must be {allowed}")
    if options.image_size < 1:
        raise errors.UserError(
            f"image_size={options.image_size}: give the side of a view in"
            " pixels, at least 1"
        )


def build(name: str, *, image_size: int, **options: Any) -> Policy:
    """Builds an augmentation policy.

    Args:
      name: a name of `POLICIES`, or `ablation:OP[+OP]` of `ABLATIONS`.
      image_size: side of a view in pixels, S.
      **options: the other fields of `config.Views`, such as `flip=False`; what
        is not given has its default there.

    Returns:
      The policy: `policy(image, seed)` and `policy.batch(images, seeds)`.

    Raises:
      UserError: for an unknown name, or an option that does not exist or is
        out of its bounds.
    """
    known = Views().options()
    for option in options:
        if option not in known:
            raise errors.unknown("option of views", option, known)
    options = {**known, **options}
    chosen = Views(augmentation=name, image_size=image_size, **options)
    _check(chosen)
    return POLICIES.get(name, _ablation)(chosen)


def views(
    policy: Policy, count: int
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Makes the function that turns images into several views each.

    Args:
      policy: from `build`.
      count: views per image, V.

    Returns:
      make_views(images uint8 [n, h, w, 3], seeds int32 [n, 2]) -> float32
      [n, V, S, S, 3] in [0, 1]. View v has the seed of its image with v folded
      in; it is the same for any V and n. (Where n is not known statically, as
      without `drop_remainder`, TensorFlow 2.15 logs a harmless line that it
      cannot predict the cost of CropAndResize.)

    Raises:
      UserError: if V is less than 1.
    """
    if count < 1:
        raise errors.UserError(f"views={count}: must be at least 1")
    size = policy.image_size

    @tf.autograph.experimental.do_not_convert
    def make_views(images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        images = as_images(images, 4)
        owners = tf.repeat(indices(images), count)
        view = tf.tile(tf.range(count), [tf.shape(images)[0]])
        seeds = tf.reshape(prng.fold(seeds, count), [-1, 2])
        pixels = policy.views_of(images, owners, seeds, view)
        shape = [-1, count, size, size, 3]
        return tf.ensure_shape(
            tf.reshape(pixels, shape), [images.shape[0], *shape[1:]]
        )

    return make_views


def framing(
    policy: Policy, count: int
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Makes the first part of `views`: crop, resize and flip, on the host.

    Args:
      policy: from `build`.
      count: views per image, V.

    Returns:
      frame(images uint8 [n, h, w, 3], seeds int32 [n, 2]) -> float32
      [n, V, S, S, 3] in [0, 1].
    """
    side = policy.image_size

    @tf.autograph.experimental.do_not_convert
    def frame(images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        owners = tf.repeat(tf.range(tf.shape(images)[0]), count)
        seeds = tf.reshape(prng.fold(seeds, count), [-1, 2])
        pixels = tf.reshape(
            policy.frame(images, owners, seeds), [-1, count, side, side, 3]
        )
        return tf.ensure_shape(pixels, [images.shape[0], *pixels.shape[1:]])

    return frame


def coloring(
    policy: Policy, count: int, static: bool = False
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Makes the second part of `views`: all that follows the framing.

    Args:
      policy: from `build`.
      count: views per image, V.
      static: whether it is to be compiled, for a device.

    Returns:
      color(views [B, V, S, S, K], seeds int32 [B, V, 2]) -> the same shape;
      what comes after three channels is passed on as it is.
    """

    @tf.autograph.experimental.do_not_convert
    def color(pixels: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        colors = tf.reshape(pixels[..., :3], [-1, *pixels.shape[2:4], 3])
        number = tf.tile(tf.range(count), [tf.shape(pixels)[0]])
        colors = policy.photometric(
            colors, tf.reshape(seeds, [-1, 2]), static=static, view=number
        )
        colors = tf.reshape(colors, [-1, *pixels.shape[1:4], 3])
        colors = tf.ensure_shape(colors, [*pixels.shape[:4], 3])
        if pixels.shape[-1] == 3:
            return colors
        return tf.concat([colors, pixels[..., 3:]], axis=-1)

    return color


def evaluation(image_size: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Makes the preprocessing of evaluation and serving.

    Args:
      image_size: side of the result in pixels, S.

    Returns:
      preprocess(image uint8 [h, w, 3]) -> float32 [S, S, 3] in [0, 1], for
      images of any size. S x S pixels are only scaled by 1/255. Otherwise the
      shorter side is resized (bilinear, antialiased) to S where S is at most
      `config.CIFAR_STEM_MAX_SIDE`, to 8/7 S above, and the centre is kept.

    Raises:
      UserError: for a size below 1.
    """
    policy = build("none", image_size=image_size)

    @tf.autograph.experimental.do_not_convert
    def preprocess(image: tf.Tensor) -> tf.Tensor:
        return policy(image, tf.zeros([2], tf.int32))

    return preprocess
