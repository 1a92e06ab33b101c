"""The 15 common corruptions of ImageNet-C, and 4 more, at 5 severities each.

Hendrycks and Dietterich 2019. The functions follow the published code as it is
in TensorFlow Datasets. With equal seeds `gaussian_noise shot_noise zoom_blur
fog contrast pixelate jpeg_compression speckle_noise` are bit-identical to it.
Its other functions need OpenCV, scikit-image or ImageMagick; here they are
ported to SciPy, Matplotlib and Pillow:

- equal up to rounding: `impulse_noise` (with other draws), `defocus_blur
  glass_blur brightness elastic_transform gaussian_blur saturate` and the mud of
  `spatter`;
- similar: the water of `spatter`, which uses exact distances instead of
  OpenCV's approximate ones;
- by ImageMagick's algorithm: `motion_blur` and `snow`, at the authors' angles
  (TensorFlow Datasets always uses 45 degrees).

`frost` is a stand-in: the published one adds photographs of frost, this one
adds drawn crystals with the same weights. Its errors are not comparable with
published ones.

Levels are the published ones, for photographs and for 32 pixels. A higher
severity increases the distance from the clean image, with three exceptions:
`saturate` removes colour, and adds it from severity 3 on; `glass_blur` blurs
more or mixes more; `elastic_transform` shifts less but bends more.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tf_contrastive import errors
from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE
from tf_contrastive.evaluation.corruptions import (
    blur,
    digital,
    spatter,
    weather,
)
from tf_contrastive.evaluation.corruptions.levels import LEVELS

SEVERITIES = (1, 2, 3, 4, 5)

# (image float64 [h, w, 3] in [0, 1], level, random) -> the corrupted image, of
# the same range up to clipping.
_Function = Callable[[np.ndarray, Any, np.random.RandomState], np.ndarray]

# The 15 corruptions of mCE, and 4 that are meant for choosing hyperparameters.
STANDARD: dict[str, _Function] = {
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
EXTRA: dict[str, _Function] = {
    "gaussian_blur": blur.gaussian_blur,
    "saturate": digital.saturate,
    "spatter": spatter.spatter,
    "speckle_noise": digital.speckle_noise,
}
CORRUPTIONS = {**STANDARD, **EXTRA}
# Corruptions that are not made by the published method.
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
      name: name of `CORRUPTIONS`.
      severity: 1 to 5.
      seed: seed of all draws.
      levels: name of `LEVELS`; None: "cifar" up to 64 pixels a side, otherwise
        "imagenet".

    Returns:
      uint8 [h, w, 3].

    Raises:
      UserError: for an unknown name or severity, or another shape or dtype.
    """
    function = CORRUPTIONS.get(name)
    if function is None:
        raise errors.unknown("corruption", name, CORRUPTIONS)
    if severity not in SEVERITIES:
        raise errors.UserError(f"severity={severity}: must be 1 to 5")
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise errors.UserError(
            f"cannot corrupt {image.dtype} {list(image.shape)}: pass an image"
            " uint8 [height, width, 3]"
        )
    if levels is None:
        small = max(image.shape) <= CIFAR_STEM_MAX_SIDE
        levels = "cifar" if small else "imagenet"
    if levels not in LEVELS:
        raise errors.unknown("levels", levels, LEVELS)
    level = LEVELS[levels][name][severity - 1]
    # RandomState's stream is stable across NumPy versions; Generator's is not.
    random = np.random.RandomState(seed % 2**32)
    corrupted = function(image / 255.0, level, random)
    return np.around(np.clip(corrupted, 0, 1) * 255).astype(np.uint8)


def corrupt_batch(
    images: np.ndarray, name: str, severity: int, first: int, seed: int = 0
) -> np.ndarray:
    """Corrupts images, each with a seed of its own.

    Args:
      images: uint8 [n, h, w, 3].
      name, severity: see `corrupt`.
      first: index of the first image in its dataset; an image's corruption
        depends on its index, not on the batches.
      seed: seed of the dataset.

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
