"""Corruptions by blur, and filters that other corruptions use."""

import functools
from typing import Any

import numpy as np
from numpy.random import RandomState
from scipy import ndimage, signal


def smooth(
    x: np.ndarray, sigma: float, mode: str = "nearest", truncate: float = 4.0
) -> np.ndarray:
    """scikit-image's Gaussian filter of [h, w] or, per channel, [h, w, c]."""
    axes = (sigma, sigma, 0)[: x.ndim]
    return ndimage.gaussian_filter(x, axes, mode=mode, truncate=truncate)


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


def defocus_blur(x: np.ndarray, level: Any, rng: RandomState) -> np.ndarray:
    """Out-of-focus blur: each point becomes a disk."""
    kernel = _disk(*level)[..., np.newaxis]
    if kernel.size <= 49:
        return ndimage.correlate(x, kernel, mode="mirror")
    reach = len(kernel) // 2
    # The kernel is symmetric, so that convolution equals correlation.
    wide = np.pad(x, [(reach, reach), (reach, reach), (0, 0)], "reflect")
    return signal.fftconvolve(wide, kernel, "valid", axes=(0, 1))


def glass_blur(x: np.ndarray, level: Any, rng: RandomState) -> np.ndarray:
    """Pixels swap places with near ones, between two light blurs."""
    sigma, reach, rounds = level
    x = (smooth(x, sigma) * 255).astype(np.uint8)
    height, width, _ = x.shape
    rows = np.arange(height - reach, reach, -1)
    columns = np.arange(width - reach, reach, -1)
    # The source of each pixel. Assignments are sequential, since a source may
    # have been overwritten before.
    order = list(range(height * width))
    for _ in range(rounds):
        moves = rng.randint(-reach, reach, size=(len(rows), len(columns), 2))
        to = rows[:, np.newaxis] * width + columns
        of = to + moves[..., 1] * width + moves[..., 0]
        for target, source in zip(
            to.ravel().tolist(), of.ravel().tolist(), strict=True
        ):
            order[target] = order[source]
    x = x.reshape(-1, 3)[order].reshape(x.shape)
    return smooth(x / 255.0, sigma)


def move(
    x: np.ndarray, radius: float, sigma: float, angle: float
) -> np.ndarray:
    """ImageMagick's motion blur of uint8 [h, w, ...], angle in degrees."""
    steps = np.arange(2 * int(np.ceil(radius)) + 1)
    weights = np.exp(-(steps**2) / (2.0 * sigma**2))
    weights /= weights.sum()
    angle = np.deg2rad(angle)
    down = np.ceil(steps * np.sin(angle) - 0.5).astype(int)
    right = np.ceil(steps * np.cos(angle) - 0.5).astype(int)
    rows, columns = np.arange(x.shape[0]), np.arange(x.shape[1])
    moved = np.zeros(x.shape)
    for weight, dy, dx in zip(weights, down, right, strict=True):
        row = np.clip(rows + dy, 0, len(rows) - 1)
        column = np.clip(columns + dx, 0, len(columns) - 1)
        moved += weight * x[row[:, np.newaxis], column]
    return np.around(moved) / 255


def motion_blur(x: np.ndarray, level: Any, rng: RandomState) -> np.ndarray:
    """Motion blur at a random angle of at most 45 degrees."""
    radius, sigma = level
    return move(np.around(x * 255), radius, sigma, rng.uniform(-45, 45))


def clipped_zoom(x: np.ndarray, factor: float) -> np.ndarray:
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


def zoom_blur(x: np.ndarray, factors: Any, rng: RandomState) -> np.ndarray:
    """Mean of enlargements, as by a camera that moves closer."""
    x = x.astype(np.float32)
    zoomed = np.zeros_like(x)
    for factor in factors:
        zoomed += clipped_zoom(x, factor)
    return (x + zoomed) / (len(factors) + 1)
