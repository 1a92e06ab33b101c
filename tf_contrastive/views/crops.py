"""From images of any size to square views: crop, resize and flip.

Random boxes are drawn in closed form. Large views are cut, resized and mirrored
one by one; one call samples all small views of a batch, straight from uint8.
"""

import dataclasses
import math
from typing import ClassVar

import tensorflow as tf

from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE
from tf_contrastive.views import preprocessing, prng

# Candidates per view; the first that fits into the image is taken. About 15 %
# do not fit into a square image, so all ten miss in 1 of 10**8 views.
CANDIDATES = 10
# log(width / height) is uniform between log(3/4) and log(4/3).
_LOG_ASPECT = math.log(4 / 3)
# Taylor series of exp, exact to float32 on |x| <= log(4/3) / 2. The last bit of
# tf.exp depends on a value's position in the batch, so that a view would not
# have the same box in another batch.
_EXP = (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)
# Samples per view pixel and axis, at most, where photographs are shrunk.
_MAX_OVERSAMPLING = 8


def _sides(images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Height and width of images [n, h, w, c], int32 []."""
    return tuple(tf.unstack(tf.shape(images)[1:3]))


def random_boxes(
    uniforms: tf.Tensor,
    height: tf.Tensor,
    width: tf.Tensor,
    min_area: float,
    max_area: float = 1.0,
) -> tf.Tensor:
    """Boxes of SimCLR's random crop (Chen et al. 2020, appendix A).

    The area is uniform in [min_area, max_area] of the image's, as in the paper,
    and the aspect ratio log-uniform in [3/4, 4/3], so that neither orientation
    is preferred. (`tf.image.sample_distorted_bounding_box` draws the height
    uniformly, which disfavours large areas, and the ratio uniformly.) If no
    candidate fits, the box is the whole image.

    From uniform numbers float32 [m, 2 * CANDIDATES + 2] to float32 [m, 4] of
    whole pixels: top, left, height, width.
    """
    height, width = tf.cast(height, tf.float32), tf.cast(width, tf.float32)
    area = prng.lerp(uniforms[:, :CANDIDATES], min_area, max_area)
    skew = prng.lerp(uniforms[:, CANDIDATES:-2], -0.5, 0.5) * _LOG_ASPECT
    side = tf.sqrt(area * (height * width))
    stretch = tf.math.polyval([tf.constant(c) for c in _EXP], skew)
    heights = tf.maximum(tf.round(side / stretch), 1.0)
    widths = tf.maximum(tf.round(side * stretch), 1.0)
    fits = (heights <= height) & (widths <= width)
    first = tf.argmax(tf.cast(fits, tf.int32), axis=1)
    any_fits = tf.reduce_any(fits, axis=1)
    heights = tf.gather(heights, first, batch_dims=1)
    widths = tf.gather(widths, first, batch_dims=1)
    heights = tf.where(any_fits, heights, height)
    widths = tf.where(any_fits, widths, width)
    rooms = height - heights, width - widths
    # Whole numbers from 0 to the room; the product may round up to room + 1.
    top, left = (
        tf.minimum(tf.floor(uniforms[:, column] * (room + 1.0)), room)
        for column, room in zip((-2, -1), rooms, strict=True)
    )
    return tf.stack([top, left, heights, widths], axis=1)


def _oversampling(images: tf.Tensor, size: int) -> tf.Tensor:
    """Samples per output pixel and axis that avoid aliasing, int32 []."""
    # At most two source pixels lie between two samples of a square crop. The
    # crops of a batch share the grid.
    shorter = tf.minimum(*_sides(images))
    return tf.clip_by_value(shorter // (2 * size), 1, _MAX_OVERSAMPLING)


def _normalized(
    start: tf.Tensor, length: tf.Tensor, side: tf.Tensor, samples: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """First and last sample in the coordinates of `crop_and_resize`."""
    # It puts its first and last sample on the ends of the box, in units of
    # (side - 1). Samples at the centres of their cells, the convention of
    # `tf.image.resize`, begin half a cell inside. The image has been extended
    # by one pixel.
    cell = length * (0.5 / samples)
    first = start + 0.5 + cell
    last = start + 0.5 + length - cell
    # Not a division: graphs replace it by this product, and eager code must
    # give the same pixels.
    unit = 1.0 / (side + 1.0)
    return first * unit, last * unit


def sample(
    images: tf.Tensor,
    image_ids: tf.Tensor,
    boxes: tf.Tensor,
    mirrored: tf.Tensor,
    size: int,
) -> tf.Tensor:
    """Resizes boxes of images bilinearly to float32 [m, S, S, K] in [0, 1].

    Equal to slicing and `tf.image.resize`, as in the code of SimCLR and SupCon,
    except that views of at most 64 pixels are interpolated with the image's
    pixels beyond a box's border. Images of more than 4 S pixels are averaged.
    Boxes are float32 [m, 4] in pixels: top, left, height, width; `image_ids`,
    int32 [m], says of which image, `mirrored` whether left is right.
    """
    factor = _oversampling(images, size)
    samples = _samples if size <= CIFAR_STEM_MAX_SIDE else _samples_one_by_one
    return samples(images, image_ids, boxes, mirrored, size, factor)


def _unit(images: tf.Tensor) -> float:
    """Returns what values of images become pixels in [0, 1] by."""
    return preprocessing.LEVEL if images.dtype == tf.uint8 else 1.0


def _averaged(
    values: tf.Tensor, images: tf.Tensor, size: int, factor: tf.Tensor
) -> tf.Tensor:
    """Values [m, S factor, S factor, K] of images to pixels [m, S, S, K]."""
    pixels = tf.cond(
        factor > 1,
        lambda: tf.image.resize(values, [size, size], method="area"),
        lambda: values,
    )
    shape = [values.shape[0], size, size, images.shape[-1]]
    pixels = tf.ensure_shape(pixels, shape) * _unit(images)
    # Averages and interpolation can exceed 255 by their last bit.
    return tf.minimum(pixels, 1.0)


def _samples_one_by_one(
    images: tf.Tensor,
    image_ids: tf.Tensor,
    boxes: tf.Tensor,
    mirrored: tf.Tensor,
    size: int,
    factor: tf.Tensor,
) -> tf.Tensor:
    """`sample`, in half the time of `_samples` for large views."""
    grid, channels = size * factor, images.shape[-1]

    def one(view: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        image_id, box, is_mirrored = view
        begin = tf.stack([image_id, box[0], box[1], 0])
        extent = tf.stack([1, box[2], box[3], channels])
        piece = tf.slice(images, begin, extent)
        # Without the conversion to float32 of `tf.image.resize`.
        pixels = tf.raw_ops.ResizeBilinear(
            images=piece, size=[grid, grid], half_pixel_centers=True
        )
        return tf.raw_ops.Reverse(
            tensor=_averaged(pixels, images, size, factor)[0],
            dims=tf.stack([False, is_mirrored, False]),
        )

    return tf.map_fn(
        one,
        (image_ids, tf.cast(boxes, tf.int32), mirrored),
        fn_output_signature=tf.TensorSpec([size, size, channels]),
    )


def _samples(
    images: tf.Tensor,
    image_ids: tf.Tensor,
    boxes: tf.Tensor,
    mirrored: tf.Tensor,
    size: int,
    factor: tf.Tensor,
) -> tf.Tensor:
    """`sample`, in one call; mirrored boxes have their sides swapped."""
    grid = size * factor
    height, width = (tf.cast(side, tf.float32) for side in _sides(images))
    samples = tf.cast(grid, tf.float32)
    top, left, heights, widths = tf.unstack(boxes, axis=1)
    y1, y2 = _normalized(top, heights, height, samples)
    x1, x2 = _normalized(left, widths, width, samples)
    start, end = tf.where(mirrored, x2, x1), tf.where(mirrored, x1, x2)
    # Repeats the outermost pixels, ten times as fast as tf.pad in its
    # "SYMMETRIC" mode.
    images = tf.concat([images[:, :1], images, images[:, -1:]], axis=1)
    images = tf.concat([images[:, :, :1], images, images[:, :, -1:]], axis=2)
    pixels = tf.image.crop_and_resize(
        images, tf.stack([y1, start, y2, end], axis=1), image_ids, [grid, grid]
    )
    return _averaged(pixels, images, size, factor)


@dataclasses.dataclass(frozen=True)
class RandomCrop:
    """Random crop, resize and optional flip, of half of the views."""

    size: int  # Side of a view in pixels, S.
    min_area: float
    flip: bool
    max_area: float = 1.0

    streams: ClassVar[dict[str, int]] = {"crop": 2 * CANDIDATES + 2, "flip": 1}

    def __call__(
        self, images: tf.Tensor, image_ids: tf.Tensor, uniforms: prng.Uniforms
    ) -> tf.Tensor:
        """Makes views float32 [m, S, S, K] of images [n, h, w, K]."""
        boxes = self._boxes(uniforms, *_sides(images))
        mirrored = tf.zeros_like(image_ids, tf.bool)
        if self.flip:
            mirrored = uniforms["flip"][:, 0] < 0.5
        return sample(images, image_ids, boxes, mirrored, self.size)

    def reduction(
        self, height: tf.Tensor, width: tf.Tensor, uniforms: prng.Uniforms
    ) -> tf.Tensor:
        """Sides of boxes, the shorter ones, by those of views, float32 [m]."""
        boxes = self._boxes(uniforms, height, width)
        return tf.reduce_min(boxes[:, 2:], axis=1) / self.size

    def _boxes(
        self, uniforms: prng.Uniforms, height: tf.Tensor, width: tf.Tensor
    ) -> tf.Tensor:
        areas = self.min_area, self.max_area
        return random_boxes(uniforms["crop"], height, width, *areas)


@dataclasses.dataclass(frozen=True)
class CenterCrop:
    """The evaluation preprocessing, without randomness."""

    size: int  # Side of a view in pixels, S.

    streams: ClassVar[dict[str, int]] = {}

    def __call__(
        self, images: tf.Tensor, image_ids: tf.Tensor, uniforms: prng.Uniforms
    ) -> tf.Tensor:
        """Makes views float32 [m, S, S, K] of images [n, h, w, K]."""
        return tf.gather(
            preprocessing.resize_and_crop(
                images, self.size, unit=_unit(images)
            ),
            image_ids,
        )

    def reduction(
        self, height: tf.Tensor, width: tf.Tensor, uniforms: prng.Uniforms
    ) -> tf.Tensor:
        """By how much the shorter side shrinks, float32 [1]."""
        shorter = tf.cast(tf.minimum(height, width), tf.float32)
        return shorter[tf.newaxis] / preprocessing.resize_target(self.size)
