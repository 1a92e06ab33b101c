"""From images of any size to square views: random crop, resize and flip.

One call samples every view of a batch, straight from uint8. The boxes are
drawn in closed form, and mirroring is a box whose sides are swapped.
"""

import dataclasses
import math

import tensorflow as tf

from tf_contrastive.views import prng

# Candidates per view, of which the first that fits into the image is taken.
# About 0.15 of them miss a square image, so ten miss together in 1 of 10**8.
CANDIDATES = 10
# log(width / height) is uniform between log(3/4) and log(4/3).
_LOG_ASPECT = math.log(4 / 3)
# Taylor's series of exp, exact to float32 on |x| <= log(4/3) / 2. Unlike
# tf.exp, whose last bit depends on a value's position in the batch, it gives
# a view the same box alone and among others.
_EXP = (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)
# Samples per view pixel and axis, at most, where photographs are shrunk.
_MAX_OVERSAMPLING = 8


def sides(images: tf.Tensor) -> tuple[int | tf.Tensor, int | tf.Tensor]:
    """Height and width of images [n, h, w, c]: int where known, else int32."""
    shape = tf.shape(images)
    return images.shape[1] or shape[1], images.shape[2] or shape[2]


def random_boxes(
    unit: tf.Tensor,
    height: int | tf.Tensor,
    width: int | tf.Tensor,
    min_area: float,
) -> tf.Tensor:
    """Boxes of SimCLR's random crop (Chen et al. 2020, appendix A).

    The area is uniform in [min_area, 1] of the image's, as the paper says,
    and the aspect ratio log-uniform in [3/4, 4/3], so that no orientation is
    preferred. (`tf.image.sample_distorted_bounding_box` draws the height
    uniformly, which favours large areas less, and the ratio uniformly.) If no
    candidate fits, the box is the whole image.

    Args:
      unit: float32 [m, 2 * CANDIDATES + 2], uniform in [0, 1).
      height, width: size of the images in pixels.
      min_area: smallest share of the image's area.

    Returns:
      float32 [m, 4] of whole pixels: top, left, height, width.
    """
    height, width = tf.cast(height, tf.float32), tf.cast(width, tf.float32)
    area = prng.between(unit[:, :CANDIDATES], min_area, 1.0)
    skew = prng.between(unit[:, CANDIDATES:-2], -0.5, 0.5) * _LOG_ASPECT
    side = tf.sqrt(area * (height * width))
    stretch = tf.math.polyval([tf.constant(c) for c in _EXP], skew)
    heights = tf.maximum(tf.round(side / stretch), 1.0)
    widths = tf.maximum(tf.round(side * stretch), 1.0)
    fits = (heights <= height) & (widths <= width)
    first = tf.argmax(tf.cast(fits, tf.int32), axis=1)
    some = tf.reduce_any(fits, axis=1)
    heights = tf.gather(heights, first, batch_dims=1)
    widths = tf.gather(widths, first, batch_dims=1)
    heights = tf.where(some, heights, height)
    widths = tf.where(some, widths, width)
    top = _offset(unit[:, -2], height - heights)
    left = _offset(unit[:, -1], width - widths)
    return tf.stack([top, left, heights, widths], axis=1)


def _offset(unit: tf.Tensor, room: tf.Tensor) -> tf.Tensor:
    """A whole number in [0, room], uniformly."""
    # The product may round up to room + 1.
    return tf.minimum(tf.floor(unit * (room + 1.0)), room)


def _extend_edges(images: tf.Tensor) -> tf.Tensor:
    """Repeats the outermost pixels once on each side."""
    # Ten times as fast as tf.pad in its "SYMMETRIC" mode.
    images = tf.concat([images[:, :1], images, images[:, -1:]], axis=1)
    return tf.concat([images[:, :, :1], images, images[:, :, -1:]], axis=2)


