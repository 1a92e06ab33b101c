"""Gradient cache: a large batch's gradient in the memory of a part of it.

Layer 4. A contrastive loss needs all projections of a batch at once, but not
the activations that led to them. So they are made twice: first without a tape,
for the loss and its gradient by the projections; then part by part with a tape,
which takes that gradient back through the network (Gao et al. 2021, section 3).
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution


def checked(x: tf.Tensor, chunks: int) -> tf.Tensor:
    """Returns `x` [B, ...], if it can be cut into so many chunks.

    Raises:
      ValueError: if not; where B is known only once the step runs, that raises
        an InvalidArgumentError.
    """
    size = x.shape[0]
    message = (
        f"grad_cache_chunks={chunks} does not divide a replica's batch of"
        f" {size or 'an unknown number of'} images: let it be a multiple"
        " (and batch with drop_remainder=True)"
    )
    if size is not None:
        if size % chunks:
            raise ValueError(message)
        return x
    fits = tf.debugging.assert_equal(tf.shape(x)[0] % chunks, 0, message)
    with tf.control_dependencies([fits]):
        return tf.identity(x)


def in_chunks(
    function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, chunks: int
) -> tf.Tensor:
    """Applies `function` to parts of `x`, one after the other.

    Args:
      function: [b, ...] -> a tensor whose axis 0 is that of its argument.
      x: [B, ...], B a multiple of `chunks`.
      chunks: how many parts.

    Returns:
      The results, concatenated on axis 0.
    """
    outputs = []
    for index in range(chunks):
        outputs.append(function(_chunk(x, index, chunks, after=outputs[-1:])))
    return tf.concat(outputs, 0)


def sum_over_chunks(
    function: Callable[..., Any], arguments: tuple[Any, ...], chunks: int
) -> Any:
    """Sums `function` over parts of its arguments, one after the other.

    Args:
      function: takes parts [b, ...] of all arguments; returns a structure of
        tensors.
      arguments: tensors [B, ...], B a multiple of `chunks`, or None; all of
        them are computed before the first part is.
      chunks: how many parts.
    """
    after = [x for x in arguments if x is not None]
    total = None
    for index in range(chunks):
        parts = [
            x if x is None else _chunk(x, index, chunks, after)
            for x in arguments
        ]
        values = function(*parts)
        if total is not None:
            values = tf.nest.map_structure(tf.add, total, values)
        total = values
        after = tf.nest.flatten(total)
    return total


def _chunk(
    x: tf.Tensor, index: int, chunks: int, after: list[tf.Tensor]
) -> tf.Tensor:
    """Cuts part `index` of `chunks` out of `x`, once `after` is computed."""
    parts = tf.reshape(x, [chunks, -1, *x.shape[1:]])
    if after:
        index += _zero(after)
    # Collectives walk back over the graph to find variables; there are none
    # beyond (see `distribution`).
    return tf.stop_gradient(tf.gather(parts, index))


def _zero(after: list[tf.Tensor]) -> tf.Tensor:
    """The number 0, int32 [], known only once `after` is computed.

    An executor runs what it can at once, which for two parts takes the memory
    of two; and a compiler that sees a part pass through the network twice keeps
    its activations. XLA knows no control dependencies, so this is one of data.
    """
    samples = [tf.cast(tf.reshape(x, [-1])[0], tf.float32) for x in after]
    # Never true, not even of a NaN, which compilers cannot tell beforehand.
    return tf.cast(tf.tanh(tf.add_n(samples)) > 2.0, tf.int32)


@contextlib.contextmanager
def unchanged(*layers: tf.keras.layers.Layer) -> Iterator[None]:
    """Restores the state of `layers`, such as moving statistics, at the end.

    For use in a replica. Their weights are no state, frozen ones neither.
    """
    # Elsewhere than on one replica, a layer can only write to what says how
    # replicas' values are to be joined.
    alone = distribution.num_replicas() == 1
    state = [
        v
        for layer in layers
        for v in layer.non_trainable_variables
        if not v.trainable
        and (alone or v.aggregation != tf.VariableAggregation.NONE)
    ]
    before = [tf.identity(v) for v in state]
    yield
    for variable, value in zip(state, before, strict=True):
        variable.assign(value)
