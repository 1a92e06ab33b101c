"""Views: from images uint8 [h, w, 3] to float32 [S, S, 3] in [0, 1]."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.views import (
    PREPROCESSINGS,
    Views,
    augmentation_name,
    listed_operations,
)
from tf_contrastive.views import prng
from tf_contrastive.views.policies import (
    POLICIES,
    Ablation,
    AutoAugment,
    Broader,
    Crop,
    NoAugmentation,
    Policy,
    RandAugment,
    SimAugment,
    SimCLR,
    SimCLRPlus,
    StackedRandAugment,
)
from tf_contrastive.views.preprocessing import preprocess

__all__ = [
    "POLICIES",
    "Ablation",
    "AutoAugment",
    "Broader",
    "Crop",
    "NoAugmentation",
    "Policy",
    "RandAugment",
    "SimAugment",
    "SimCLR",
    "SimCLRPlus",
    "StackedRandAugment",
    "build",
    "evaluation",
    "geometric",
    "halvings",
    "photometric",
    "views",
]

# (images uint8 [n, h, w, 3], seeds int32 [n, 2]) -> [n, V, S, S, 3].
MakeViews = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def build(name: str, *, image_size: int, **options: Any) -> Policy:
    """Builds an augmentation policy by its name.

    Args:
      name: a key of `POLICIES`, `ablation:OP[+OP]` or `simclr+OP[+OP]`.
      image_size: side of a view in pixels, S.
      **options: fields of `config.views.Views`, such as `flip=False`. Policies
        ignore the options of other policies.

    Raises:
      UserError: for an unknown name, or an option that does not exist or is
        out of bounds.
    """
    known = Views().options()
    for option in options:
        if option not in known:
            raise errors.unknown("option of views", option, known)
    if allowed := augmentation_name(name):
        raise errors.UserError(
            f"{errors.arg('augmentation', name)}: must be {allowed}"
        )
    listing = Ablation if name.startswith("ablation:") else SimCLRPlus
    policy = POLICIES.get(name, listing)
    if policy is listing:
        options["names"] = tuple(listed_operations(name))
    taken = {field.name for field in dataclasses.fields(policy)}
    options = {k: v for k, v in options.items() if k in taken}
    return policy(image_size, **options)


def views(policy: Policy, count: int) -> MakeViews:
    """Makes the function that turns images into V = `count` views each.

    Returns:
      make_views(images uint8 [n, h, w, 3], seeds int32 [n, 2]) -> float32
      [n, V, S, S, 3] in [0, 1]. The seed of view v is the image's seed with v
      folded in: a view is the same for any V and n. (If n is not known
      statically, TensorFlow 2.15 logs that it cannot predict the cost of
      CropAndResize, which is harmless.)

    Raises:
      UserError: if V is less than 1.
    """
    if count < 1:
        raise errors.UserError(
            f"{errors.arg('views', count)}: must be at least 1"
        )
    crop, change = geometric(policy, count), photometric(policy, count)

    @tf.autograph.experimental.do_not_convert
    def make_views(images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        return change(crop(images, seeds), prng.fold(seeds, count))

    return make_views


def geometric(policy: Policy, count: int) -> MakeViews:
    """Makes the first part of `views`: crop, resize and flip, on the host."""
    side = policy.image_size

    @tf.autograph.experimental.do_not_convert
    def crop(images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        images = tf.convert_to_tensor(images)
        image_ids = tf.repeat(tf.range(tf.shape(images)[0]), count)
        seeds = tf.reshape(prng.fold(seeds, count), [-1, 2])
        pixels = tf.reshape(
            policy.geometric(images, image_ids, seeds),
            [-1, count, side, side, 3],
        )
        return tf.ensure_shape(pixels, [images.shape[0], *pixels.shape[1:]])

    return crop


def halvings(
    policy: Policy, count: int
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Makes the function that says at which size an image can be decoded.

    Returns:
      halvings(size int32 [2], seed int32 [2]) -> int32 []: how often an image
      of this height and width can be halved, so that each of its views, by
      `geometric`, is still made of at least S x S pixels.
    """

    @tf.autograph.experimental.do_not_convert
    def of_image(size: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        seeds = tf.reshape(prng.fold(seed[tf.newaxis], count), [-1, 2])
        return policy.halvings(size[0], size[1], seeds)

    return of_image


def photometric(
    policy: Policy, count: int, static: bool = False
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Makes the second part of `views`: the operations that follow the crop.

    `static`: whether it will be compiled, for a device.

    Returns:
      change(views [B, V, S, S, K], seeds int32 [B, V, 2]) -> the same shape;
      channels after the third are passed on unchanged.
    """

    @tf.autograph.experimental.do_not_convert
    def change(pixels: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
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

    return change


def evaluation(
    image_size: int, preprocessing: str = PREPROCESSINGS[0]
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Makes the preprocessing of evaluation and serving.

    Args:
      image_size: side of a view in pixels, S.
      preprocessing: "center_crop" (see `crops.resize_and_crop`), or another of
        `config.views.PREPROCESSINGS` (see `preprocessing.preprocess`).

    Returns:
      preprocess(image uint8 [h, w, 3]) -> float32 [S, S, 3] in [0, 1], for
      images of any size.
    """
    if preprocessing not in PREPROCESSINGS:
        raise errors.unknown("preprocessing", preprocessing, PREPROCESSINGS)
    if preprocessing != PREPROCESSINGS[0]:
        return functools.partial(
            preprocess, size=image_size, preprocessing=preprocessing
        )
    policy = NoAugmentation(image_size)

    @tf.autograph.experimental.do_not_convert
    def center_crop(image: tf.Tensor) -> tf.Tensor:
        return policy(image, tf.zeros([2], tf.int32))

    return center_crop
