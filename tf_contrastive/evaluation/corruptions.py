"""Nine of the 15 common corruptions of ImageNet-C, at 5 severities each.

Hendrycks and Dietterich 2019. With equal seeds `gaussian_noise shot_noise
zoom_blur contrast pixelate jpeg_compression` are bit-identical to the published
code as it is in TensorFlow Datasets. `impulse_noise` (with other draws),
`defocus_blur` and `brightness` are ported to SciPy and Matplotlib and equal up
to rounding. The other six need scikit-image, OpenCV, ImageMagick or
photographs: prepared datasets of TensorFlow Datasets have them.
"""

import functools
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import RandomState
from scipy import ndimage, signal

from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE

# ---- Noise -------------------------------------------------------------------


def _gaussian_noise(x: np.ndarray, scale: Any, rng: RandomState) -> np.ndarray:
    return x + rng.normal(size=x.shape, scale=scale)


def _shot_noise(x: np.ndarray, photons: Any, rng: RandomState) -> np.ndarray:
    """Poisson noise of photon counts."""
    return rng.poisson(x * photons) / float(photons)


def _impulse_noise(
    x: np.ndarray, fraction: Any, rng: RandomState
) -> np.ndarray:
    """Salt-and-pepper noise, in equal parts, on a fraction of the values."""
    hit = rng.random_sample(x.shape) <= fraction
    salt = rng.random_sample(x.shape) <= 0.5
    return np.where(hit, salt.astype(np.float64), x)


# ---- Blur --------------------------------------------------------------------


@functools.lru_cache
def _disk(radius: float, smoothing: float) -> np.ndarray:
    """Returns a disk kernel with a smoothed edge, without zero borders."""
    reach = 8 if radius <= 8 else radius
    line = np.arange(-reach, reach + 1)
    disk = (line**2 + line[:, np.newaxis] ** 2 <= radius**2).astype(np.float64)
    taps = np.arange(-1, 2) if radius <= 8 else np.arange(-2, 3)
    window = np.exp(-(taps**2) / (2 * smoothing**2))
    window /= window.sum()
    disk /= disk.sum()
    for axis in (0, 1):
        disk = ndimage.correlate1d(disk, window, axis, mode="mirror")
    inside = np.flatnonzero(disk.any(axis=0))
    return disk[inside[0] : inside[-1] + 1, inside[0] : inside[-1] + 1]


def _defocus_blur(x: np.ndarray, level: Any, rng: RandomState) -> np.ndarray:
    """Out-of-focus blur: each point becomes a disk."""
    kernel = _disk(*level)[..., np.newaxis]
    if kernel.size <= 49:
        return ndimage.correlate(x, kernel, mode="mirror")
    reach = len(kernel) // 2
    # The kernel is symmetric, so that convolution equals correlation.
    wide = np.pad(x, [(reach, reach), (reach, reach), (0, 0)], "reflect")
    return signal.fftconvolve(wide, kernel, "valid", axes=(0, 1))


def _enlarged(x: np.ndarray, factor: float) -> np.ndarray:
    """Enlarges the middle of [h, w, c] to the size of the whole."""
    cut = []
    for side in x.shape[:2]:
        size = int(np.ceil(side / float(factor)))
        start = (side - size) // 2
        cut.append(slice(start, start + size))
    large = ndimage.zoom(x[tuple(cut)], (factor, factor, 1), order=1)
    trim = []
    for side, available in zip(x.shape[:2], large.shape[:2], strict=True):
        start = (available - side) // 2
        trim.append(slice(start, start + side))
    return large[tuple(trim)]


def _zoom_blur(x: np.ndarray, factors: Any, rng: RandomState) -> np.ndarray:
    """Mean of enlargements, as by a camera that moves closer."""
    x = x.astype(np.float32)
    zoomed = np.zeros_like(x)
    for factor in factors:
        zoomed += _enlarged(x, factor)
    return (x + zoomed) / (len(factors) + 1)


# ---- Light and digital processing --------------------------------------------


def _brightness(x: np.ndarray, added: Any, rng: RandomState) -> np.ndarray:
    """Increases HSV value."""
    from matplotlib import colors

    hsv = colors.rgb_to_hsv(x)
    hsv[..., 2] = np.clip(hsv[..., 2] + added, 0, 1)
    return colors.hsv_to_rgb(hsv)


def _contrast(x: np.ndarray, scale: Any, rng: RandomState) -> np.ndarray:
    """Moves values towards the mean of their channel."""
    means = np.mean(x, axis=(0, 1), keepdims=True)
    return (x - means) * scale + means


