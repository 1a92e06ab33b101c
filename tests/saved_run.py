"""A run's folder in seconds: initial weights, statistics that have moved."""

import tensorflow as tf

from tf_contrastive import checkpoints, datasets, model, training, views
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain


def make(folder, *, branches=False, **options):
    """Writes a run on the digits, at step 0 and at step 1.

    Args:
      folder: of the run.
      branches: whether residual branches are switched on, which start switched
        off: features of images this small then differ, where most are equal.
      **options: of `pretrain`.

    Returns:
      Its config.
    """
    run = fields.replace(
        Pretrain(),
        **{
            "dataset": "digits",
            "encoder": "resnet10",
            "width": 0.125,
            "stem": "cifar",
            "image_size": 8,
            "extra_channels": 0,
            "projection_output": 16,
            "batch_size": 100,
            "precision": "float32",
            "workdir": str(folder),
            **options,
        },
    )
    source = datasets.source("digits", "train")
    built = model.build(run, 10)
    built.compile(
        optimizer=tf.keras.optimizers.SGD(0.1, jit_compile=False),
        probe_optimizer=tf.keras.optimizers.SGD(0.1, jit_compile=False),
    )
    if branches:
        for variable in built.encoder.trainable_variables:
            if "gamma" in variable.name:
                variable.assign(tf.ones_like(variable))
    kept = checkpoints.Checkpoints(built, run, training.metadata(source.info))
    batches = datasets.evaluation_batches(
        source, views.evaluation(8), batch_size=100
    )
    kept.save()
    for images, _ in batches:
        features = built.encoder(images, training=True)
        built.projection_head(features, training=True)
    if built.probe is not None:
        built.probe.kernel.assign(
            tf.random.stateless_normal(built.probe.kernel.shape, [0, 0])
        )
    built.optimizer.iterations.assign(1)
    kept.finish()
    return run
