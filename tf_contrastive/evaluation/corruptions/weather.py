"""Corruptions by weather: fog, frost, snow, and bright light.

The package says what `frost` stands in for.
"""

import numpy as np

from tf_contrastive.evaluation.corruptions import blur


def _plasma(side: int, decay: float, random) -> np.ndarray:
    """A cloud [side, side] in [0, 1] by diamond-square; side a power of two."""
    heights = np.zeros([side, side])
    step, wobble = side, 100.0

    def wobbled(total):
        return total / 4 + wobble * random.uniform(-wobble, wobble, total.shape)

    def both(grid, axis, shift):
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


def _cloud(shape: tuple[int, ...], smallest: int, decay: float, random):
    """A cloud [h, w, 1], cut out of one of at least `smallest` a side."""
    side = max(smallest, 2 ** int(np.ceil(np.log2(max(shape[:2])))))
    cloud = _plasma(side, decay, random)
    return cloud[: shape[0], : shape[1], np.newaxis]


def fog(x, level, random):
    """A cloud over the image."""
    weight, decay, smallest = level
    brightest = x.max()
    x = x + weight * _cloud(x.shape, smallest, decay, random)
    return x * brightest / (brightest + weight)


def frost(x, level, random):
    """A stand-in: pale blue crystals instead of photographs."""
    kept, weight = level
    # Where clouds cross their middle height they make sharp bright lines.
    lines = np.zeros([*x.shape[:2], 1])
    for decay in (1.5, 2.0):
        cloud = _cloud(x.shape, 32, decay, random)
        lines = np.maximum(lines, (1 - np.abs(2 * cloud - 1)) ** 3)
    haze = _cloud(x.shape, 32, 2.5, random)
    return kept * x + weight * (0.4 * haze + 0.6 * lines) * (0.8, 0.92, 1.0)


def snow(x, level, random):
    """Flakes that fall, over an image that is paler."""
    mean, spread, zoom, threshold, radius, sigma, kept = level
    flakes = random.normal(size=x.shape[:2], loc=mean, scale=spread)
    flakes = blur.clipped_zoom(flakes[..., np.newaxis], zoom)
    flakes[flakes < threshold] = 0
    flakes = np.uint8(np.clip(flakes, 0, 1) * 255)
    flakes = blur.move(flakes, radius, sigma, random.uniform(-135, -45))
    gray = (x @ (0.299, 0.587, 0.114))[..., np.newaxis]
    x = kept * x + (1 - kept) * np.maximum(x, gray * 1.5 + 0.5)
    return x + flakes + np.rot90(flakes, k=2)


def brightness(x, added, random):
    """More of HSV's value."""
    from matplotlib import colors

    hue = colors.rgb_to_hsv(x)
    hue[..., 2] = np.clip(hue[..., 2] + added, 0, 1)
    return colors.hsv_to_rgb(hue)
