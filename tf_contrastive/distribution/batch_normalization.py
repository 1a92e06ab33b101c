"""Batch normalization over the global batch, stable in float32.

Contrastive losses need statistics of the global batch: those of one replica
reveal to the network which images belong together. Keras' synchronized layer
computes E[x^2] - E[x]^2 in float32, which for a channel of mean 100 and
deviation 0.1 is off by half, and one infinite activation makes it NaN forever.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tf_contrastive import distribution
from tf_contrastive.base import terminal
from tf_contrastive.distribution import collectives

# Deviations between a shift and the mean, squared, from which on the statistics
# are computed again: below it, float32 loses at most 4 of its 24 bits.
_MAX_SQUARED_DISTANCE = 16.0


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class BatchNormalization(tf.keras.layers.BatchNormalization):
    """Batch normalization with the statistics of the global batch.

    In training, the mean and the biased variance are those of all replicas'
    batches together, in float32 under every precision policy. A channel's
    moving statistics do not change where they are not finite.

    Args:
      axis: the axis of the channels.
      momentum: fraction of the moving statistics that a step keeps.
      epsilon: added to the variance.
      synchronized: whether statistics span all replicas. Variables, their
        names and inference do not depend on it.
      **kwargs: as in the Keras layer; no batch renormalization or virtual
        batches. A frozen layer (`trainable=False`) normalizes by its moving
        statistics.

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

    def add_weight(
        self, name: str | None = None, **options: Any
    ) -> tf.Variable:
        """Creates a variable; a checkpoint has one replica's statistics.

        They are equal on all replicas, but their mean over three is not: it is
        rounded, and a resumed run would differ.
        """
        if self.synchronized and str(name).startswith("moving_"):
            first = tf.VariableAggregation.ONLY_FIRST_REPLICA
            options["aggregation"] = first
        return super().add_weight(name=name, **options)

    @distribution.do_not_convert_self
    def call(
        self,
        inputs: tf.Tensor,
        training: bool | tf.Tensor | None = False,
        mask: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Normalizes inputs [N, ..., C], in the layer's compute dtype."""
        if mask is not None:
            raise ValueError("BatchNormalization of masked inputs")
        if not self.trainable:
            training = False
        by_moving = functools.partial(super().call, inputs, training=False)
        static = tf.get_static_value(training)
        if static is None and training is not None:
            return tf.cond(
                tf.cast(training, tf.bool),
                lambda: self._normalize_by_batch(inputs),
                by_moving,
            )
        return self._normalize_by_batch(inputs) if static else by_moving()

    def _normalize_by_batch(self, inputs: tf.Tensor) -> tf.Tensor:
        inputs = tf.cast(inputs, self.compute_dtype)
        local = not self.synchronized or distribution.num_replicas() == 1
        of_images = inputs.shape.rank == 4 and self.axis[0] == 3
        # In single precision the kernel needs a subtraction of its own, which
        # a compiler includes in the one read of `_one_pass`.
        subtract = inputs.dtype == self.moving_mean.dtype
        compiled = sums_are_fused() or has_gpus()
        fits = local and self.fused and of_images
        if fits and not (subtract and compiled):
            outputs, mean, variance = self._fused(inputs, subtract)
        else:
            outputs, mean, variance = self._one_pass(inputs, local)
        self.add_update(lambda: self._update_moving(mean, variance))
        return outputs

    def _scale_and_offset(self) -> tuple[tf.Tensor, tf.Tensor]:
        channels, dtype = self.moving_mean.shape, self.moving_mean.dtype
        gamma = tf.ones(channels, dtype) if self.gamma is None else self.gamma
        beta = tf.zeros(channels, dtype) if self.beta is None else self.beta
        return tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta)

    def _fused(
        self, inputs: tf.Tensor, subtract: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Normalizes by one kernel: up to twice as fast, equal to rounding.

        The kernel rounds the mean to float32, and a large mean loses digits:
        the first example's is subtracted. (Half-precision inputs have fewer
        digits, and would lose some by that.)
        """
        gamma, beta = self._scale_and_offset()
        if subtract:
            shift = tf.reduce_mean(tf.stop_gradient(inputs[:1]), axis=[0, 1, 2])
            inputs -= shift
        else:
            shift = tf.zeros_like(beta)
        outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            inputs, gamma, beta, epsilon=self.epsilon, is_training=True
        )
        # The kernel normalizes by the biased variance and returns the unbiased.
        n = _count(inputs, self.axis[0], variance.dtype)
        return outputs, shift + mean, variance * (n - 1) / n

    def _one_pass(
        self, inputs: tf.Tensor, local: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Normalizes by one read and one collective, as for the gradient.

        That keeps only inputs and vectors of channels. The second derivative is
        not defined.
        """
        axis, epsilon = self.axis[0], self.epsilon
        guess = tf.convert_to_tensor(self.moving_mean)
        n = _count(inputs, axis, guess.dtype)

        @tf.custom_gradient
        def normalize(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
            if x.shape.rank == 2:
                moments = _moments_of_rows(x, axis, guess.dtype)
            elif sums_are_fused():
                moments = _corrected_moments(x, guess, epsilon, axis)
            else:
                moments = _moments_by_sample(x, axis, guess.dtype)
            # One row per replica: sums over replicas would lose the digits
            # that each of them has kept.
            if local:
                shift, mean, squares = tf.unstack(moments)
                variance, total = squares / n, n
            else:
                rows = tf.concat([tf.reshape(moments, [-1]), [n]], 0)
                rows = collectives.cross_replica_concat(rows[tf.newaxis])
                shift, mean, variance, total = _combine(rows)
            inverse = tf.math.rsqrt(variance + epsilon)
            scale = gamma * inverse
            outputs = _scaled(x, shift, (scale, beta - mean * scale), axis)

            def gradient(upstream: tf.Tensor, *_: Any) -> tuple[Any, ...]:
                by_beta, by_d = tf.unstack(
                    _upstream_sums(x, upstream, shift, axis)
                )
                by_gamma = inverse * (by_d - mean * by_beta)
                sums = tf.stack([by_beta, by_gamma])
                if not local:
                    sums = distribution.cross_replica_sum(sums)
                mean_upstream, mean_product = tf.unstack(sums / total)
                slope = -scale * inverse * mean_product
                constant = -scale * mean_upstream - slope * mean
                vectors = scale, slope, constant
                by_x = _input_gradient(x, upstream, shift, vectors, axis)
                return by_x, by_gamma, by_beta

            return (outputs, shift + mean, variance), gradient

        return normalize(inputs, *self._scale_and_offset())

    def _update_moving(self, mean: tf.Tensor, variance: tf.Tensor) -> None:
        # Loss scaling skips the step of the weights when an activation
        # overflows, and this the step of the channel's statistics. All replicas
        # have the same statistics, so they all agree.
        finite = tf.math.is_finite(mean) & tf.math.is_finite(variance)
        pairs = (self.moving_mean, mean), (self.moving_variance, variance)
        for moving, value in pairs:
            change = (value - moving) * (1 - self.momentum)
            moving.assign_add(tf.where(finite, change, tf.zeros_like(change)))

    def get_config(self) -> dict[str, Any]:
        """Returns all constructor arguments."""
        return {**super().get_config(), "synchronized": self.synchronized}


# ---- Parts that read whole activations ---------------------------------------


def synchronize(
    model: tf.keras.layers.Layer, synchronized: bool = True
) -> None:
    """Turns Keras' batch normalization in a model into ours, in place.

    Also inside of layers, which cloning does not reach; variables stay.
    """
    for layer in (model, *model.submodules):
        # Subclasses may behave differently.
        if type(layer) is tf.keras.layers.BatchNormalization:
            layer.__class__ = BatchNormalization
            layer.synchronized = synchronized
        elif (
            isinstance(layer, tf.keras.layers.BatchNormalization)
            and not getattr(layer, "synchronized", False)
            and synchronized
            and tf.distribute.get_strategy().num_replicas_in_sync > 1
        ):
            terminal.warning(
                f"{type(layer).__name__} {layer.name} takes its statistics from"
                " one replica, which shows the network what belongs together:"
                " use BatchNormalization of Keras"
            )


def has_gpus() -> bool:
    """Whether this process computes on GPUs."""
    return bool(tf.config.list_logical_devices("GPU"))


def sums_are_fused() -> bool:
    """Whether XLA, other than for GPUs, compiles what is being traced.

    A TPU adds while a convolution writes its result, if the sums need nothing
    else of it.
    """
    return is_compiled() and not has_gpus()


def is_compiled() -> bool:
    """Whether XLA compiles what is being traced, for whatever device."""
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def _compiled_on_gpus(function: Callable[..., tf.Tensor]) -> Any:
    """Compiles a function on GPUs, where each op else writes its result."""
    compiled = tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def call(*args: Any) -> tf.Tensor:
        return (compiled if has_gpus() else function)(*args)

    return call


def _broadcast(vector: tf.Tensor, x: tf.Tensor, axis: int) -> tf.Tensor:
    """Reshapes a vector of channels to broadcast to `x`."""
    shape = [1] * x.shape.rank
    shape[axis] = -1
    return tf.reshape(vector, shape)


def _minus(x: tf.Tensor, shift: tf.Tensor, axis: int) -> tf.Tensor:
    return tf.cast(x, shift.dtype) - _broadcast(shift, x, axis)


def _sum(x: tf.Tensor, axis: int) -> tf.Tensor:
    return tf.reduce_sum(x, [i for i in range(x.shape.rank) if i != axis])


def _count(x: tf.Tensor, axis: int, dtype: tf.DType) -> Any:
    """Number of values of a channel, []."""
    if x.shape.is_fully_defined():  # Fewer operations to trace.
        return dtype.as_numpy_dtype(x.shape.num_elements() // x.shape[axis])
    return tf.cast(tf.size(x) // x.shape[axis], dtype)


def _moments(x: tf.Tensor, shift: tf.Tensor, axis: int) -> tf.Tensor:
    """Statistics of x - shift by one read, [3, C]: shift, mean, squares.

    The squares are the sum of the squared deviations from the mean.
    """
    d = _minus(x, shift, axis)
    n = _count(x, axis, shift.dtype)
    mean = _sum(d, axis) / n
    squares = tf.maximum(_sum(d * d, axis) - n * mean * mean, 0.0)
    return tf.stack([shift, mean, squares])


@_compiled_on_gpus
def _moments_by_sample(x: tf.Tensor, axis: int, dtype: tf.DType) -> tf.Tensor:
    """`_moments` shifted by the first example's mean.

    A mean of one of n parts is at most sqrt(n) deviations from the whole's.
    """
    sample = tf.cast(x[:1] if axis else x, dtype)
    shift = _sum(sample, axis) / _count(sample, axis, dtype)
    return _moments(x, shift, axis)


def _moments_of_rows(x: tf.Tensor, axis: int, dtype: tf.DType) -> tf.Tensor:
    """`_moments` shifted by the mean: a head's outputs are read twice."""
    x = tf.cast(x, dtype)
    mean = _sum(x, axis) / _count(x, axis, dtype)
    squares = _sum((x - _broadcast(mean, x, axis)) ** 2, axis)
    return tf.stack([mean, tf.zeros_like(mean), squares])


def _corrected_moments(
    x: tf.Tensor, guess: tf.Tensor, epsilon: float, axis: int
) -> tf.Tensor:
    """`_moments` shifted by a guess, and by the mean if the guess is far off.

    Replicas decide each for themselves, so there is no collective in a branch.
    """
    moments = _moments(x, guess, axis)
    _, mean, squares = tf.unstack(moments)
    variance = squares / _count(x, axis, guess.dtype)
    far = mean * mean > _MAX_SQUARED_DISTANCE * (variance + epsilon)
    return tf.cond(
        tf.reduce_any(far),
        lambda: _moments(x, guess + mean, axis),
        lambda: moments,
    )


def _combine(rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Combines rows of (`_moments`, number of values) of all replicas.

    Chan, Golub and LeVeque 1983, Eq. 2.1. From [replicas, 3 C + 1] to shift,
    mean of x - shift, variance, each [C]; the number of values of all, [].
    """
    shifts, means, squares = tf.split(rows[:, :-1], 3, axis=1)
    n = rows[:, -1:]
    total = tf.reduce_sum(n)
    shift = tf.reduce_mean(shifts, axis=0)
    means += shifts - shift
    mean = tf.reduce_sum(n * means, axis=0) / total
    squares += n * (means - mean) ** 2
    return shift, mean, tf.reduce_sum(squares, axis=0) / total, total


@_compiled_on_gpus
def _scaled(
    x: tf.Tensor, shift: tf.Tensor, vectors: Sequence[tf.Tensor], axis: int
) -> tf.Tensor:
    """(x - shift) * scale + offset, in the dtype of `x`."""
    scale, offset = (_broadcast(v, x, axis) for v in vectors)
    return tf.cast(_minus(x, shift, axis) * scale + offset, x.dtype)


@_compiled_on_gpus
def _upstream_sums(
    x: tf.Tensor, upstream: tf.Tensor, shift: tf.Tensor, axis: int
) -> tf.Tensor:
    """Sums of upstream and of upstream * (x - shift), [2, C]."""
    upstream = tf.cast(upstream, shift.dtype)
    product = upstream * _minus(x, shift, axis)
    return tf.stack([_sum(upstream, axis), _sum(product, axis)])


@_compiled_on_gpus
def _input_gradient(
    x: tf.Tensor,
    upstream: tf.Tensor,
    shift: tf.Tensor,
    vectors: Sequence[tf.Tensor],
    axis: int,
) -> tf.Tensor:
    """upstream * scale + (x - shift) * slope + constant, as `x` in dtype."""
    scale, slope, constant = (_broadcast(v, x, axis) for v in vectors)
    d = _minus(x, shift, axis)
    upstream = tf.cast(upstream, shift.dtype)
    return tf.cast(upstream * scale + (d * slope + constant), x.dtype)
