"""The 15 common corruptions of ImageNet-C, and 4 more, at 5 severities each.

Hendrycks and Dietterich 2019, made on the fly where a prepared -C dataset is
absent. TensorFlow Datasets holds code for them too, by whose draws and order
these functions go: with equal seeds `gaussian_noise shot_noise zoom_blur fog
contrast pixelate jpeg_compression speckle_noise` are its images to the bit. Its
other functions need OpenCV, scikit-image or ImageMagick, and are ported here to
SciPy, Matplotlib and Pillow: equal up to rounding `impulse_noise` (with draws
of its own), `defocus_blur glass_blur brightness elastic_transform gaussian_blur
saturate` and the mud of `spatter`; close to it the water of `spatter` (exact
distances in the place of OpenCV's approximate ones); by ImageMagick's algorithm
`motion_blur` and `snow`, at the authors' angles (TensorFlow Datasets' motion is
always at 45 degrees).

`frost` is a stand-in: the original lays photographs of frost over the image,
and this one crystals that it draws, by the same weights. Its errors say what a
bright texture does, but do not compare with published ones.

Levels are the published ones, for photographs and for 32 pixels. Severity takes
images further from the clean one, pixel by pixel or in their correlation with
it, but for three that were not made so: `saturate` takes colour away, and from
severity 3 on adds it; `glass_blur` blurs wider or mixes more; and
`elastic_transform` shifts the less, the more it bends.
"""

import functools
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import ndimage, signal

from tf_contrastive import config

SEVERITIES = (1, 2, 3, 4, 5)

# Image [h, w, 3] in [0, 1], float64; level; draws -> the corrupted one, of the
# same range up to clipping.
_Function = Callable[[np.ndarray, Any, np.random.RandomState], np.ndarray]


def corrupt(
    image: np.ndarray,
    name: str,
    severity: int,
    seed: int,
    levels: str | None = None,
) -> np.ndarray:
    """Corrupts an image.

    Args:
      image: uint8 [h, w, 3].
      name: of `CORRUPTIONS`.
      severity: 1 to 5.
      seed: of all that is drawn: the same seed, the same image.
      levels: what the severities stand for, a name of `LEVELS`; None: "cifar"
        up to 64 pixels a side, else "imagenet".

    Returns:
      uint8 [h, w, 3].

    Raises:
      UserError: for an unknown name or severity, or no such image.
    """
    function = CORRUPTIONS.get(name)
    if function is None:
        raise config.unknown("corruption", name, CORRUPTIONS)
    if severity not in SEVERITIES:
        raise config.UserError(f"severity {severity}: give one from 1 to 5")
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise config.UserError(
            f"cannot corrupt {image.dtype} {list(image.shape)}: give an image"
            " uint8 [height, width, 3]"
        )
    if levels is None:
        small = max(image.shape) <= config.CIFAR_STEM_MAX_SIDE
        levels = "cifar" if small else "imagenet"
    if levels not in LEVELS:
        raise config.unknown("levels", levels, LEVELS)
    level = LEVELS[levels][name][severity - 1]
    # RandomState's stream is frozen for good; Generator's is not.
    made = function(image / 255.0, level, np.random.RandomState(seed % 2**32))
    return np.around(np.clip(made, 0, 1) * 255).astype(np.uint8)


def corrupt_batch(
    images: np.ndarray, name: str, severity: int, first: int, seed: int = 0
) -> np.ndarray:
    """Corrupts images, each by a seed of its own.

    Args:
      images: uint8 [n, h, w, 3].
      name, severity: see `corrupt`.
      first: number of the first of them in its dataset; an image's corruption
        depends on its number, not on the batches.
      seed: of all of them.

    Returns:
      uint8 [n, h, w, 3].
    """
    seeds = [
        np.random.SeedSequence([seed, first + n]).generate_state(1)[0]
        for n in range(len(images))
    ]
    return np.stack(
        [
            corrupt(image, name, severity, int(own))
            for image, own in zip(images, seeds, strict=True)
        ]
    )


# ---- Noise -------------------------------------------------------------------


def _gaussian_noise(x, scale, random):
    return x + random.normal(size=x.shape, scale=scale)


def _shot_noise(x, photons, random):
    return random.poisson(x * photons) / float(photons)


def _impulse_noise(x, share, random):
    """Salt and pepper, in equal parts, on a share of the values."""
    hit = random.random_sample(x.shape) <= share
    salt = random.random_sample(x.shape) <= 0.5
    return np.where(hit, salt.astype(np.float64), x)


