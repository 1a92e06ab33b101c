"""Colour histograms of crops."""

import numpy as np

from lab.claims import color_histograms
from tf_contrastive import datasets, views


def test_crops_of_one_colour_share_their_histogram():
    colors = np.arange(8) * 32 + 8  # Each in a bin of its own.
    images = np.broadcast_to(colors[:, None, None, None], [8, 12, 12, 3])
    source = datasets.from_arrays(images.astype(np.uint8), np.arange(8))
    crop = color_histograms.measure(
        source, views.build("crop", image_size=8), 0
    )
    assert crop == {"same_image": 1.0, "other_image": 0.0, "matched": 1.0}
    distorted = views.build(
        "simclr", image_size=8, color_jitter_strength=1.0, blur=False
    )
    distorted = color_histograms.measure(source, distorted, 0)
    assert distorted["same_image"] < 0.5
    assert distorted["matched"] < 1
