"""Corruptions by digital processing: colours, geometry, coding."""

import io

import numpy as np
from scipy import ndimage

from tf_contrastive.evaluation.corruptions import blur


def contrast(x, kept, random):
    """Values nearer to the mean of their channel."""
    means = np.mean(x, axis=(0, 1), keepdims=True)
    return (x - means) * kept + means


def saturate(x, level, random):
    """HSV's saturation, scaled and shifted."""
    from matplotlib import colors

    factor, added = level
    hue = colors.rgb_to_hsv(x)
    hue[..., 1] = np.clip(hue[..., 1] * factor + added, 0, 1)
    return colors.hsv_to_rgb(hue)


def elastic_transform(x, level, random):
    """A random affine map, then a smooth random displacement."""
    strength, sigma, shift = level
    height, width, channels = x.shape
    middle = np.float32([height, width]) // 2
    reach = min(height, width) // 3
    before = np.float32(
        [
            middle + reach,
            [middle[0] + reach, middle[1] - reach],
            middle - reach,
        ]
    )
    moved = random.uniform(-shift, shift, size=before.shape)
    x = _affine(x, before, before + moved.astype(np.float32))
    offsets = [
        blur.smooth(
            random.uniform(-1, 1, size=(height, width)), sigma, "reflect", 3
        )
        * strength
        for _ in range(2)
    ]
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    places = (rows + offsets[1], columns + offsets[0])
    return np.stack(
        [
            ndimage.map_coordinates(x[..., c], places, order=1, mode="reflect")
            for c in range(channels)
        ],
        axis=-1,
    )


def _affine(x: np.ndarray, before: np.ndarray, after: np.ndarray):
    """Moves three points (x, y), and all others with them.

    As OpenCV does it: bilinear, at places rounded to 1/32 pixel.
    """
    ones = np.ones([3, 1])
    # From places in the result back to places in the source.
    back = np.linalg.solve(
        np.hstack([after.astype(np.float64), ones]), before.astype(np.float64)
    )
    columns, rows = np.arange(x.shape[1]), np.arange(x.shape[0])
    places = []
    for axis in (1, 0):
        along = np.around(back[0, axis] * columns * 1024)
        across = np.around((back[1, axis] * rows + back[2, axis]) * 1024)
        sums = (along + across[:, np.newaxis] + 16).astype(np.int64)
        places.append((sums >> 5) / 32)
    return np.stack(
        [
            ndimage.map_coordinates(x[..., c], places, order=1, mode="mirror")
            for c in range(x.shape[2])
        ],
        axis=-1,
    )


def pixelate(x, level, random):
    """Scaled down and up again."""
    from PIL import Image

    share, filter_name = level
    method = Image.Resampling[filter_name]
    image = Image.fromarray(np.uint8(np.around(x * 255)))
    height, width, _ = x.shape
    small = (max(int(width * share), 1), max(int(height * share), 1))
    image = image.resize(small, method).resize((width, height), method)
    return np.asarray(image) / 255


def jpeg_compression(x, quality, random):
    """Through JPEG, at a quality of 1 to 100."""
    from PIL import Image

    file = io.BytesIO()
    image = Image.fromarray(np.uint8(np.around(x * 255)))
    image.save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file)) / 255
