"""The preprocessings of evaluation and serving: one view of an image."""

from collections.abc import Callable

import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE
from tf_contrastive.config.views import DEFAULT_PREPROCESSING, PREPROCESSINGS

# Of a uint8 level, in [0, 1].
LEVEL = 1 / 255


def check_images(
    images: tf.Tensor, rank: int, channels: int | None = None
) -> tf.Tensor:
    """Raises `UserError` unless they are uint8 [h, w, 3], or [n, h, w, 3].

    With `channels`, they are float32 [..., channels].
    """
    images = tf.convert_to_tensor(images)
    form = "uint8" if channels is None else "float32"
    count = channels or 3
    expected = f"[h, w, {count}]" if rank == 3 else f"[n, h, w, {count}]"
    fits = images.shape.rank == rank and images.shape[-1] in (count, None)
    if images.dtype.name != form or not fits:
        pixels = "0..255" if channels is None else "[0, 1]"
        raise errors.UserError(
            f"images are {images.dtype.name} {images.shape}: pass {form}"
            f" {expected}, pixels in {pixels}"
        )
    return tf.ensure_shape(images, [*images.shape[:-1], count])


def resize_target(size: int) -> int:
    """Length of an image's side before the centre crop, in pixels."""
    return size if size <= CIFAR_STEM_MAX_SIDE else round(size * 8 / 7)


def _axis(
    side: tf.Tensor, base: tf.Tensor, target: tf.Tensor, size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Scale, and translation in resized pixels, of one axis."""
    side, base, target = (tf.cast(x, tf.float64) for x in (side, base, target))
    resized = tf.round(side * target / base)
    offset = tf.floor((resized - size) / 2.0)
    return tf.cast(resized / side, tf.float32), tf.cast(-offset, tf.float32)


def resize_and_crop(
    images: tf.Tensor,
    size: int,
    preprocessing: str = DEFAULT_PREPROCESSING,
    unit: float = LEVEL,
) -> tf.Tensor:
    """Makes float32 [n, S, S, K] in [0, 1] of images [n, h, w, K].

    Images are resized, antialiased where they shrink, and the centre is kept;
    `unit` is what their values are multiplied by.
    """
    form = PREPROCESSINGS[preprocessing]
    if form.keeps_size and images.shape[1] == images.shape[2] == size:
        return tf.cast(images, tf.float32) * unit
    height, width = tf.unstack(tf.shape(images)[1:3])
    shorter = tf.minimum(height, width)
    y_base, x_base = (shorter,) * 2 if form.keeps_aspect else (height, width)
    target = tf.constant(resize_target(size) if form.crops else size)
    if form.keeps_size:
        ready = (height == size) & (width == size)
        target = tf.where(ready, size, target)
    y_scale, y_offset = _axis(height, y_base, target, size)
    x_scale, x_offset = _axis(width, x_base, target, size)
    # One operation that computes only the centre: resizing first would make
    # 4 GB of an image of 1 x 5000 pixels.
    pixels = tf.raw_ops.ScaleAndTranslate(
        images=images,
        size=[size, size],
        scale=tf.stack([y_scale, x_scale]),
        translation=tf.stack([y_offset, x_offset]),
        kernel_type=form.kernel,
        antialias=True,
    )
    return tf.clip_by_value(pixels * unit, 0.0, 1.0)


def evaluation(
    image_size: int,
    preprocessing: str = DEFAULT_PREPROCESSING,
    channels: int | None = None,
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Makes the preprocessing of evaluation and serving.

    It maps an image uint8 [h, w, 3] of any size to float32 [S, S, 3] in [0, 1],
    or with `channels` float32 [h, w, channels] in [0, 1] to as many;
    `preprocessing` is one of `config.views.PREPROCESSINGS`.
    """
    if preprocessing not in PREPROCESSINGS:
        raise errors.unknown("preprocessing", preprocessing, PREPROCESSINGS)

    @tf.autograph.experimental.do_not_convert
    def preprocess(image: tf.Tensor) -> tf.Tensor:
        image = check_images(image, 3, channels)[tf.newaxis]
        unit = LEVEL if channels is None else 1.0
        return resize_and_crop(image, image_size, preprocessing, unit)[0]

    return preprocess
