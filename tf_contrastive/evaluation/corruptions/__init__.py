"""The 15 common corruptions of ImageNet-C, at 5 severities each.

Hendrycks and Dietterich 2019. With equal seeds `gaussian_noise shot_noise
zoom_blur fog contrast pixelate jpeg_compression` are bit-identical to the
published code as it is in TensorFlow Datasets. The others are ported to SciPy,
Matplotlib and Pillow: equal up to rounding are `impulse_noise` (with other
draws) and `defocus_blur glass_blur brightness elastic_transform`; `motion_blur`
and `snow` follow ImageMagick's algorithm, at the authors' angles. `frost` is a
stand-in: it adds drawn crystals instead of photographs of frost, and its errors
are not comparable with published ones.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE
from tf_contrastive.evaluation.corruptions import blur, digital, weather
from tf_contrastive.evaluation.corruptions.severities import LEVELS

# (image float64 [h, w, 3] in [0, 1], level, random) -> the corrupted image, of
# the same range up to clipping.
_Function = Callable[[np.ndarray, Any, np.random.RandomState], np.ndarray]

CORRUPTIONS: dict[str, _Function] = {
    "gaussian_noise": digital.gaussian_noise,
    "shot_noise": digital.shot_noise,
    "impulse_noise": digital.impulse_noise,
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
# Corruptions that are not made by the published method.
STAND_INS = ("frost",)


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
    function = CORRUPTIONS[name]
    if levels is None:
        small = max(image.shape) <= CIFAR_STEM_MAX_SIDE
        levels = "cifar" if small else "imagenet"
    level = LEVELS[levels][name][severity - 1]
    # RandomState's stream is stable across NumPy versions; Generator's is not.
    random = np.random.RandomState(seed % 2**32)
    corrupted = function(image / 255.0, level, random)
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
