"""What is read: photographs as files, or tiles of them as arrays."""

import os
import shutil

import numpy as np
import sklearn.datasets

from tf_contrastive import datasets
from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE

_PHOTOGRAPHS = ("china.jpg", "flower.jpg")
# Files, or arrays, of which an epoch consists.
_FILES, _ARRAYS = 512, 4096


def source(size: int, folder: str) -> datasets.Source:
    """Photographs as files, or, for small views, tiles of them as arrays."""
    photographs = sklearn.datasets.load_sample_images()
    if size <= CIFAR_STEM_MAX_SIDE:
        draws = np.random.default_rng(0)
        tiles = np.stack(
            [
                _tile(photographs.images[i % 2], size, draws)
                for i in range(_ARRAYS)
            ]
        )
        return datasets.from_arrays(tiles, np.arange(_ARRAYS) % 2)
    for kind, name in enumerate(_PHOTOGRAPHS):
        class_folder = os.path.join(folder, str(size), str(kind))
        os.makedirs(class_folder)
        path = next(p for p in photographs.filenames if p.endswith(name))
        for i in range(_FILES // len(_PHOTOGRAPHS)):
            shutil.copy(path, os.path.join(class_folder, f"{i}.jpg"))
    place = f"folder:{os.path.join(folder, str(size))}"
    return datasets.source(place, "train")


def _tile(
    image: np.ndarray, size: int, draws: np.random.Generator
) -> np.ndarray:
    top = draws.integers(image.shape[0] - size + 1)
    left = draws.integers(image.shape[1] - size + 1)
    return image[top : top + size, left : left + size]
