"""Makes the folder of a run without training, and rows of its results."""

import tensorflow as tf

from tf_contrastive import checkpoints, datasets, views
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.model import networks


def score(encoder, protocol, variant, top1, **others):
    """A row of `evaluation.json`."""
    return {
        "encoder": encoder,
        "protocol": protocol,
        "variant": variant,
        "version": "1",
        "top1": top1,
        "top1_interval": [max(top1 - 0.01, 0.0), min(top1 + 0.01, 1.0)],
        "top5": None,
        "top5_interval": None,
        "metrics": {},
        "examples": 360,
        "seconds": 1.0,
        **others,
    }


def make(folder, source=None, *, branches=False, **options):
    """Writes checkpoints of a run at steps 0 and 1.

    Args:
      folder: the run's folder.
      source: the training data; None: the digits.
      branches: whether to enable the residual branches, which start as zero.
        Otherwise, most features of such small images are equal.
      **options: options of `pretrain`.

    Returns:
      The run's config.
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
            "xla": "off",
            "workdir": str(folder),
            **options,
        },
    )
    source = source or datasets.source("digits", "train")
    network = networks.build_model(run, source.info.num_classes)
    network.compile(
        optimizer=tf.keras.optimizers.SGD(0.1, jit_compile=False),
        probe_optimizer=tf.keras.optimizers.SGD(0.1, jit_compile=False),
    )
    if branches:
        for variable in network.encoder.trainable_variables:
            if "gamma" in variable.name:
                variable.assign(tf.ones_like(variable))
    saved = checkpoints.Checkpoints(network, run, source.info)
    batches = datasets.evaluation_batches(
        source,
        views.evaluation(run.views.side),
        batch_size=100,
        extra_channels=run.data.extra_channels,
    )
    saved.save()
    for images, _ in batches:
        features = network.encoder(images, training=True)
        network.projection_head(features, training=True)
    if network.probe is not None:
        network.probe.kernel.assign(
            tf.random.stateless_normal(network.probe.kernel.shape, [0, 0])
        )
    network.optimizer.iterations.assign(1)
    saved.finish()
    return run
