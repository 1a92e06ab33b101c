"""Draws docs/views.jpg: views of one photograph by every augmentation policy.

Use: python tools/views.py FILE
"""

import sys

import numpy as np
import sklearn.datasets
import tensorflow as tf

from tf_contrastive import views
from tf_contrastive.config.views import OPERATIONS, POLICIES
from tf_contrastive.evaluation import figures

_COLUMNS, _SIDE = 8, 96


def main(path):
    """Writes a picture with a row for each policy and ablation."""
    names = [name for name, policy in POLICIES.items() if policy.augments]
    names += [f"ablation:{name}" for name in OPERATIONS]
    photograph = sklearn.datasets.load_sample_image("china.jpg")
    images = np.repeat(photograph[np.newaxis], _COLUMNS, axis=0)
    seeds = tf.stack([tf.range(_COLUMNS), tf.zeros([_COLUMNS], tf.int32)], 1)
    figure, axes = figures.panels(len(names), _COLUMNS, 1.3, 1.3)
    for row, name in zip(axes, names, strict=True):
        policy = views.build(name, image_size=_SIDE)
        for axis, view in zip(row, policy.batch(images, seeds), strict=True):
            axis.imshow(view)
            axis.set_xticks([])
            axis.set_yticks([])
        row[0].set_ylabel(name.removeprefix("ablation:"), fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