def _speckle_noise(x, scale, random):
    return x + x * random.normal(size=x.shape, scale=scale)


# ---- Blur --------------------------------------------------------------------


def _smooth(x, sigma, mode="nearest", truncate=4.0):
    """scikit-image's gaussian filter of [h, w] or, by channel, [h, w, c]."""
    axes = (sigma, sigma, 0)[: x.ndim]
    return ndimage.gaussian_filter(x, axes, mode=mode, truncate=truncate)


def _gaussian_blur(x, sigma, random):
    return _smooth(x, sigma)


@functools.lru_cache
def _disk(radius: float, smoothing: float) -> np.ndarray:
    """A disk's kernel, its edge smoothed; without its rim of zeros."""
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


def _defocus_blur(x, level, random):
    kernel = _disk(*level)[..., np.newaxis]
    if kernel.size <= 49:
        return ndimage.correlate(x, kernel, mode="mirror")
    reach = len(kernel) // 2
    # The kernel is the same either way round, so that it may be convolved.
    wide = np.pad(x, [(reach, reach), (reach, reach), (0, 0)], "reflect")
    return signal.fftconvolve(wide, kernel, "valid", axes=(0, 1))


def _glass_blur(x, level, random):
    """Pixels take the place of near ones, between two light blurs."""
    sigma, reach, rounds = level
    x = np.uint8(_smooth(x, sigma) * 255)
    height, width, _ = x.shape
    rows = np.arange(height - reach, reach, -1)
    columns = np.arange(width - reach, reach, -1)
    # Which pixel stands where. Each takes one that may have been taken from
    # elsewhere before: no way round a loop.
    order = list(range(height * width))
    for _ in range(rounds):
        moves = random.randint(-reach, reach, size=(len(rows), len(columns), 2))
        to = rows[:, np.newaxis] * width + columns
        of = to + moves[..., 1] * width + moves[..., 0]
        for target, source in zip(
            to.ravel().tolist(), of.ravel().tolist(), strict=True
        ):
            order[target] = order[source]
    x = x.reshape(-1, 3)[order].reshape(x.shape)
    return _smooth(x / 255.0, sigma)


def _move(x: np.ndarray, radius: float, sigma: float, angle: float):
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


def _motion_blur(x, level, random):
    return _move(np.around(x * 255), *level, random.uniform(-45, 45))


def _clipped_zoom(x: np.ndarray, factor: float) -> np.ndarray:
    """The middle of [h, w, c], enlarged to the size of the whole."""
    cut = []
    for side in x.shape[:2]:
        kept = int(np.ceil(side / float(factor)))
        start = (side - kept) // 2
        cut.append(slice(start, start + kept))
    large = ndimage.zoom(x[tuple(cut)], (factor, factor, 1), order=1)
    trim = []
    for side, has in zip(x.shape[:2], large.shape[:2], strict=True):
        start = (has - side) // 2
        trim.append(slice(start, start + side))
    return large[tuple(trim)]


def _zoom_blur(x, factors, random):
    x = x.astype(np.float32)
    zoomed = np.zeros_like(x)
    for factor in factors:
        zoomed += _clipped_zoom(x, factor)
    return (x + zoomed) / (len(factors) + 1)


# ---- Weather -----------------------------------------------------------------


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


def _fog(x, level, random):
    weight, decay, smallest = level
    brightest = x.max()
    x = x + weight * _cloud(x.shape, smallest, decay, random)
    return x * brightest / (brightest + weight)


def _frost(x, level, random):
    """A stand-in, see above: pale blue crystals instead of photographs."""
    kept, weight = level
    # Where clouds cross their middle height they make sharp bright lines.
    lines = np.zeros([*x.shape[:2], 1])
    for decay in (1.5, 2.0):
        cloud = _cloud(x.shape, 32, decay, random)
        lines = np.maximum(lines, (1 - np.abs(2 * cloud - 1)) ** 3)
    haze = _cloud(x.shape, 32, 2.5, random)
    return kept * x + weight * (0.4 * haze + 0.6 * lines) * (0.8, 0.92, 1.0)


