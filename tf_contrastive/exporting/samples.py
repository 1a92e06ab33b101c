"""Real images by which an export is checked, calibrated and warmed up."""

import numpy as np
import sklearn.datasets
import tensorflow as tf

from tf_contrastive.views import crops


def photographs(count: int, size: int, channels: int = 3) -> np.ndarray:
    """Cuts images out of scikit-learn's two photographs, 427 x 640 pixels.

    Args:
      count: how many, n; always the same ones.
      size: their side in pixels, S.
      channels: K; those beyond the colours are 0.

    Returns:
      float32 [n, S, S, K] in [0, 1].
    """
    photos = sklearn.datasets.load_sample_images().images
    generator = np.random.default_rng(0)
    images = []
    for i in range(count):
        photo = photos[i % len(photos)]
        side = generator.integers(64, min(photo.shape[:2]), endpoint=True)
        top, left = (
            generator.integers(0, length - side, endpoint=True)
            for length in photo.shape[:2]
        )
        crop = photo[top : top + side, left : left + side]
        images.append(crops.resize_and_crop(crop[np.newaxis], size)[0].numpy())
    missing = [(0, 0)] * 3 + [(0, channels - 3)]
    return np.pad(np.stack(images), missing)


def as_bytes(images: np.ndarray) -> np.ndarray:
    """Returns the colours of images [n, S, S, K] as uint8 [n, S, S, 3]."""
    return np.rint(images[..., :3] * 255).astype(np.uint8)


def as_jpeg(images: np.ndarray) -> np.ndarray:
    """Returns the colours of images [n, S, S, K] as JPEG files, bytes [n]."""
    encoded = [tf.io.encode_jpeg(i).numpy() for i in as_bytes(images)]
    return np.array(encoded, object)
