"""A contact sheet: what every policy makes of a photograph."""

import os
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
import sklearn.datasets
import tensorflow as tf

from tf_contrastive import errors, views
from tf_contrastive.benchmarks import measure
from tf_contrastive.config.benchmark import Benchmark
from tf_contrastive.config.views import ABLATIONS, AUGMENTATIONS

_COLUMNS = 8


def run(options: Benchmark, say: Callable[[str], None]) -> measure.Report:
    """Writes `--plot`: a row of views for every policy and ablation.

    Args:
      options: validated.
      say: is told what is being done.
    """
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    chosen = options.sheet
    folder = os.path.dirname(chosen.plot) or "."
    if not os.path.isdir(folder):
        raise errors.UserError(
            f"plot={chosen.plot}: there is no folder {folder}: create it, or"
            " give a file in a folder that exists"
        )
    names = [
        *(name for name in AUGMENTATIONS if name != "none"),
        *(f"ablation:{name}" for name in ABLATIONS),
    ]
    photograph = sklearn.datasets.load_sample_image("china.jpg")
    figure, axes = plt.subplots(
        len(names), _COLUMNS, figsize=(_COLUMNS * 1.6, len(names) * 1.6)
    )
    for row, name in zip(axes, names, strict=True):
        say(f"views of {name}")
        for axis, view in zip(
            row, make(name, photograph, chosen.sheet_size), strict=True
        ):
            axis.imshow(view)
            axis.set_xticks([])
            axis.set_yticks([])
        row[0].set_ylabel(name.removeprefix("ablation:"), fontsize=9)
    figure.tight_layout(pad=0.3)
    try:
        figure.savefig(chosen.plot, dpi=80)
    except OSError as error:
        raise errors.UserError(
            f"plot={chosen.plot} cannot be written ({error.strerror}): give a"
            " file in a folder in which you may create files"
        ) from error
    results: list[dict[str, Any]] = [{"plot": chosen.plot, "policies": names}]
    table = f"{len(names)} policies, {_COLUMNS} views each: {chosen.plot}"
    return measure.Report(results, [table], passed=True)


def make(name: str, photograph: np.ndarray, size: int) -> np.ndarray:
    """Views float32 [8, size, size, 3] of one photograph by a policy."""
    policy = views.build(name, image_size=size)
    seeds = tf.stack([tf.range(_COLUMNS), tf.zeros([_COLUMNS], tf.int32)], 1)
    images = tf.repeat(photograph[np.newaxis], _COLUMNS, axis=0)
    return policy.batch(images, seeds).numpy()