def _snow(x, level, random):
    mean, spread, zoom, threshold, radius, sigma, kept = level
    flakes = random.normal(size=x.shape[:2], loc=mean, scale=spread)
    flakes = _clipped_zoom(flakes[..., np.newaxis], zoom)
    flakes[flakes < threshold] = 0
    flakes = np.uint8(np.clip(flakes, 0, 1) * 255)
    flakes = _move(flakes, radius, sigma, random.uniform(-135, -45))
    gray = (x @ (0.299, 0.587, 0.114))[..., np.newaxis]
    x = kept * x + (1 - kept) * np.maximum(x, gray * 1.5 + 0.5)
    return x + flakes + np.rot90(flakes, k=2)


def _edges(x: np.ndarray, low: int, high: int) -> np.ndarray:
    """OpenCV's Canny of uint8 [h, w]: bool [h, w]."""
    x = x.astype(np.int32)
    dy, dx = (ndimage.sobel(x, axis, mode="nearest") for axis in (0, 1))
    size = np.abs(dx) + np.abs(dy)
    wide = np.pad(size, 1)

    def neighbor(down, right):
        rows = slice(1 + down, 1 + down + x.shape[0])
        return wide[rows, slice(1 + right, 1 + right + x.shape[1])]

    # A crest is compared with its neighbours across: those at its sides, above
    # and below, or on the diagonal that it is steep along.
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


_DROP_RELIEF = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
_WATER = np.array([175, 238, 238]) / 255
_MUD = np.array([63, 42, 20]) / 255


def _spatter(x, level, random):
    """Drops of water, at the higher severities of mud."""
    mean, spread, sigma, threshold, strength, mud = level
    liquid = random.normal(size=x.shape[:2], loc=mean, scale=spread)
    liquid = _smooth(liquid, sigma)
    liquid[liquid < threshold] = 0
    if mud:
        cover = _smooth((liquid > threshold).astype(np.float64), strength)
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


def _brightness(x, added, random):
    from matplotlib import colors

    hue = colors.rgb_to_hsv(x)
    hue[..., 2] = np.clip(hue[..., 2] + added, 0, 1)
    return colors.hsv_to_rgb(hue)


# ---- Digital -----------------------------------------------------------------


def _contrast(x, kept, random):
    means = np.mean(x, axis=(0, 1), keepdims=True)
    return (x - means) * kept + means


def _saturate(x, level, random):
    from matplotlib import colors

    factor, added = level
    hue = colors.rgb_to_hsv(x)
    hue[..., 1] = np.clip(hue[..., 1] * factor + added, 0, 1)
    return colors.hsv_to_rgb(hue)


def _elastic_transform(x, level, random):
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
        _smooth(
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


def _pixelate(x, level, random):
    from PIL import Image

    share, filter_name = level
    method = Image.Resampling[filter_name]
    image = Image.fromarray(np.uint8(np.around(x * 255)))
    height, width, _ = x.shape
    small = (max(int(width * share), 1), max(int(height * share), 1))
    image = image.resize(small, method).resize((width, height), method)
    return np.asarray(image) / 255


def _jpeg_compression(x, quality, random):
    from PIL import Image

    file = io.BytesIO()
    image = Image.fromarray(np.uint8(np.around(x * 255)))
    image.save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file)) / 255


# The 15 that mCE is the mean of, and 4 that were meant to choose options by.
STANDARD: dict[str, _Function] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "defocus_blur": _defocus_blur,
    "glass_blur": _glass_blur,
    "motion_blur": _motion_blur,
    "zoom_blur": _zoom_blur,
    "snow": _snow,
    "frost": _frost,
    "fog": _fog,
    "brightness": _brightness,
    "contrast": _contrast,
    "elastic_transform": _elastic_transform,
    "pixelate": _pixelate,
    "jpeg_compression": _jpeg_compression,
}
EXTRA: dict[str, _Function] = {
    "gaussian_blur": _gaussian_blur,
    "saturate": _saturate,
    "spatter": _spatter,
    "speckle_noise": _speckle_noise,
}
CORRUPTIONS = {**STANDARD, **EXTRA}
# Whose images are not by the published method.
STAND_INS = ("frost",)


def _elastic(side: float, *shares: tuple[float, float, float]):
    return [tuple(side * share for share in row) for row in shares]