def _oversampling(images: tf.Tensor, size: int) -> int | tf.Tensor:
    """Samples per output pixel and axis that keep shrinking free of aliases.

    At most two source pixels lie between two samples of a square crop, up to
    `_MAX_OVERSAMPLING`. It depends on the image's size alone, for the crops of
    a batch share the grid.
    """
    height, width = sides(images)
    if isinstance(height, int) and isinstance(width, int):
        shorter = min(height, width)
        return min(max(shorter // (2 * size), 1), _MAX_OVERSAMPLING)
    shorter = tf.minimum(height, width)
    return tf.clip_by_value(shorter // (2 * size), 1, _MAX_OVERSAMPLING)


def _normalised(
    start: tf.Tensor, length: tf.Tensor, side: tf.Tensor, samples: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """First and last sample as `crop_and_resize` wants them.

    That operation puts its first and last sample on the ends of the box, in
    units of (side - 1). Samples at the centres of their cells, the convention
    of `tf.image.resize`, begin half a cell inside. The image has been extended
    by one pixel.
    """
    cell = length * (0.5 / samples)
    first = start + 0.5 + cell
    last = start + 0.5 + length - cell
    # Not divided: graphs turn a division by a constant into this, and eager
    # code is to give the same pixels.
    unit = 1.0 / (side + 1.0)
    return first * unit, last * unit


def sample(
    images: tf.Tensor,
    owners: tf.Tensor,
    boxes: tf.Tensor,
    mirrored: tf.Tensor,
    size: int,
) -> tf.Tensor:
    """Resizes boxes of images, bilinearly, mirrored where asked.

    Equal to slicing and `tf.image.resize` but at a box's border, where pixels
    beyond the box are interpolated with, as far as the image has any.

    Args:
      images: uint8 [n, h, w, 3].
      owners: int32 [m], which image each box is of.
      boxes: float32 [m, 4] in pixels: top, left, height, width.
      mirrored: bool [m], left to right.
      size: side of the result, S.

    Returns:
      float32 [m, S, S, 3] in [0, 1].
    """
    factor = _oversampling(images, size)
    grid = size * factor
    height, width = (tf.cast(side, tf.float32) for side in sides(images))
    samples = tf.cast(grid, tf.float32)
    top, left, heights, widths = tf.unstack(boxes, axis=1)
    y1, y2 = _normalised(top, heights, height, samples)
    x1, x2 = _normalised(left, widths, width, samples)
    start, end = tf.where(mirrored, x2, x1), tf.where(mirrored, x1, x2)
    pixels = tf.image.crop_and_resize(
        _extend_edges(images),
        tf.stack([y1, start, y2, end], axis=1),
        owners,
        [grid, grid],
    )
    pixels = _average(pixels, factor, size)
    # Interpolation can exceed 255 by its last bit.
    return tf.minimum(pixels * (1 / 255), 1.0)


def _average(
    pixels: tf.Tensor, factor: int | tf.Tensor, size: int
) -> tf.Tensor:
    """Averages squares of factor x factor samples."""

    def shrink() -> tf.Tensor:
        return tf.image.resize(pixels, [size, size], method="area")

    if isinstance(factor, int):
        return pixels if factor == 1 else shrink()
    pixels = tf.cond(factor > 1, shrink, lambda: pixels)
    return tf.ensure_shape(pixels, [None, size, size, 3])


@dataclasses.dataclass(frozen=True)
class RandomCrop:
    """Random crop, resize and, if wanted, a flip of half of the views.

    Attributes:
      size: side of a view in pixels, S.
      min_area: smallest share of the image's area that a crop keeps.
      flip: whether half of the views are mirrored left to right.
    """

    size: int
    min_area: float
    flip: bool

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes."""
        return {"crop": 2 * CANDIDATES + 2, "flip": 1}

    def __call__(
        self, images: tf.Tensor, owners: tf.Tensor, unit: prng.Unit
    ) -> tf.Tensor:
        """Makes views float32 [m, S, S, 3] of images uint8 [n, h, w, 3].

        Args:
          images: uint8 [n, h, w, 3].
          owners: int32 [m], which image each view is of.
          unit: float32 [m, k] uniform in [0, 1), by stream.
        """
        boxes = random_boxes(unit["crop"], *sides(images), self.min_area)
        mirrored = tf.zeros_like(owners, tf.bool)
        if self.flip:
            mirrored = unit["flip"][:, 0] < 0.5
        return sample(images, owners, boxes, mirrored, self.size)
