"""Colour histograms of two views of an image (Chen et al. 2020, figure 6).

Crops of an image share their colours, by which a network could find the other
view without looking at shapes; colour distortion removes that shortcut.
"""

import numpy as np

from tf_contrastive import datasets, views
from tf_contrastive.views import Policy

_BINS = 16
_BATCH = 256


def measure(
    source: datasets.Source, policy: Policy, seed: int
) -> dict[str, float]:
    """Compares histograms of the pixels of two views per image.

    Returns:
      {"same_image", "other_image": mean intersections of the histograms of the
      views of an image, and of views of different images, in [0, 1]; "matched":
      how often the first view's most similar second view is of its image, a
      fraction}.
    """
    batches = datasets.view_batches(
        source,
        datasets.ViewMaker(views.Views(policy, 2)),
        batch_size=_BATCH,
        seed=seed,
    )
    pixels = np.concatenate([np.asarray(batch) for batch, _ in batches])
    first, second = (_histograms(pixels[:, view]) for view in (0, 1))
    shared = np.stack([np.minimum(h, second).sum((1, 2)) for h in first]) / 3
    same = np.eye(len(shared), dtype=bool)
    return {
        "same_image": float(shared[same].mean()),
        "other_image": float(shared[~same].mean()),
        "matched": float(np.mean(shared.argmax(1) == np.arange(len(shared)))),
    }


def _histograms(images: np.ndarray) -> np.ndarray:
    """Returns the histograms of each colour, [n, 3, bins]; each sums to 1."""
    bins = np.minimum((images * _BINS).astype(int), _BINS - 1)
    shape = (len(images), -1, 3)
    one_hot = np.eye(_BINS, dtype=np.float32)[bins.reshape(shape)]
    return one_hot.mean(axis=1)
