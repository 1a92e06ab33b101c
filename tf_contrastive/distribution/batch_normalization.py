"""Batch normalization over the global batch, stable in float32.

Layer 2. Contrastive losses need statistics of the global batch: with those of
its own replica alone, a network can tell from them which images belong
together. Keras' synchronized layer takes E[x^2] - E[x]^2 in float32, which for
a channel of mean 100 and deviation 0.1 is off by half and may be negative, and
one infinite activation makes its moving statistics NaN for ever.
"""

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.distribution.autograph import as_written

# As in SimCLR and SupCon. (Keras' defaults are 0.99 and 1e-3.)
_MOMENTUM = 0.9
_EPSILON = 1e-5


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class BatchNormalization(tf.keras.layers.BatchNormalization):
    """Batch normalization with the statistics of the global batch.

    In training the mean and the biased variance are those of all replicas'
    batches together, in float32 under every precision policy; a batch of which
    they are not finite leaves the moving statistics as they are. The result is
    the same, to rounding, on any number of replicas that share the batch.

    Args:
      axis: the axis of the channels.
      momentum: share of the moving statistics that a step keeps.
      epsilon: added to the variance.
      synchronized: False takes the statistics of the replica alone. Variables,
        their names and inference are the same either way.
      **kwargs: `center`, `scale`, initializers, regularizers, constraints,
        `name`, `dtype` and `trainable` as in the Keras layer. A frozen layer
        (`trainable=False`) normalizes by its moving statistics.

    Raises:
      ValueError: for several axes, or Keras' batch renormalization and virtual
        batches, which have no synchronized form.

    Ioffe and Szegedy 2015, algorithm 1; "global BN" of SimCLR, section 2.2.
    """

    def __init__(
        self,
        axis=-1,
        momentum=_MOMENTUM,
        epsilon=_EPSILON,
        synchronized=True,
        **kwargs,
    ):
        for key in ("renorm", "virtual_batch_size", "adjustment"):
            if kwargs.get(key):
                raise ValueError(f"{key} has no synchronized form: omit it")
        # Keras must not know of `synchronized`: it would turn its fused kernel
        # off at inference, too.
        super().__init__(
            axis=axis, momentum=momentum, epsilon=epsilon, **kwargs
        )
        self.synchronized = synchronized

    def build(self, input_shape):
        """Makes the variables, for inputs [N, ..., C] or as `axis` says."""
        super().build(input_shape)
        if len(self.axis) != 1:
            raise ValueError(f"give one axis of channels, not {self.axis}")

    @as_written
    def call(self, inputs, training=False):
        """Normalizes `inputs`.

        Args:
          inputs: [N, ..., C], of any rank from 2 on.
          training: whether by the batch's own statistics, which then enter the
            moving ones; bool, or a bool tensor. In a model, the model's.

        Returns:
          The shape of `inputs`, in the layer's compute dtype.
        """
        if not self.trainable:
            training = False
        static = tf.get_static_value(training)
        if static is None and training is not None:
            return tf.cond(
                tf.cast(training, tf.bool),
                lambda: self._normalize_by_batch(inputs),
                lambda: self._normalize_by_moving(inputs),
            )
        if static:
            return self._normalize_by_batch(inputs)
        return self._normalize_by_moving(inputs)

    def _normalize_by_moving(self, inputs):
        return super().call(inputs, training=False)

    def _normalize_by_batch(self, inputs):
        inputs = tf.cast(inputs, self.compute_dtype)
        alone = not self.synchronized or distribution.num_replicas() == 1
        channels_last = self.axis[0] == inputs.shape.rank - 1
        if alone and self.fused and channels_last:
            outputs, mean, variance = self._fused(inputs)
        else:
            outputs, mean, variance = self._synchronized(inputs, alone)
        self.add_update(lambda: self._update_moving(mean, variance))
        return outputs

    def _fused(self, inputs):
        """One kernel for one replica: up to twice as fast, equal to rounding.

        The kernel rounds the mean to float32, which costs digits where it is
        large; less the first example's mean, it is not. (Inputs in half
        precision have fewer digits than that, and would lose some of them.)
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
        # The kernel gives the unbiased variance, but only as a statistic.
        n = tf.cast(tf.size(inputs) // channels[0], variance.dtype)
        return outputs, shift + mean, variance * (n - 1) / n

    def _synchronized(self, inputs, alone):
        """Two collectives: a common shift, then all sums of d = x - shift.

        The shift cancels in value and gradient, so it needs none; with it, no
        digits are lost in the sums, nor in the output, which is made of d, too.
        """
        x = tf.cast(inputs, self.moving_mean.dtype)
        axes = [i for i in range(x.shape.rank) if i != self.axis[0]]
        sum_over_replicas = (
            tf.identity if alone else distribution.cross_replica_sum
        )
        replicas = 1 if alone else distribution.num_replicas()
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

    def _broadcast(self, vector, x):
        """Shapes a vector of channels to go with `x`."""
        shape = [1] * x.shape.rank
        shape[self.axis[0]] = -1
        return tf.reshape(vector, shape)

    def _update_moving(self, mean, variance):
        # Loss scaling skips the weights' step when an activation overflows;
        # this is the same for the statistics. They are those of all replicas,
        # so that all agree on it.
        finite = tf.reduce_all(
            tf.math.is_finite(mean) & tf.math.is_finite(variance)
        )
        for moving, value in (
            (self.moving_mean, mean),
            (self.moving_variance, variance),
        ):
            change = (value - moving) * (1 - self.momentum)
            moving.assign_add(tf.where(finite, change, tf.zeros_like(change)))

    def get_config(self):
        """Returns all constructor arguments."""
        return {**super().get_config(), "synchronized": self.synchronized}
