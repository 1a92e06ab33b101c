"""Images that an encoder takes: bytes, or floats in [0, 1], and no others."""

from typing import Any

import numpy as np
import tensorflow as tf

# How far outside of [0, 1] the rounding of a client's resize may be.
_RANGE_TOLERANCE = 1e-3


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class Encoder(tf.keras.Model):
    """An encoder that refuses what are not its images."""

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Encodes images [N, H, W, K]: uint8, or float in [0, 1].

        Raises:
          TypeError: for another type.
          ValueError: for another shape, or no image.
          InvalidArgumentError: for colours outside of [0, 1].
        """
        # Not where it becomes a part of another Keras model.
        if isinstance(inputs, tf.Tensor | np.ndarray):
            inputs = checked(inputs, self.input_shape)
            if inputs.shape[0] == 0:
                raise ValueError("no images: must be at least one")
        return super().__call__(inputs, *args, **kwargs)


def checked(images: Any, shape: Any) -> tf.Tensor:
    """Returns `pixels` of images of a shape [N, H, W, K], or ValueError."""
    images = tf.convert_to_tensor(images)
    if not images.shape.is_compatible_with(shape):
        raise ValueError(
            f"images of shape {images.shape}: must be {tf.TensorShape(shape)}"
        )
    return pixels(images)


def pixels(images: tf.Tensor) -> tf.Tensor:
    """Returns uint8 or float images [N, S, S, K] as float32 in [0, 1].

    Raises:
      InvalidArgumentError: for colours outside of [0, 1].
      TypeError: for other types.
    """
    if images.dtype == tf.uint8:
        return tf.cast(images, tf.float32) / 255
    if not images.dtype.is_floating:
        raise TypeError(
            f"images of type {images.dtype.name}: pass uint8, or float in"
            " [0, 1]"
        )
    images = tf.cast(images, tf.float32)
    return tf.concat([check_range(images[..., :3]), images[..., 3:]], -1)


def check_range(images: tf.Tensor) -> tf.Tensor:
    """Returns images in [0, 1]; fails for any other value, including NaN."""
    low, high = -_RANGE_TOLERANCE, 1 + _RANGE_TOLERANCE
    check = tf.debugging.Assert(
        tf.reduce_all((images >= low) & (images <= high)),
        [
            "images must be float32 in [0, 1], but are in",
            tf.reduce_min(images),
            tf.reduce_max(images),
            "divide bytes by 255, or send uint8 to serving_default; do not"
            " standardize, the model does",
        ],
    )
    with tf.control_dependencies([check]):
        return tf.clip_by_value(images, 0.0, 1.0)
