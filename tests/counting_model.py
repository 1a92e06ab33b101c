"""Fits a model that only counts its steps, for tests of callbacks."""

import numpy as np
import tensorflow as tf

from tf_contrastive import callbacks


class Model(tf.keras.Model):
    """A model that only counts its steps; its loss is its input."""

    def __init__(self):
        super().__init__()
        self.input_wait_seconds = 0.0
        self.mean_loss = tf.keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.mean_loss]

    def train_step(self, data):
        self.optimizer.iterations.assign_add(1)
        self.mean_loss.update_state(data)
        return {"loss": self.mean_loss.result()}


def fit(losses, steps_per_epoch, *observers):
    """Fits for as many steps as there are losses."""
    model = Model()
    model.compile(tf.keras.optimizers.SGD(jit_compile=False))
    model.fit(
        tf.data.Dataset.from_tensor_slices(np.float32(losses)),
        epochs=len(losses) // steps_per_epoch,
        steps_per_epoch=steps_per_epoch,
        verbose=0,
        callbacks=list(observers),
    )


def progress(stream, **options):
    return callbacks.Progress(
        epochs=2, steps_per_epoch=3, batch_size=10, stream=stream, **options
    )
