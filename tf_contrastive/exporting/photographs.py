"""Real images for checks of an export, where a run's own are absent."""

import numpy as np

from tf_contrastive.views import preprocessing


def photographs(count: int, size: int, channels: int = 3) -> np.ndarray:
    """Crops images from scikit-learn's two photographs of 427 x 640 pixels.

    Returns:
      float32 [count, size, size, channels] in [0, 1], always the same; channels
      beyond the colours are 0.
    """
    from sklearn import datasets  # Late: half a second of every start.

    photos = datasets.load_sample_images().images
    generator = np.random.default_rng(0)
    images = []
    for i in range(count):
        photo = photos[i % len(photos)]
        side = generator.integers(64, min(photo.shape[:2]), endpoint=True)
        top, left = (
            generator.integers(0, length - side, endpoint=True)
            for length in photo.shape[:2]
        )
        crop = photo[np.newaxis, top : top + side, left : left + side]
        images.append(preprocessing.resize_and_crop(crop, size)[0].numpy())
    missing = [(0, 0)] * 3 + [(0, channels - 3)]
    return np.pad(np.stack(images), missing)
