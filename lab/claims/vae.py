"""A small variational autoencoder (Kingma and Welling 2014).

The generative model of Chen et al. 2021, figure 7: the encoder, views, batches
and optimizer of a contrastive run, with a decoder in place of the loss.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import optimizers, train
from tf_contrastive.base import errors
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.distribution import all_finite
from tf_contrastive.model.networks import build_encoder, precision

_CHANNELS = (64, 32)
# Batches whose mean view is the best constant reconstruction.
_MEAN_BATCHES = 20


class VAE(tf.keras.Model):
    """Reconstructs views from a normal code; trained on [B, V, S, S, K].

    The loss is the cross entropy of all pixels and channels, in [0, 1], plus
    the divergence of q(code | view) = N(mean, variance) from N(0, I): nats per
    view, its equation 10. The decoder is two convolutions of stride 2.
    """

    def __init__(self, encoder: tf.keras.Model, code: int) -> None:
        super().__init__()
        side, _, channels = encoder.input_shape[1:]
        layers = tf.keras.layers
        smallest = math.ceil(side / 4)
        upscale = functools.partial(
            layers.Conv2DTranspose, kernel_size=3, strides=2, padding="same"
        )
        self.encoder = encoder
        self.code = layers.Dense(2 * code, name="code")
        self.decoder = tf.keras.Sequential(
            [
                layers.Dense(smallest**2 * _CHANNELS[0], activation="relu"),
                layers.Reshape((smallest, smallest, _CHANNELS[0])),
                upscale(_CHANNELS[1], activation="relu"),
                upscale(channels),
            ],
            name="decoder",
        )
        self.decoder.build([None, code])
        self.code.build(encoder.output_shape)
        self.loss_mean = tf.keras.metrics.Mean("loss")

    def bound(self, images: tf.Tensor, training: bool) -> tf.Tensor:
        """Returns the loss of each image [N, S, S, K]: float32 [N]."""
        h = self.encoder(images, training=training)
        mean, log_variance = tf.split(self.code(h), 2, axis=-1)
        noise = tf.random.normal(tf.shape(mean))
        code = mean + tf.exp(0.5 * log_variance) * noise
        side = images.shape[1]
        logits = self.decoder(code, training=training)[:, :side, :side]
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(images, logits)
        variance = tf.exp(log_variance)
        divergence = 0.5 * (tf.square(mean) + variance - 1 - log_variance)
        return tf.reduce_sum(entropy, [1, 2, 3]) + tf.reduce_sum(divergence, 1)

    def train_step(self, data: tuple[tf.Tensor, ...]) -> dict[str, tf.Tensor]:
        """Trains on (views [B, V, S, S, K], labels), whatever the labels."""
        views = data[0]
        images = tf.reshape(views, [-1, *views.shape[2:]])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.bound(images, training=True))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.loss_mean.update_state(loss)
        return {"loss": self.loss_mean.result()}

    @property
    def metrics(self) -> list[tf.keras.metrics.Metric]:
        """The means that Keras resets each epoch."""
        return [self.loss_mean]


class Trained(NamedTuple):
    """An encoder, the resolved options, and losses."""

    encoder: tf.keras.Model
    run: Pretrain
    final: float  # Mean of the last epoch.
    # If all images are answered alike; None, if that may be the least loss.
    collapsed: float | None = None


def fit_model(
    run: Pretrain, make: Callable[[Pretrain, int], tf.keras.Model]
) -> tuple[Any, Pretrain, dict[str, list[float]], tf.data.Dataset]:
    """Trains a model by a run's options of data, views and optimizer.

    Options of losses and of outputs are not used; nothing is written.

    Args:
      run: the options.
      make: (resolved options, steps of the training) -> the model.

    Returns:
      (model, resolved options, its means by epoch, batches).

    Raises:
      UserError: for options that `train.pretrain` does not accept; its subclass
        DivergedError, if the loss or a weight is not finite.
    """
    prepared = train.prepare(run)
    run, rate = prepared.options, prepared.learning_rate()
    with prepared.strategy.scope(), precision(run.runtime.precision):
        model = make(run, prepared.total_steps)
        optimizer = optimizers.build(
            run.optimizer.label,
            learning_rate=rate,
            **run.optimizer.arguments(),
        )
        model.compile(optimizer=optimizer, jit_compile=False)
        batches = prepared.batches()
        history = model.fit(
            batches,
            epochs=run.schedule.epochs,
            steps_per_epoch=prepared.steps_per_epoch,
            verbose=0,
        ).history
    if not (np.isfinite(history["loss"]).all() and all_finite(model.variables)):
        raise errors.DivergedError(
            f"{type(model).__name__} diverged: lower"
            f" {errors.arg('learning_rate')}"
        )
    return model, run, history, batches


def fit(run: Pretrain) -> Trained:
    """Trains a VAE; see `fit_model` for its errors.

    The code has the dimension of the run's projections.
    """

    def make(run: Pretrain, steps: int) -> VAE:
        return VAE(build_encoder(run), run.projection.sizes(1)[-1])

    vae, run, history, batches = fit_model(run, make)
    final, collapsed = history["loss"][-1], _collapsed(batches)
    return Trained(vae.encoder, run, final, collapsed)


def _collapsed(batches: tf.data.Dataset) -> float:
    """Returns the least loss of a reconstruction that ignores the image."""
    means = [
        np.mean(views, axis=(0, 1))
        for views, *_ in itertools.islice(batches, _MEAN_BATCHES)
    ]
    mean = np.clip(np.mean(means, axis=0, dtype=np.float64), 1e-7, 1 - 1e-7)
    return float(-np.sum(mean * np.log(mean) + (1 - mean) * np.log1p(-mean)))
