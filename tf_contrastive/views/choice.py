"""An operation for some views of a batch, or one of several for each."""

from collections.abc import Callable, Sequence

import tensorflow as tf

# (views float32 [k, ...], parameters [k, p]) -> the same shape.
Operation = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def some(
    views: tf.Tensor,
    chosen: tf.Tensor,
    parameters: tf.Tensor,
    operation: Operation,
    static: bool,
) -> tf.Tensor:
    """Applies an operation to the views that were chosen.

    Args:
      views: float32 [m, ...].
      chosen: bool [m].
      parameters: [m, p], handed over with the views.
      operation: what is done to them.
      static: see `apply`.

    Returns:
      float32 [m, ...].
    """
    if static:
        mask = tf.reshape(chosen, [-1] + [1] * (views.shape.rank - 1))
        return tf.where(mask, operation(views, parameters), views)
    rows = tf.where(chosen)
    made = operation(
        tf.gather(views, rows[:, 0]), tf.gather(parameters, rows[:, 0])
    )
    return tf.tensor_scatter_nd_update(views, rows, made)


def apply(
    views: tf.Tensor,
    which: tf.Tensor,
    parameters: tf.Tensor,
    operations: Sequence[Operation],
    static: bool,
) -> tf.Tensor:
    """Applies to each view the operation that was chosen for it.

    Args:
      views: float32 [m, ...].
      which: int32 [m]: 0 leaves a view as it is, k stands for operations[k-1].
      parameters: [m, p], handed over with the views.
      operations: what can be chosen.
      static: whether shapes must not depend on `which`. Every operation then
        acts on every view, which is what vector units want; otherwise each
        acts on its own views only.

    Returns:
      float32 [m, ...].
    """
    if static:
        result = views
        shape = [-1] + [1] * (views.shape.rank - 1)
        for number, operation in enumerate(operations, start=1):
            chosen = tf.reshape(which == number, shape)
            result = tf.where(chosen, operation(views, parameters), result)
        return result
    count = len(operations) + 1
    rows = tf.dynamic_partition(tf.range(tf.size(which)), which, count)
    parts = tf.dynamic_partition(views, which, count)
    values = tf.dynamic_partition(parameters, which, count)
    results = [parts[0]]
    results += map(lambda f, x, p: f(x, p), operations, parts[1:], values[1:])
    return tf.ensure_shape(tf.dynamic_stitch(rows, results), views.shape)
