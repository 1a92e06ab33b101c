"""Corruptions by weather: fog, frost, snow, and bright light."""

from typing import Any

import numpy as np
from numpy.random import RandomState

from tf_contrastive.evaluation.corruptions import blur


def _plasma(side: int, decay: float, rng: RandomState) -> np.ndarray:
    """Diamond-square noise [side, side] in [0, 1]; side is a power of two."""
    heights = np.zeros([side, side])
    step, wobble = side, 100.0

    def wobbled(total: np.ndarray) -> np.ndarray:
        return total / 4 + wobble * rng.uniform(-wobble, wobble, total.shape)

    def both(grid: np.ndarray, axis: int, shift: int) -> np.ndarray:
        return grid + np.roll(grid, shift, axis)

    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        heights[half::step, half::step] = wobbled(
            both(both(corners, 0, -1), 1, -1)
        )
        middles = heights[half::step, half::step]
        corners = heights[::step, ::step]
        heights[::step, half::step] = wobbled(
            both(middles, 0, 1) + both(corners, 1, -1)
        )
        heights[half::step, ::step] = wobbled(
            both(middles, 1, 1) + both(corners, 0, -1)
        )
        step, wobble = half, wobble / decay
    heights -= heights.min()
    return heights / heights.max()


def _cloud(
    shape: tuple[int, ...], smallest: int, decay: float, rng: RandomState
) -> np.ndarray:
    """Returns noise [h, w, 1], cut from at least `smallest` pixels a side."""
    side = max(smallest, 2 ** int(np.ceil(np.log2(max(shape[:2])))))
    cloud = _plasma(side, decay, rng)
    return cloud[: shape[0], : shape[1], np.newaxis]


def fog(x: np.ndarray, level: Any, rng: RandomState) -> np.ndarray:
    """Adds a cloud."""
    weight, decay, smallest = level
    brightest = x.max()
    x = x + weight * _cloud(x.shape, smallest, decay, rng)
    return x * brightest / (brightest + weight)


def frost(x: np.ndarray, level: Any, rng: RandomState) -> np.ndarray:
    """Adds drawn crystals; a stand-in for the published photographs."""
    scale, weight = level
    # Sharp bright lines where the noise crosses its middle height.
    lines = np.zeros([*x.shape[:2], 1])
    for decay in (1.5, 2.0):
        cloud = _cloud(x.shape, 32, decay, rng)
        lines = np.maximum(lines, (1 - np.abs(2 * cloud - 1)) ** 3)
    haze = _cloud(x.shape, 32, 2.5, rng)
    return scale * x + weight * (0.4 * haze + 0.6 * lines) * (0.8, 0.92, 1.0)


def snow(x: np.ndarray, level: Any, rng: RandomState) -> np.ndarray:
    """Adds falling flakes, and makes the image paler."""
    mean, spread, zoom, threshold, radius, sigma, scale = level
    flakes = rng.normal(size=x.shape[:2], loc=mean, scale=spread)
    flakes = blur.clipped_zoom(flakes[..., np.newaxis], zoom)
    flakes[flakes < threshold] = 0
    flakes = (np.clip(flakes, 0, 1) * 255).astype(np.uint8)
    flakes = blur.move(flakes, radius, sigma, rng.uniform(-135, -45))
    gray = (x @ (0.299, 0.587, 0.114))[..., np.newaxis]
    x = scale * x + (1 - scale) * np.maximum(x, gray * 1.5 + 0.5)
    return x + flakes + np.rot90(flakes, k=2)


def brightness(x: np.ndarray, added: Any, rng: RandomState) -> np.ndarray:
    """Increases HSV value."""
    from matplotlib import colors

    hsv = colors.rgb_to_hsv(x)
    hsv[..., 2] = np.clip(hsv[..., 2] + added, 0, 1)
    return colors.hsv_to_rgb(hsv)