def _pixelate(x: np.ndarray, scale: Any, rng: RandomState) -> np.ndarray:
    """Scales down and up again."""
    from PIL import Image

    method = Image.Resampling.BOX
    image = Image.fromarray(np.around(x * 255).astype(np.uint8))
    height, width, _ = x.shape
    small = (max(int(width * scale), 1), max(int(height * scale), 1))
    image = image.resize(small, method).resize((width, height), method)
    return np.asarray(image) / 255


def _jpeg_compression(
    x: np.ndarray, quality: Any, rng: RandomState
) -> np.ndarray:
    from PIL import Image

    file = io.BytesIO()
    image = Image.fromarray(np.around(x * 255).astype(np.uint8))
    image.save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file)) / 255


# (image float64 [h, w, 3] in [0, 1], level, random) -> the corrupted image, of
# the same range up to clipping.
CORRUPTIONS: dict[str, Callable[[np.ndarray, Any, RandomState], np.ndarray]] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "defocus_blur": _defocus_blur,
    "zoom_blur": _zoom_blur,
    "brightness": _brightness,
    "contrast": _contrast,
    "pixelate": _pixelate,
    "jpeg_compression": _jpeg_compression,
}
_Levels = dict[str, list[Any]]

# Corruption -> its level at severity 1 to 5, for images of 224 pixels.
_IMAGENET: _Levels = {
    "gaussian_noise": [0.08, 0.12, 0.18, 0.26, 0.38],
    "shot_noise": [60, 25, 12, 5, 3],
    "impulse_noise": [0.03, 0.06, 0.09, 0.17, 0.27],
    "defocus_blur": [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],
    "zoom_blur": [
        *(np.arange(1, end, 0.01) for end in (1.11, 1.16)),
        *(np.arange(1, end, 0.02) for end in (1.21, 1.26)),
        np.arange(1, 1.31, 0.03),
    ],
    "brightness": [0.1, 0.2, 0.3, 0.4, 0.5],
    "contrast": [0.4, 0.3, 0.2, 0.1, 0.05],
    "pixelate": [0.6, 0.5, 0.4, 0.3, 0.25],
    "jpeg_compression": [25, 18, 15, 10, 7],
}
# For images of 32 pixels.
_CIFAR: _Levels = {
    "gaussian_noise": [0.04, 0.06, 0.08, 0.09, 0.10],
    "shot_noise": [500, 250, 100, 75, 50],
    "impulse_noise": [0.01, 0.02, 0.03, 0.05, 0.07],
    "defocus_blur": [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
    "zoom_blur": [
        np.arange(1, end, 0.01) for end in (1.06, 1.11, 1.16, 1.21, 1.26)
    ],
    "brightness": [0.05, 0.1, 0.15, 0.2, 0.3],
    "contrast": [0.75, 0.5, 0.4, 0.3, 0.15],
    "pixelate": [0.95, 0.9, 0.85, 0.75, 0.65],
    "jpeg_compression": [80, 65, 58, 50, 40],
}
# ImageNet-C and CIFAR-10-C.
LEVELS = {"imagenet": _IMAGENET, "cifar": _CIFAR}


def corrupt(
    image: np.ndarray,
    name: str,
    severity: int,
    seed: int,
    levels: str | None = None,
) -> np.ndarray:
    """Corrupts an image uint8 [h, w, 3], at a severity of 1 to 5.

    The seed is that of all draws. `levels` is a name of `LEVELS`; None: "cifar"
    up to 64 pixels a side, otherwise "imagenet".
    """
    if levels is None:
        small = max(image.shape) <= CIFAR_STEM_MAX_SIDE
        levels = "cifar" if small else "imagenet"
    level = LEVELS[levels][name][severity - 1]
    # RandomState's stream is stable across NumPy versions; Generator's is not.
    random = RandomState(seed % 2**32)
    corrupted = CORRUPTIONS[name](image / 255.0, level, random)
    return np.around(np.clip(corrupted, 0, 1) * 255).astype(np.uint8)


def corrupt_batch(
    images: np.ndarray, name: str, severity: int, first: int, seed: int = 0
) -> np.ndarray:
    """Corrupts images uint8 [n, h, w, 3], each with a seed of its own.

    It depends on an image's index in the dataset, counted from `first`, and not
    on the batches.
    """
    corrupted = []
    for index, image in enumerate(images, first):
        own = np.random.SeedSequence([seed, index]).generate_state(1)[0]
        corrupted.append(corrupt(image, name, severity, int(own)))
    return np.stack(corrupted)