# Corruption -> its level at severity 1 to 5: for photographs of 224 pixels
# (ImageNet-C), and for pictures of 32 (CIFAR-10-C).
LEVELS: dict[str, dict[str, list[Any]]] = {
    "imagenet": {
        "gaussian_noise": [0.08, 0.12, 0.18, 0.26, 0.38],
        "shot_noise": [60, 25, 12, 5, 3],
        "impulse_noise": [0.03, 0.06, 0.09, 0.17, 0.27],
        "defocus_blur": [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],
        "glass_blur": [
            (0.7, 1, 2),
            (0.9, 2, 1),
            (1, 2, 3),
            (1.1, 3, 2),
            (1.5, 4, 2),
        ],
        "motion_blur": [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
        "zoom_blur": [
            np.arange(1, 1.11, 0.01),
            np.arange(1, 1.16, 0.01),
            np.arange(1, 1.21, 0.02),
            np.arange(1, 1.26, 0.02),
            np.arange(1, 1.31, 0.03),
        ],
        "snow": [
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ],
        "frost": [(1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)],
        "fog": [
            (1.5, 2, 512),
            (2.0, 2, 512),
            (2.5, 1.7, 512),
            (2.5, 1.5, 512),
            (3.0, 1.4, 512),
        ],
        "brightness": [0.1, 0.2, 0.3, 0.4, 0.5],
        "contrast": [0.4, 0.3, 0.2, 0.1, 0.05],
        "elastic_transform": _elastic(
            244,
            (2, 0.7, 0.1),
            (2, 0.08, 0.2),
            (0.05, 0.01, 0.02),
            (0.07, 0.01, 0.02),
            (0.12, 0.01, 0.02),
        ),
        "pixelate": [
            (share, "BICUBIC") for share in (0.6, 0.5, 0.4, 0.3, 0.25)
        ],
        "jpeg_compression": [25, 18, 15, 10, 7],
        "gaussian_blur": [1, 2, 3, 4, 6],
        "saturate": [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)],
        "spatter": [
            (0.65, 0.3, 4, 0.69, 0.6, False),
            (0.65, 0.3, 3, 0.68, 0.6, False),
            (0.65, 0.3, 2, 0.68, 0.5, False),
            (0.65, 0.3, 1, 0.65, 1.5, True),
            (0.67, 0.4, 1, 0.65, 1.5, True),
        ],
        "speckle_noise": [0.15, 0.2, 0.35, 0.45, 0.6],
    },
    "cifar": {
        "gaussian_noise": [0.04, 0.06, 0.08, 0.09, 0.10],
        "shot_noise": [500, 250, 100, 75, 50],
        "impulse_noise": [0.01, 0.02, 0.03, 0.05, 0.07],
        "defocus_blur": [
            (0.3, 0.4),
            (0.4, 0.5),
            (0.5, 0.6),
            (1, 0.2),
            (1.5, 0.1),
        ],
        "glass_blur": [
            (0.05, 1, 1),
            (0.25, 1, 1),
            (0.4, 1, 1),
            (0.25, 1, 2),
            (0.4, 1, 2),
        ],
        "motion_blur": [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
        "zoom_blur": [
            np.arange(1, end, 0.01) for end in (1.06, 1.11, 1.16, 1.21, 1.26)
        ],
        "snow": [
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ],
        "frost": [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)],
        "fog": [
            (0.2, 3, 32),
            (0.5, 3, 32),
            (0.75, 2.5, 32),
            (1, 2, 32),
            (1.5, 1.75, 32),
        ],
        "brightness": [0.05, 0.1, 0.15, 0.2, 0.3],
        "contrast": [0.75, 0.5, 0.4, 0.3, 0.15],
        "elastic_transform": _elastic(
            32,
            (0, 0, 0.08),
            (0.05, 0.2, 0.07),
            (0.08, 0.06, 0.06),
            (0.1, 0.04, 0.05),
            (0.1, 0.03, 0.03),
        ),
        "pixelate": [(share, "BOX") for share in (0.95, 0.9, 0.85, 0.75, 0.65)],
        "jpeg_compression": [80, 65, 58, 50, 40],
        "gaussian_blur": [0.4, 0.6, 0.7, 0.8, 1],
        "saturate": [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)],
        "spatter": [
            (0.62, 0.1, 0.7, 0.7, 0.5, False),
            (0.65, 0.1, 0.8, 0.7, 0.5, False),
            (0.65, 0.3, 1, 0.69, 0.5, False),
            (0.65, 0.1, 0.7, 0.69, 0.6, True),
            (0.65, 0.1, 0.5, 0.68, 0.6, True),
        ],
        "speckle_noise": [0.06, 0.1, 0.12, 0.16, 0.2],
    },
}
