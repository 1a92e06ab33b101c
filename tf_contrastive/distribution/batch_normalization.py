"""Batch normalization over the global batch, stable in float32.

Contrastive losses need statistics of the global batch: those of one replica
reveal to the network which images belong together. Keras' synchronized layer
computes E[x^2] - E[x]^2 in float32, which for a channel of mean 100 and
deviation 0.1 is off by half, and one infinite activation makes it NaN forever.
"""

from typing import Any

import tensorflow as tf

from tf_contrastive import distribution


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class BatchNormalization(tf.keras.layers.BatchNormalization):
    """Batch normalization with the statistics of the global batch.

    In training, the mean and the biased variance are those of all replicas'
    batches together, in float32 under every precision policy. If they are not
    finite, the moving statistics do not change. The result is the same, to
    rounding, on any number of replicas that share the batch.

    Args:
      axis: the axis of the channels.
      momentum: fraction of the moving statistics that a step keeps.
      epsilon: added to the variance.
      synchronized: whether statistics span all replicas. Variables, their
        names and inference do not depend on it.
      **kwargs: as in the Keras layer. A frozen layer (`trainable=False`)
        normalizes by its moving statistics.

    Raises:
      ValueError: for several axes, batch renormalization or virtual batches.

    Ioffe and Szegedy 2015, algorithm 1; "global BN" of SimCLR, section 2.2.
    """

    def __init__(
        self,
        axis: int = -1,
        # As in SimCLR and SupCon. (Keras' defaults are 0.99 and 1e-3.)
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        synchronized: bool = True,
        **kwargs: Any,
    ) -> None:
        for key in ("renorm", "virtual_batch_size", "adjustment"):
            if kwargs.get(key):
                raise ValueError(f"{key} has no synchronized form: omit it")
        # Keras must not know of `synchronized`: it would turn its fused kernel
        # off at inference, too.
        super().__init__(
            axis=axis, momentum=momentum, epsilon=epsilon, **kwargs
        )
        self.synchronized = synchronized

    def build(self, input_shape: Any) -> None:
        """Creates the variables for inputs [N, ..., C], or as `axis` says."""
        super().build(input_shape)
        if len(self.axis) != 1:
            raise ValueError(f"axis={self.axis}: must be a single axis")

    @distribution.do_not_convert_self
    def call(
        self, inputs: tf.Tensor, training: bool | tf.Tensor | None = False
    ) -> tf.Tensor:
        """Normalizes inputs [N, ..., C], in the layer's compute dtype.

        In training by the batch's statistics, which update the moving ones.
        """
        if not self.trainable:
            training = False
        normalize_by_moving = super().call
        static = tf.get_static_value(training)
        if static is None and training is not None:
            return tf.cond(
                tf.cast(training, tf.bool),
                lambda: self._normalize_by_batch(inputs),
                lambda: normalize_by_moving(inputs, training=False),
            )
        if static:
            return self._normalize_by_batch(inputs)
        return normalize_by_moving(inputs, training=False)

    def _normalize_by_batch(self, inputs: tf.Tensor) -> tf.Tensor:
        inputs = tf.cast(inputs, self.compute_dtype)
        local = not self.synchronized or distribution.num_replicas() == 1
        channels_last = self.axis[0] == inputs.shape.rank - 1
        if local and self.fused and channels_last:
            outputs, mean, variance = self._fused(inputs)
        else:
            outputs, mean, variance = self._synchronized(inputs, local)
        self.add_update(lambda: self._update_moving(mean, variance))
        return outputs

    def _fused(
        self, inputs: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Normalizes by one kernel: up to twice as fast, equal to rounding.

        The kernel rounds the mean to float32, and a large mean loses digits.
        Subtracting the first example's mean makes it small. (Half-precision
        inputs have fewer digits, and the subtraction would lose some.)
        """
        channels = self.moving_mean.shape
        shift = tf.zeros(channels)
        if inputs.dtype == self.moving_mean.dtype:
            shift = tf.reduce_mean(tf.stop_gradient(inputs[:1]), axis=[0, 1, 2])
            inputs -= shift
        gamma = tf.ones(channels) if self.gamma is None else self.gamma
        beta = tf.zeros(channels) if self.beta is None else self.beta
        outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            inputs, gamma, beta, epsilon=self.epsilon, is_training=True
        )
        # The kernel normalizes by the biased variance and returns the unbiased.
        n = tf.cast(tf.size(inputs) // channels[0], variance.dtype)
        return outputs, shift + mean, variance * (n - 1) / n

    def _synchronized(
        self, inputs: tf.Tensor, local: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Normalizes by two collectives: a shift, then sums of d = x - shift.

        The shift cancels in value and gradient, and needs no gradient. With it,
        neither the sums nor the output, which is computed from d, lose digits.
        """
        x = tf.cast(inputs, self.moving_mean.dtype)
        axes = [i for i in range(x.shape.rank) if i != self.axis[0]]
        sum_over_replicas = (
            tf.identity if local else distribution.cross_replica_sum
        )
        replicas = 1 if local else distribution.num_replicas()
        local_mean = tf.reduce_mean(tf.stop_gradient(x), axes)
        shift = sum_over_replicas(local_mean) / replicas  # [C]
        d = x - self._broadcast(shift, x)
        channels = self.moving_mean.shape[0]
        n = tf.cast(tf.size(x) // channels, x.dtype)
        sums = tf.concat(
            [tf.reduce_sum(d, axes), tf.reduce_sum(d * d, axes), [n]], 0
        )
        sums = sum_over_replicas(sums)
        mean_d, mean_dd = tf.split(sums[:-1] / sums[-1], 2)
        variance = tf.maximum(mean_dd - mean_d * mean_d, 0.0)
        scale = tf.math.rsqrt(variance + self.epsilon)
        if self.gamma is not None:
            scale *= self.gamma
        offset = -mean_d * scale
        if self.beta is not None:
            offset += self.beta
        outputs = d * self._broadcast(scale, x) + self._broadcast(offset, x)
        return tf.cast(outputs, inputs.dtype), shift + mean_d, variance

    def _broadcast(self, vector: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        """Reshapes a vector of channels to broadcast to `x`."""
        shape = [1] * x.shape.rank
        shape[self.axis[0]] = -1
        return tf.reshape(vector, shape)

    def _update_moving(self, mean: tf.Tensor, variance: tf.Tensor) -> None:
        # Loss scaling skips the step of the weights when an activation
        # overflows, and this the step of the statistics. All replicas have the
        # same statistics, so they all agree.
        finite = tf.reduce_all(
            tf.math.is_finite(mean) & tf.math.is_finite(variance)
        )
        for moving, value in (
            (self.moving_mean, mean),
            (self.moving_variance, variance),
        ):
            change = (value - moving) * (1 - self.momentum)
            moving.assign_add(tf.where(finite, change, tf.zeros_like(change)))

    def get_config(self) -> dict[str, Any]:
        """Returns all constructor arguments."""
        return {**super().get_config(), "synchronized": self.synchronized}
