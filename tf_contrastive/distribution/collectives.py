"""Collectives with the right gradient, and helpers of the replicated step.

`cross_replica_concat` is the only way in which features cross replicas: it
scatters them into place and applies `all_reduce(SUM)`. Its gradient is
`all_reduce(SUM)` of the upstream gradients. So the tape returns d(sum of all
replicas' losses)/d(theta of r) on replica r, and the sum of gradients over
replicas is the gradient of the global loss. `all_gather` has no XLA kernel for
more than one replica.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api

_Function = TypeVar("_Function", bound=Callable)


def on_tpu() -> bool:
    """Whether the graph that is being traced will run on TPU cores."""
    return isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)


def bfloat16_parts(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the nearest bfloat16 numbers, as float32, and the remainders."""
    # By bits, since XLA may drop a cast to bfloat16 and back. Unsigned, since
    # TensorFlow adds int32 on the host. A NaN is at least in the remainder.
    bits = tf.bitcast(x, tf.uint32) + tf.constant(0x8000, tf.uint32)
    upper = tf.bitwise.bitwise_and(bits, tf.constant(0xFFFF0000, tf.uint32))
    nearest = tf.bitcast(upper, tf.float32)
    return nearest, x - nearest


def num_replicas() -> int:
    """Returns the replicas that share the global batch; 1 outside of `run`."""
    context = tf.distribute.get_replica_context()
    return context.num_replicas_in_sync if context else 1


def replica_id() -> tf.Tensor:
    """Returns this replica's position, int32 []."""
    if num_replicas() == 1:
        return tf.constant(0, tf.int32)
    context = tf.distribute.get_replica_context()
    # The id is uint32 on TPUs.
    return tf.cast(context.replica_id_in_sync_group, tf.int32)


def cross_replica_sum(x: tf.Tensor) -> tf.Tensor:
    """Sums `x` (float32 or int32) over replicas; every replica gets the sum.

    The gradient is the sum over replicas of the upstream gradients.
    """
    if num_replicas() == 1:
        return x
    if not x.dtype.is_floating:
        return _all_reduce(x)
    return _differentiable_sum(x)


@tf.custom_gradient
def _differentiable_sum(x: tf.Tensor) -> Any:
    return _all_reduce(x), cross_replica_sum


def _all_reduce(x: tf.Tensor) -> tf.Tensor:
    # While a graph is built, `all_reduce` walks back from its result to find
    # variables, through all replicas' graphs to their start: the total time is
    # quadratic in the network's depth. The walk ends where a gradient does.
    x = tf.stop_gradient(x)
    return tf.distribute.get_replica_context().all_reduce(
        tf.distribute.ReduceOp.SUM, x
    )


def cross_replica_concat(x: tf.Tensor) -> tf.Tensor:
    """Concatenates `x` of all replicas on axis 0, in replica order.

    float32 or int32 [b, ...], of the same shape on every replica, become
    [replicas * b, ...], with the gradient of the global batch. (Half precision
    would lose bits in the gradient's sum, and other integers have no all_reduce
    on TPUs.)
    """
    if x.dtype not in (tf.float32, tf.float64, tf.int32):
        raise ValueError(f"cast to float32 or int32 first, not {x.dtype.name}")
    n = num_replicas()
    if n == 1:
        return x
    shape = tf.shape(x)
    buffer = tf.scatter_nd(
        [[replica_id()]], x[tf.newaxis], tf.concat([[n], shape], 0)
    )
    buffer = cross_replica_sum(buffer)
    gathered = tf.reshape(buffer, tf.concat([[n * shape[0]], shape[1:]], 0))
    static = x.shape.as_list()
    rows = None if static[0] is None else n * static[0]
    gathered.set_shape([rows, *static[1:]])
    return gathered


def assign(
    variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]
) -> None:
    """Assigns values that are equal on all replicas to mirrored variables.

    Each replica writes its own copy: `Variable.assign` would have all of them
    meet, which fails in a replica's compiled function, and needs an aggregation
    for different values.
    """
    strategy = tf.distribute.get_strategy()
    context = tf.distribute.get_replica_context()
    # Known while tracing, but on TPUs, whose cores share one trace.
    replica = tf.get_static_value(context.replica_id_in_sync_group)
    for variable, value in zip(variables, values, strict=True):
        if replica is None:
            variable.assign(value)
            continue
        copies = strategy.experimental_local_results(variable)
        copies[replica % len(copies)].assign(value)


def all_finite(tensors: Iterable[tf.Tensor | tf.Variable]) -> tf.Tensor:
    """Returns whether all numbers of floating tensors are finite, bool []."""
    floating = (x for x in tensors if x.dtype.is_floating)
    return tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(x)) for x in floating]
    )


def do_not_convert_self(function: _Function) -> _Function:
    """Keeps AutoGraph from converting a function, but not what it calls.

    Converting takes a third of the time of tracing a step. TensorFlow's
    `do_not_convert` would also keep users' layers from being converted, and
    hide the arguments of a layer's `call` from Keras.
    """
    function.autograph_info__ = {}  # type: ignore[attr-defined] # For AutoGraph.
    return function


def with_autograph(function: _Function) -> _Function:
    """Converts a user's function by AutoGraph, within ours, which are not."""
    if tf.executing_eagerly():
        return function
    enabled = ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED)
    return api.tf_convert(function, enabled)
