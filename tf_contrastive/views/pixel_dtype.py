"""Types of views on their way from the host to the device."""

import tensorflow as tf


@tf.autograph.experimental.do_not_convert
def to_wire(pixels: tf.Tensor, dtype: str) -> tf.Tensor:
    """Converts float32 pixels in [0, 1] to a `wire_dtype`; uint8: levels."""
    if dtype == "uint8":
        return tf.saturate_cast(tf.round(pixels * 255.0), tf.uint8)
    return tf.cast(pixels, dtype)


def from_wire(pixels: tf.Tensor) -> tf.Tensor:
    """Converts the results of `to_wire` back to float32 in [0, 1]."""
    unit = tf.cast(pixels, tf.float32)
    return unit * (1 / 255) if pixels.dtype == tf.uint8 else unit
