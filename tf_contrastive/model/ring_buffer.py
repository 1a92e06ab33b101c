"""Ring buffers: variables that hold the latest rows of all replicas."""

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.losses import labels as label_checks
from tf_contrastive.losses import similarity


def enqueue(
    buffers: list[tf.Variable],
    entered: tf.Variable,
    rows: list[tf.Tensor],
    message: str,
) -> None:
    """Replaces the oldest rows of buffers by new ones, on all replicas.

    Args:
      buffers: variables [Q, ...] of the same Q.
      entered: int64 [], the number of rows that ever entered.
      rows: for each buffer this replica's rows [B, ...], float32 (the first)
        or int32; those of the global batch enter, in the order of the replicas.
      message: of the error, with the batch's `{size}`.

    Raises:
      ValueError: if the global batch has more than Q rows;
        InvalidArgumentError in the step, if its size is known only there.
    """
    capacity = buffers[0].shape[0]
    rows = [distribution.cross_replica_concat(x) for x in rows]
    rows[0] = label_checks.or_nan(
        rows[0],
        similarity.shape(rows[0])[0] <= capacity,
        message.format(size=rows[0].shape[0] or "number of"),
    )
    count = tf.shape(rows[0], tf.int64)[0]
    slots = (tf.range(count) + entered)[:, tf.newaxis] % capacity
    updated = [
        tf.tensor_scatter_nd_update(buffer, slots, tf.cast(x, buffer.dtype))
        for buffer, x in zip(buffers, rows, strict=True)
    ]
    distribution.assign([*buffers, entered], [*updated, entered + count])
