"""Evaluation preprocessing: resize and centre crop, without randomness."""

import dataclasses

import tensorflow as tf

from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE
from tf_contrastive.views import prng


def resize_target(size: int) -> int:
    """Side to which an image's shorter side is brought before the crop."""
    if size <= CIFAR_STEM_MAX_SIDE:
        return size
    return round(size * 8 / 7)


def _axis(
    side: tf.Tensor, shorter: tf.Tensor, target: tf.Tensor, size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Scale, and translation in resized pixels, of one axis."""
    side_, shorter, target_ = (
        tf.cast(x, tf.float64) for x in (side, shorter, target)
    )
    resized = tf.round(side_ * target_ / shorter)
    offset = tf.floor((resized - size) / 2.0)
    return tf.cast(resized / side_, tf.float32), tf.cast(-offset, tf.float32)


def resize_and_crop(images: tf.Tensor, size: int) -> tf.Tensor:
    """Brings images to a square: shorter side first, then the centre.

    Args:
      images: uint8 [n, h, w, 3].
      size: side of the result in pixels, S.

    Returns:
      float32 [n, S, S, 3] in [0, 1]. Images of S x S pixels are only scaled.
      Others are resized bilinearly, antialiased where they shrink: their
      shorter side to S up to `config.CIFAR_STEM_MAX_SIDE`, to 8/7 S (256 for
      224) above; the centre is kept.
    """
    if images.shape[1] == size and images.shape[2] == size:
        return tf.cast(images, tf.float32) * (1 / 255)
    height, width = tf.unstack(tf.shape(images)[1:3])
    shorter = tf.minimum(height, width)
    ready = (height == size) & (width == size)
    target = tf.where(ready, size, resize_target(size))
    y_scale, y_offset = _axis(height, shorter, target, size)
    x_scale, x_offset = _axis(width, shorter, target, size)
    # One operation that computes the centre only: resizing first would make
    # 4 GB of an image of 1 x 5000 pixels.
    pixels = tf.raw_ops.ScaleAndTranslate(
        images=images,
        size=[size, size],
        scale=tf.stack([y_scale, x_scale]),
        translation=tf.stack([y_offset, x_offset]),
        kernel_type="triangle",
        antialias=True,
    )
    return tf.clip_by_value(pixels * (1 / 255), 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class CentreCrop:
    """The evaluation preprocessing in the place of a random crop.

    Attributes:
      size: side of a view in pixels, S.
    """

    size: int

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes: none."""
        return {}

    def __call__(
        self, images: tf.Tensor, owners: tf.Tensor, unit: prng.Unit
    ) -> tf.Tensor:
        """Makes float32 [m, S, S, 3] of images uint8 [n, h, w, 3].

        Args:
          images: uint8 [n, h, w, 3].
          owners: int32 [m], which image each view is of.
          unit: not read.
        """
        return tf.gather(resize_and_crop(images, self.size), owners)
