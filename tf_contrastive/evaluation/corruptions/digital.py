"""Corruptions by noise and by digital processing."""

import io
from typing import Any

import numpy as np
from numpy.random import RandomState
from scipy import ndimage

from tf_contrastive.evaluation.corruptions import blur

# ---- Noise -------------------------------------------------------------------


def gaussian_noise(x: np.ndarray, scale: Any, rng: RandomState) -> np.ndarray:
    """Additive normal noise."""
    return x + rng.normal(size=x.shape, scale=scale)


def shot_noise(x: np.ndarray, photons: Any, rng: RandomState) -> np.ndarray:
    """Poisson noise of photon counts."""
    return rng.poisson(x * photons) / float(photons)


def impulse_noise(x: np.ndarray, fraction: Any, rng: RandomState) -> np.ndarray:
    """Salt-and-pepper noise, in equal parts, on a fraction of the values."""
    hit = rng.random_sample(x.shape) <= fraction
    salt = rng.random_sample(x.shape) <= 0.5
    return np.where(hit, salt.astype(np.float64), x)


# ---- Colours, geometry, compression ------------------------------------------


def contrast(x: np.ndarray, scale: Any, rng: RandomState) -> np.ndarray:
    """Moves values towards the mean of their channel."""
    means = np.mean(x, axis=(0, 1), keepdims=True)
    return (x - means) * scale + means


def elastic_transform(
    x: np.ndarray, level: Any, rng: RandomState
) -> np.ndarray:
    """A random affine map and a smooth random displacement."""
    strength, sigma, shift = level
    height, width, _ = x.shape
    middle = np.array([height, width], np.float32) // 2
    reach = min(height, width) // 3
    corners = np.array([(1, 1), (1, -1), (-1, -1)], np.float32)
    before = middle + reach * corners
    moved = rng.uniform(-shift, shift, size=before.shape)
    x = _affine(x, before, before + moved.astype(np.float32))
    offsets = [
        blur.smooth(
            rng.uniform(-1, 1, size=(height, width)), sigma, "reflect", 3
        )
        * strength
        for _ in range(2)
    ]
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    places = (rows + offsets[1], columns + offsets[0])
    return _sample(x, places, "reflect")


def _sample(x: np.ndarray, places: Any, mode: str) -> np.ndarray:
    """Returns the bilinear values of [h, w, c] at (rows, columns)."""
    channels = [
        ndimage.map_coordinates(channel, places, order=1, mode=mode)
        for channel in np.moveaxis(x, -1, 0)
    ]
    return np.stack(channels, axis=-1)


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
    return _sample(x, places, "mirror")


def pixelate(x: np.ndarray, scale: Any, rng: RandomState) -> np.ndarray:
    """Scales down and up again."""
    from PIL import Image

    method = Image.Resampling.BOX
    image = Image.fromarray(np.around(x * 255).astype(np.uint8))
    height, width, _ = x.shape
    small = (max(int(width * scale), 1), max(int(height * scale), 1))
    image = image.resize(small, method).resize((width, height), method)
    return np.asarray(image) / 255


def jpeg_compression(x: np.ndarray, level: Any, rng: RandomState) -> np.ndarray:
    """JPEG compression, at a quality of 1 to 100."""
    from PIL import Image

    file = io.BytesIO()
    image = Image.fromarray(np.around(x * 255).astype(np.uint8))
    image.save(file, "JPEG", quality=level)
    return np.asarray(Image.open(file)) / 255
