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

from collections.abc import Callable
from typing import Any

import numpy as np

from tf_contrastive import errors
from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE
from tf_contrastive.evaluation.corruptions import (
    blur,
    digital,
    noise,
    spatter,
    weather,
)
from tf_contrastive.evaluation.corruptions.levels import LEVELS

SEVERITIES = (1, 2, 3, 4, 5)

# Image [h, w, 3] in [0, 1], float64; level; draws -> the corrupted one, of the
# same range up to clipping.
_Function = Callable[[np.ndarray, Any, np.random.RandomState], np.ndarray]

# The 15 that mCE is the mean of, and 4 that were meant to choose options by.
STANDARD: dict[str, _Function] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}
EXTRA: dict[str, _Function] = {
    "gaussian_blur": blur.gaussian_blur,
    "saturate": digital.saturate,
    "spatter": spatter.spatter,
    "speckle_noise": noise.speckle_noise,
}
CORRUPTIONS = {**STANDARD, **EXTRA}
# Whose images are not by the published method.
STAND_INS = ("frost",)


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
        raise errors.unknown("corruption", name, CORRUPTIONS)
    if severity not in SEVERITIES:
        raise errors.UserError(f"severity {severity}: give one from 1 to 5")
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise errors.UserError(
            f"cannot corrupt {image.dtype} {list(image.shape)}: give an image"
            " uint8 [height, width, 3]"
        )
    if levels is None:
        small = max(image.shape) <= CIFAR_STEM_MAX_SIDE
        levels = "cifar" if small else "imagenet"
    if levels not in LEVELS:
        raise errors.unknown("levels", levels, LEVELS)
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
