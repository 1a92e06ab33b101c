"""Preprocessings of evaluation that some papers use, beside `crops`' own."""

import tensorflow as tf

from tf_contrastive.views import crops


@tf.autograph.experimental.do_not_convert
def preprocess(image: tf.Tensor, size: int, preprocessing: str) -> tf.Tensor:
    """Makes float32 [S, S, 3] in [0, 1] of an image uint8 [h, w, 3].

    All resizing is antialiased where images shrink. Preprocessings:

      shorter_side: bicubic to a shorter side of S, the centre is kept (SimCLR,
        appendix B.8, linear classifiers on other datasets).
      squash_crop: bilinear to a square of 8/7 S (256 for 224), or S up to 64,
        the centre is kept (SimCLR, appendices B.5 and B.6).
      squash: bilinear to a square of S (SINCERE's code).

    Args:
      image: of any size.
      size: side of the result, S.
      preprocessing: one of them.
    """
    image = tf.convert_to_tensor(image)
    if preprocessing == "shorter_side":
        sides = tf.shape(image)[:2]
        shorter = tf.cast(tf.reduce_min(sides), tf.float64)
        scaled = tf.round(tf.cast(sides, tf.float64) * size / shorter)
        target, method = tf.cast(scaled, tf.int32), "bicubic"
    else:
        crop = preprocessing == "squash_crop"
        side = crops.resize_target(size) if crop else size
        target, method = tf.constant([side, side]), "bilinear"
    # Only the centre is computed: a narrow image would else become huge.
    offset = (target - size) // 2
    scale = tf.cast(target, tf.float32) / tf.cast(
        tf.shape(image)[:2], tf.float32
    )
    pixels = tf.raw_ops.ScaleAndTranslate(
        images=image[tf.newaxis],
        size=[size, size],
        scale=scale,
        translation=-tf.cast(offset, tf.float32),
        kernel_type={"bicubic": "keyscubic", "bilinear": "triangle"}[method],
        antialias=True,
    )
    pixels = tf.clip_by_value(pixels[0] * (1 / 255), 0.0, 1.0)
    return tf.ensure_shape(pixels, [size, size, 3])
