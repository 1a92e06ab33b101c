"""A small model, and its checkpoints."""

import os

import tensorflow as tf

from tf_contrastive import checkpoints, datasets, heads, losses, optimizers
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.model import ContrastiveModel

INFO = datasets.Info("digits", "train", 100, 10, (8, 8, 3))


def make_model(strategy=None, units=4, name="first"):
    tf.keras.utils.set_random_seed(0)
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        encoder = tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(input_shape=(2, 2, 3)),
                tf.keras.layers.Dense(units, name=name),
                BatchNormalization(name="norm"),
            ]
        )
        model = ContrastiveModel(
            encoder, heads.build("linear", output=4), losses.build("ntxent")
        )
        model.compile(optimizer=optimizers.LARS(0.1))
    return model


def make_run(workdir, **options):
    return fields.replace(Pretrain(), workdir=str(workdir), **options)


def open_checkpoints(workdir, model=None, **options):
    return checkpoints.Checkpoints(
        model or make_model(), make_run(workdir, **options), INFO
    )


def advance(model, value):
    """Replaces a step: all values of a checkpoint become `value`."""
    for variable in (*model.encoder.weights, *model.optimizer.variables):
        if variable.dtype.is_floating:
            variable.assign(tf.fill(variable.shape, float(value)))
    model.optimizer.iterations.assign(value)


def write_steps(workdir, steps=(1, 2, 3), **options):
    model = make_model()
    saver = open_checkpoints(workdir, model, **options)
    for step in steps:
        advance(model, step)
        saver.save()
    saver.finish()
    return model


def newest_path(workdir, suffix):
    path, _ = checkpoints.newest(os.path.join(workdir, "checkpoints"))
    return path + suffix
