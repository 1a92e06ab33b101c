"""A contact sheet: views of one photograph by every augmentation policy."""

import numpy as np
import sklearn.datasets
import tensorflow as tf

from lab.benchmarks import measure
from lab.benchmarks.options import Common, Views
from tf_contrastive import views
from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config.views import OPERATIONS, POLICIES
from tf_contrastive.evaluation import figures

_COLUMNS = 8


def run(common: Common, options: Views) -> measure.Report:
    """Writes the PNG file `plot`, with a row for every policy and ablation."""
    measure.check_output("plot", options.plot)
    names = [name for name, p in POLICIES.items() if p.augments]
    names += [f"ablation:{name}" for name in OPERATIONS]
    photograph = sklearn.datasets.load_sample_image("china.jpg")
    images = np.repeat(photograph[np.newaxis], _COLUMNS, axis=0)
    seeds = tf.stack([tf.range(_COLUMNS), tf.zeros([_COLUMNS], tf.int32)], 1)
    figure, axes = figures.panels(len(names), _COLUMNS, 1.3, 1.3)
    for row, name in zip(axes, names, strict=True):
        terminal.info(f"views of {name}")
        policy = views.build(name, image_size=options.sheet_size)
        for axis, view in zip(row, policy.batch(images, seeds), strict=True):
            axis.imshow(view)
            axis.set_xticks([])
            axis.set_yticks([])
        row[0].set_ylabel(name.removeprefix("ablation:"), fontsize=8)
    files.write(
        options.plot,
        figures.png(figure),
        f"set {errors.arg('plot')} to another file",
    )
    text = f"{len(names)} policies, {_COLUMNS} views each: {options.plot}"
    rows = [{"plot": options.plot, "policies": names}]
    return measure.Report(rows, [text], {})
