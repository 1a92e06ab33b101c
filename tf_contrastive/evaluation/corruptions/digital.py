"""Corruptions by noise and by digital processing."""

import io
from typing import Any

import numpy as np
from scipy import ndimage

from tf_contrastive.evaluation.corruptions import blur

# ---- Noise -------------------------------------------------------------------


def gaussian_noise(
    x: np.ndarray, scale: Any, random: np.random.RandomState
) -> np.ndarray:
    """Additive normal noise."""
    return x + random.normal(size=x.shape, scale=scale)


def shot_noise(
    x: np.ndarray, photons: Any, random: np.random.RandomState
) -> np.ndarray:
    """Poisson noise of photon counts."""
    return random.poisson(x * photons) / float(photons)


def impulse_noise(
    x: np.ndarray, fraction: Any, random: np.random.RandomState
) -> np.ndarray:
    """Salt-and-pepper noise, in equal parts, on a fraction of the values."""
    hit = random.random_sample(x.shape) <= fraction
    salt = random.random_sample(x.shape) <= 0.5
    return np.where(hit, salt.astype(np.float64), x)


def speckle_noise(
    x: np.ndarray, scale: Any, random: np.random.RandomState
) -> np.ndarray:
    """Normal noise in proportion to each value."""
    return x + x * random.normal(size=x.shape, scale=scale)


# ---- Colours, geometry, compression ------------------------------------------


def contrast(
    x: np.ndarray, scale: Any, random: np.random.RandomState
) -> np.ndarray:
    """Moves values towards the mean of their channel."""
    means = np.mean(x, axis=(0, 1), keepdims=True)
    return (x - means) * scale + means


def saturate(
    x: np.ndarray, level: Any, random: np.random.RandomState
) -> np.ndarray:
    """Scales and shifts HSV saturation."""
    from matplotlib import colors

    factor, added = level
    hue = colors.rgb_to_hsv(x)
    hue[..., 1] = np.clip(hue[..., 1] * factor + added, 0, 1)
    return colors.hsv_to_rgb(hue)


def elastic_transform(
    x: np.ndarray, level: Any, random: np.random.RandomState
) -> np.ndarray:
    """A random affine map and a smooth random displacement."""
    strength, sigma, shift = level
    height, width, channels = x.shape
    middle = np.array([height, width], np.float32) // 2
    reach = min(height, width) // 3
    before = np.array(
        [
            middle + reach,
            [middle[0] + reach, middle[1] - reach],
            middle - reach,
        ],
        np.float32,
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


def _affine(x: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """OpenCV's affine warp that moves three points (x, y).

    Bilinear, at positions rounded to 1/32 pixel.
    """
    ones = np.ones([3, 1])
    # From positions in the result to positions in the source.
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


def pixelate(
    x: np.ndarray, level: Any, random: np.random.RandomState
) -> np.ndarray:
    """Scales down and up again."""
    from PIL import Image

    scale, filter_name = level
    method = Image.Resampling[filter_name]
    image = Image.fromarray(np.around(x * 255).astype(np.uint8))
    height, width, _ = x.shape
    small = (max(int(width * scale), 1), max(int(height * scale), 1))
    image = image.resize(small, method).resize((width, height), method)
    return np.asarray(image) / 255


def jpeg_compression(
    x: np.ndarray, quality: Any, random: np.random.RandomState
) -> np.ndarray:
    """JPEG compression, at a quality of 1 to 100."""
    from PIL import Image

    file = io.BytesIO()
    image = Image.fromarray(np.around(x * 255).astype(np.uint8))
    image.save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file)) / 255
