"""Views: from images uint8 [h, w, 3] to float32 [S, S, 3] in [0, 1].

A policy is a framing (crop, resize, flip) and photometric operations, both on
whole batches with parameters per view. The randomness of a view is a function
of its seed alone.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tf_contrastive import config
from tf_contrastive.views import blur as blurring
from tf_contrastive.views import color, crops, draws, preprocessing
from tf_contrastive.views.policy import (
    Photometric,
    Policy,
    as_images,
    indices,
)

__all__ = ["POLICIES", "Policy", "build", "evaluation", "views"]


def _colors(options: config.Views) -> tuple[Photometric, ...]:
    jitter = color.ColorJitter(options.color_jitter_strength)
    operations = (jitter, color.Grayscale())
    return (
        (*operations, blurring.GaussianBlur()) if options.blur else operations
    )


def _random_crop(options: config.Views) -> crops.RandomCrop:
    return crops.RandomCrop(
        options.image_size, options.min_crop_area, options.flip
    )


def _simclr(options: config.Views) -> Policy:
    """Crop, flip, colour jitter, grayscale, blur (Chen et al. 2020)."""
    framing = _random_crop(options)
    return Policy("simclr", options.image_size, framing, _colors(options))


def _crop(options: config.Views) -> Policy:
    """Crop and flip only."""
    return Policy("crop", options.image_size, _random_crop(options))


def _none(options: config.Views) -> Policy:
    """The evaluation preprocessing; every view of an image is the same."""
    framing = preprocessing.CentreCrop(options.image_size)
    return Policy("none", options.image_size, framing)


POLICIES: dict[str, Callable[[config.Views], Policy]] = {
    "simclr": _simclr,
    "crop": _crop,
    "none": _none,
}


def _check(options: config.Views) -> None:
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if allowed := config.problem(field, value):
            raise config.UserError(f"{field.name}={value}: must be {allowed}")
    if options.image_size < 1:
        raise config.UserError(
            f"image_size={options.image_size}: give the side of a view in"
            " pixels, at least 1"
        )


def build(
    name: str,
    *,
    image_size: int,
    min_crop_area: float = config.Views.min_crop_area,
    flip: bool = config.Views.flip,
    color_jitter_strength: float = config.Views.color_jitter_strength,
    blur: bool = config.Views.blur,
) -> Policy:
    """Builds an augmentation policy.

    Args:
      name: `simclr`, `crop` (crop and flip only) or `none` (the evaluation
        preprocessing, without randomness).
      image_size: side of a view in pixels, S.
      min_crop_area: smallest share of the image's area that a crop keeps.
      flip: whether half of the views are mirrored left to right.
      color_jitter_strength: strength s of simclr's colour jitter.
      blur: whether half of simclr's views are blurred.

    Returns:
      The policy: `policy(image, seed)` and `policy.batch(images, seeds)`.

    Raises:
      UserError: for an unknown name, or an option out of its bounds.
    """
    if name not in POLICIES:
        raise config.unknown("augmentation", name, POLICIES)
    options = config.Views(
        augmentation=name,
        image_size=image_size,
        min_crop_area=min_crop_area,
        flip=flip,
        color_jitter_strength=color_jitter_strength,
        blur=blur,
    )
    _check(options)
    return POLICIES[name](options)


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
        raise config.UserError(f"views={count}: must be at least 1")
    size = policy.image_size

    @tf.autograph.experimental.do_not_convert
    def make_views(images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        images = as_images(images, 4)
        owners = tf.repeat(indices(images), count)
        seeds = tf.reshape(draws.fold(seeds, count), [-1, 2])
        pixels = policy.views_of(images, owners, seeds)
        shape = [-1, count, size, size, 3]
        return tf.ensure_shape(
            tf.reshape(pixels, shape), [images.shape[0], *shape[1:]]
        )

    return make_views


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
