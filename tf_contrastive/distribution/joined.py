"""Many tensors in few kernels.

Small steps of a GPU are bound by the start of kernels, and a network has a
hundred variables. In programs that XLA compiles for other devices than TPUs,
whose tensors would be copied, what concerns all variables is computed on joined
vectors.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# `tf.raw_ops` lacks it.
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from tf_contrastive.distribution import collectives
from tf_contrastive.distribution.batch_normalization import is_compiled

# A sum of so many numbers is one kernel; XLA makes two of a longer one.
_ROW = 4096
# Tensors that are joined: a kernel has a limited number of arguments.
_JOINED = 32


def _joins(*tensors: tf.Tensor) -> bool:
    """Whether tensors are joined in what is being traced."""
    known = all(x.shape.is_fully_defined() for x in tensors)
    return known and is_compiled() and not collectives.on_tpu()


def as_vector(x: tf.Tensor) -> tf.Tensor:
    """Returns the numbers of a tensor as a vector, but on TPUs."""
    return x if collectives.on_tpu() else tf.reshape(x, [-1])


def in_order(gradient: tf.Tensor) -> tf.Tensor:
    """Returns a gradient whose numbers are in the order of its variable.

    XLA computes that of a convolution in another order. It would keep that
    order through the optimizer, and copy all variables back.
    """
    if not _joins(gradient) or gradient.shape.rank < 2:
        return gradient
    (vector,) = gen_xla_ops.xla_optimization_barrier([as_vector(gradient)])
    return tf.reshape(vector, gradient.shape)


def sums(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the sum of each of float32 tensors, [tensors]."""
    if not _joins(*tensors):
        return tf.stack([tf.reduce_sum(x) for x in tensors])
    # One at a time: that of a gradient is part of its variable's step.
    return _sums_of_vectors([x for t in tensors for x in _sums_of_rows([t])])


def norms(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the Euclidean norm of each of float32 tensors, [tensors]."""
    if not _joins(*tensors):
        # From half of the squares, which one read computes.
        return tf.sqrt(2 * tf.stack([tf.nn.l2_loss(x) for x in tensors]))
    squares = [x * x for x in tensors]
    rows = [x for some in _parts(squares) for x in _sums_of_rows(some)]
    return tf.sqrt(_sums_of_vectors(rows))


def elementwise(
    function: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, ...]],
    values: Sequence[tf.Tensor],
    slots: Sequence[tf.Tensor],
) -> list[tuple[tf.Tensor, ...]]:
    """Maps an elementwise function over vectors and slots of their lengths.

    Its results are such vectors, too.
    """
    results: dict[int, tuple[tf.Tensor, ...]] = {}
    small = [i for i, x in enumerate(values) if _joins(x) and _is_small(x)]
    for some in _parts(small):
        value, slot = (
            tf.concat([vectors[i] for i in some], axis=0)
            for vectors in (values, slots)
        )
        # Every slot would be copied if a kernel read all and wrote some.
        (slot,) = gen_xla_ops.xla_optimization_barrier([slot])
        sizes = [values[i].shape[0] for i in some]
        found = [tf.split(x, sizes) for x in function(value, slot)]
        results |= zip(some, zip(*found, strict=True), strict=True)
    for i, (value, slot) in enumerate(zip(values, slots, strict=True)):
        if i not in results:
            results[i] = function(value, slot)
    return [results[i] for i in range(len(values))]


def _is_small(x: tf.Tensor) -> bool:
    return x.shape.num_elements() <= _ROW


def _parts(values: Sequence[Any]) -> list[Sequence[Any]]:
    """Splits a sequence into those that are joined."""
    return [
        values[first : first + _JOINED]
        for first in range(0, len(values), _JOINED)
    ]


def _sums_of_rows(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns, for each tensor, numbers that have the same sum: a few."""
    vectors = [tf.reshape(x, [-1]) for x in tensors]
    if all(map(_is_small, vectors)):
        return vectors
    padded = [tf.pad(x, [[0, -x.shape[0] % _ROW]]) for x in vectors]
    rows = tf.reshape(tf.concat(padded, axis=0), [-1, _ROW])
    sizes = [x.shape[0] // _ROW for x in padded]
    return tf.split(tf.reduce_sum(rows, axis=1), sizes)


def _sums_of_vectors(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the sum of each vector, [vectors]."""
    found = []
    for some in _parts(vectors):
        longest = max(x.shape[0] for x in some)
        padded = [tf.pad(x, [[0, longest - x.shape[0]]]) for x in some]
        # XLA would split the sum of a stack again.
        table = tf.reshape(tf.concat(padded, axis=0), [len(some), longest])
        found.append(tf.reduce_sum(table, axis=1))
    return tf.concat(found, axis=0)
