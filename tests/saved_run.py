"""Makes the folder of a run without training, and rows of its results."""

import tensorflow as tf

from tf_contrastive import checkpoints, datasets, views
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.model import networks


def score(encoder, protocol, variant, top1, **others):
    """A row of `evaluation.json`."""
    row = {"encoder": encoder, "protocol": protocol, "variant": variant}
    interval = [max(top1 - 0.01, 0.0), min(top1 + 0.01, 1.0)]
    row |= {"version": "1", "top1": top1, "top1_interval": interval}
    row |= {"top5": None, "top5_interval": None, "metrics": {}}
    return row | {"examples": 360, "seconds": 1.0} | others


def make(folder, source=None, *, branches=False, **options):
    """Writes checkpoints of a run at steps 0 and 1; returns its config.

    On a source, or the digits. `branches` enables the residual branches, which
    start as zero: most features of such small images would be equal.
    """
    own = {"dataset": "digits", "image_size": 8, "extra_channels": 0}
    own |= {"encoder": "resnet10", "width": 0.125, "stem": "cifar"}
    own |= {"projection_output": 16, "batch_size": 100, "xla": "off"}
    own |= {"precision": "float32", "workdir": str(folder)}
    run = fields.replace(Pretrain(), **own | options)
    source = source or datasets.source("digits", "train")
    network = networks.build_model(run, source.info.num_classes)
    both = [tf.keras.optimizers.SGD(0.1, jit_compile=False) for _ in range(2)]
    network.compile(optimizer=both[0], probe_optimizer=both[1])
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
        kernel = network.probe.kernel
        kernel.assign(tf.random.stateless_normal(kernel.shape, [0, 0]))
    network.optimizer.iterations.assign(1)
    saved.finish()
    return run
