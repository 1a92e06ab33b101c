"""Bootstrap your own latent (Grill et al. 2020, BYOL), which has no negatives.

Chen et al. 2021, section 5, tried it on RandBit: the encoder, head, views,
batches and optimizer of a contrastive run, with a predictor in place of a loss.
"""

import math

import tensorflow as tf

from lab.claims.vae import Trained, fit_model
from tf_contrastive import heads
from tf_contrastive.base import errors
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.losses import similarity
from tf_contrastive.model.momentum_encoder import KeyBranch
from tf_contrastive.model.networks import build_encoder, build_head

# Spread of projections, at most 1, of an encoder that maps all images alike.
_ONE_POINT = 0.05


class BYOL(tf.keras.Model):
    """Predicts a slow copy's projection of the other view: [B, 2, S, S, K].

    The loss of an image is the sum over both views of 2 - 2 cos(q(z), z'), in
    [0, 8]: equation 2, made symmetric. The copy, which makes z', follows by a
    moving average, whose momentum rises from `momentum` to 1 as half a cosine
    over `steps` (section 3.1).
    """

    def __init__(
        self,
        encoder: tf.keras.Model,
        projector: tf.keras.layers.Layer,
        predictor: tf.keras.layers.Layer,
        *,
        momentum: float,
        steps: int,
    ) -> None:
        super().__init__()
        self.encoder, self.projector = encoder, projector
        self.predictor = predictor
        self.target = KeyBranch(
            encoder, projector, momentum=momentum, queue_size=1
        )
        self._steps = steps
        self.loss_mean = tf.keras.metrics.Mean("loss")
        self.spread_mean = tf.keras.metrics.Mean("spread")

    def train_step(self, data: tuple[tf.Tensor, ...]) -> dict[str, tf.Tensor]:
        """Trains on (views, labels), whatever the labels."""
        views = data[0]
        images = tf.concat([views[:, 0], views[:, 1]], axis=0)
        targets = similarity.l2_normalize(self.target(images, training=True))
        other = tf.roll(targets, tf.shape(views)[0], axis=0)
        with tf.GradientTape() as tape:
            h = self.encoder(images, training=True)
            z = self.projector(h, training=True)
            q = similarity.l2_normalize(self.predictor(z, training=True))
            cosines = tf.reduce_sum(q * other, axis=-1)
            loss = 2 * tf.reduce_mean(2 - 2 * cosines)
        variables = [
            variable
            for part in (self.encoder, self.projector, self.predictor)
            for variable in part.trainable_variables
        ]
        gradients = tape.gradient(loss, variables)
        momentum = self.momentum_at(self.optimizer.iterations)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.target.follow(momentum)
        self.loss_mean.update_state(loss)
        variances = tf.math.reduce_variance(targets, axis=0)
        self.spread_mean.update_state(tf.sqrt(tf.reduce_sum(variances)))
        return {mean.name: mean.result() for mean in self.metrics}

    def momentum_at(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the momentum after a step, counted from 0: float32 []."""
        angle = math.pi * tf.cast(step, tf.float32) / self._steps
        return 1 - (1 - self.target.momentum) * (tf.cos(angle) + 1) / 2

    @property
    def metrics(self) -> list[tf.keras.metrics.Metric]:
        """The means that Keras resets each epoch."""
        return [self.loss_mean, self.spread_mean]


def fit(run: Pretrain, *, momentum: float) -> Trained:
    """Trains BYOL; see `vae.fit_model` for its errors.

    The predictor has the form of the head. It is a DivergedError, too, if all
    images have the same projection at the end.
    """

    def make(run: Pretrain, steps: int) -> BYOL:
        encoder, projector = build_encoder(run), build_head(run, None)
        size = run.projection.sizes(1)[-1]
        hidden = getattr(run.projection, "hidden", None)
        predictor = heads.MLP(hidden=hidden, output=size)
        projector.build(encoder.output_shape)
        predictor.build([None, size])
        return BYOL(
            encoder, projector, predictor, momentum=momentum, steps=steps
        )

    byol, run, history, _ = fit_model(run, make)
    if history["spread"][-1] < _ONE_POINT:
        raise errors.DivergedError(
            f"BYOL collapsed to one point: lower {errors.arg('learning_rate')}"
        )
    return Trained(byol.encoder, run, history["loss"][-1])
