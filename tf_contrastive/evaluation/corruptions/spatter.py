"""The corruption `spatter`: drops of water or mud on the lens.

The published code uses functions of OpenCV, which are ported here.
"""

from typing import Any

import numpy as np
from scipy import ndimage

from tf_contrastive.evaluation.corruptions import blur

_DROP_RELIEF = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
_WATER = np.array([175, 238, 238]) / 255
_MUD = np.array([63, 42, 20]) / 255


def spatter(
    x: np.ndarray, level: Any, random: np.random.RandomState
) -> np.ndarray:
    """Drops of water, or of mud at the higher severities."""
    mean, spread, sigma, threshold, strength, mud = level
    liquid = random.normal(size=x.shape[:2], loc=mean, scale=spread)
    liquid = blur.smooth(liquid, sigma)
    liquid[liquid < threshold] = 0
    if mud:
        cover = blur.smooth((liquid > threshold).astype(np.float64), strength)
        cover[cover < 0.8] = 0
        cover = cover[..., np.newaxis]
        return x * (1 - cover) + cover * _MUD
    liquid = (liquid * 255).astype(np.uint8)
    edges = _edges(liquid, 50, 150)
    if not edges.any():
        return x
    inside = np.minimum(ndimage.distance_transform_edt(~edges), 20)
    inside = _equalized(_mean_of_nine(inside).astype(np.uint8))
    relief = ndimage.correlate(
        inside.astype(np.float64), _DROP_RELIEF, mode="mirror"
    )
    relief = np.around(_mean_of_nine(np.clip(relief, 0, 255)))
    drops = liquid * relief
    if drops.max() == 0:
        return x
    drops *= strength / drops.max()
    return x + drops[..., np.newaxis] * _WATER


def _edges(x: np.ndarray, low: int, high: int) -> np.ndarray:
    """OpenCV's Canny of uint8 [h, w]: bool [h, w]."""
    x = x.astype(np.int32)
    dy, dx = (ndimage.sobel(x, axis, mode="nearest") for axis in (0, 1))
    size = np.abs(dx) + np.abs(dy)
    wide = np.pad(size, 1)

    def neighbor(down: int, right: int) -> np.ndarray:
        rows = slice(1 + down, 1 + down + x.shape[0])
        return wide[rows, slice(1 + right, 1 + right + x.shape[1])]

    # Non-maximum suppression along the gradient: horizontal, vertical or
    # diagonal.
    tangent = np.tan(np.pi / 8)
    flat = np.abs(dy) < tangent * np.abs(dx)
    steep = np.abs(dy) > (tangent + 2) * np.abs(dx)
    falling = (dx < 0) == (dy < 0)
    crest = np.where(
        flat,
        (size > neighbor(0, -1)) & (size >= neighbor(0, 1)),
        np.where(
            steep,
            (size > neighbor(-1, 0)) & (size >= neighbor(1, 0)),
            np.where(
                falling,
                (size > neighbor(-1, -1)) & (size > neighbor(1, 1)),
                (size > neighbor(-1, 1)) & (size > neighbor(1, -1)),
            ),
        ),
    )
    weak = crest & (size > low)
    groups, _ = ndimage.label(weak, np.ones([3, 3]))
    strong = np.unique(groups[weak & (size > high)])
    return np.isin(groups, strong) & weak


def _equalized(x: np.ndarray) -> np.ndarray:
    """OpenCV's histogram equalization of uint8 [h, w]."""
    counts = np.bincount(x.ravel(), minlength=256)
    first = np.flatnonzero(counts)[0]
    if counts[first] == x.size:
        return x
    sums = np.cumsum(counts) - counts[first]
    table = np.around(sums * (255 / (x.size - counts[first])))
    return np.clip(table, 0, 255).astype(np.uint8)[x]


def _mean_of_nine(x: np.ndarray) -> np.ndarray:
    return ndimage.uniform_filter(x.astype(np.float64), 3, mode="mirror")
