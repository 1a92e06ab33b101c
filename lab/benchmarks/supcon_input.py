"""google-research/supcon's input, transcribed from its published description.

Every view is made on its own, in levels from 0 to 255: a random crop of the
decoded image, resized and mirrored; then the policy. AutoAugment and
RandAugment are those of tf-models-official, as there. Only for comparison.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from tf_contrastive import datasets

_Image = Callable[[tf.Tensor], tf.Tensor]

# Control points of the warp a side, and their largest displacement in pixels.
_POINTS, _MAX_SHIFT = 2, 23.0
_VIEWS = 2


def batches(
    source: datasets.Source,
    policy: str,
    side: int,
    batch_size: int,
    warp_probability: float = 0.0,
) -> tf.data.Dataset:
    """Batches of (float32 [B, S, S, 6] in [-1, 1], labels) without end.

    Raises:
      ImportError: without tf-models-official or tensorflow-addons, where the
        policy needs them.
    """
    steps = _POLICIES[policy](side, warp_probability)

    def view(image: tf.Tensor) -> tf.Tensor:
        levels = tf.image.random_flip_left_right(_crop(image, side))
        for step in steps:
            levels = step(levels)
        if levels.dtype == tf.uint8:
            levels = _to_float(levels)
        return tf.ensure_shape(levels, [side, side, 3])

    def views(example: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        made = [view(example["image"]) for _ in range(_VIEWS)]
        return tf.concat(made, axis=-1), example["label"]

    calls = tf.data.AUTOTUNE
    examples = source.records.shuffle(1024).repeat()
    decoded = examples.map(source.decode, num_parallel_calls=calls)
    made = decoded.map(views, num_parallel_calls=calls)
    return made.batch(batch_size, drop_remainder=True).prefetch(calls)


def official(name: str) -> _Image:
    """Makes a policy of tf-models-official: uint8 [h, w, 3] -> the same."""
    from official.vision.ops import augment

    return getattr(augment, name)().distort


def _colors(
    side: int, warp_probability: float, stacked: str = ""
) -> list[_Image]:
    """Changes of colours and blur, around a stacked official policy."""
    steps = [_sometimes(0.8, _jitter)]
    if stacked:
        steps.append(official(stacked))
    steps.append(_sometimes(0.2, _gray))
    if warp_probability:
        steps.append(_sometimes(warp_probability, _warp(side)))
    return [*steps, _to_float, _sometimes(0.5, _blur(side))]


# Policy -> (side, probability of a warp) -> what follows the crop.
_POLICIES: dict[str, Callable[[int, float], list[_Image]]] = {
    "simclr": _colors,
    "simaugment": _colors,
    "stacked_randaugment": functools.partial(_colors, stacked="RandAugment"),
    "autoaugment": lambda *_: [official("AutoAugment")],
    "randaugment": lambda *_: [official("RandAugment")],
}


def _sometimes(probability: float, change: _Image) -> _Image:
    return lambda image: tf.cond(
        tf.random.uniform([]) < probability,
        lambda: change(image),
        lambda: image,
    )


def _to_float(levels: tf.Tensor) -> tf.Tensor:
    return tf.cast(levels, tf.float32) / 127.5 - 1.0


def _crop(image: tf.Tensor, side: int) -> tf.Tensor:
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.shape(image),
        tf.zeros([1, 0, 4]),
        min_object_covered=0.1,
        aspect_ratio_range=(0.75, 1.33),
        area_range=(0.08, 1.0),
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    resized = tf.image.resize(tf.slice(image, begin, size), [side, side])
    return tf.cast(resized, tf.uint8)


def _jitter(levels: tf.Tensor) -> tf.Tensor:
    """Changes of the colours in random order, of strength 1."""
    changes: list[_Image] = [
        lambda x: tf.image.random_brightness(x, 0.8),
        lambda x: tf.image.random_contrast(x, 0.2, 1.8),
        lambda x: tf.image.random_saturation(x, 0.2, 1.8),
        lambda x: tf.image.random_hue(x, 0.2),
    ]
    image = tf.image.convert_image_dtype(levels, tf.float32)
    for which in tf.unstack(tf.random.shuffle(tf.range(len(changes)))):
        branches = [lambda c=change, x=image: c(x) for change in changes]
        image = tf.clip_by_value(tf.switch_case(which, branches), 0.0, 1.0)
    return tf.image.convert_image_dtype(image, tf.uint8)


def _gray(levels: tf.Tensor) -> tf.Tensor:
    return tf.tile(tf.image.rgb_to_grayscale(levels), [1, 1, 3])


def _warp(side: int) -> _Image:
    from tensorflow_addons import image as addons

    line = [side * (i + 1) / (_POINTS + 1) for i in range(_POINTS)]
    points = tf.constant([[[y, x] for y in line for x in line]], tf.float32)

    def warp(levels: tf.Tensor) -> tf.Tensor:
        length = tf.random.uniform([], 0.0, _MAX_SHIFT)
        moved = points + length * tf.random.normal(points.shape)
        image = tf.cast(levels[tf.newaxis], tf.float32)
        warped, _ = addons.sparse_image_warp(image, points, moved)
        return tf.cast(warped[0], tf.uint8)

    return warp


def _blur(side: int) -> _Image:
    radius = side // 10 // 2
    offsets = tf.range(-radius, radius + 1, dtype=tf.float32)

    def blur(image: tf.Tensor) -> tf.Tensor:
        sigma = tf.random.uniform([], 0.1, 2.0)
        kernel = tf.nn.softmax(-(offsets**2) / (2.0 * sigma**2))
        kernel = tf.tile(kernel[:, tf.newaxis, tf.newaxis], [1, 3, 1])
        rows = tf.nn.depthwise_conv2d(
            image[tf.newaxis], kernel[tf.newaxis], [1, 1, 1, 1], "SAME"
        )
        both = tf.nn.depthwise_conv2d(
            rows, kernel[:, tf.newaxis], [1, 1, 1, 1], "SAME"
        )
        return both[0]

    return blur
