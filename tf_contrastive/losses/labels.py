"""What labels must be, in eager code, in graphs, and compiled by XLA."""

import tensorflow as tf

from tf_contrastive.base import errors

_IDS = "class ids must be integers from 0 to 2147483647"
_OR_NONE = ", or -1 for an image without a label"
_ROWS = "multi-hot labels must be 0 or 1: soft labels make no positives"


# What `or_nan` has asserted.
_asserted: set[str] = set()


def in_one_line(error: Exception) -> Exception:
    """Returns an error that `or_nan` raised in a graph as its message alone."""
    text = str(error).replace("\\'", "'")  # TensorFlow quotes the message.
    # The longest: "from 0 to 29" has "from 0 to 2" in it.
    found = sorted((m for m in _asserted if m in text), key=len)
    return errors.UserError(found[-1]) if found else error


def check_classes(user: str, labels: tf.Tensor) -> tf.Tensor:
    """Returns labels of `user` as a tensor; they must be integers [B]."""
    labels = tf.convert_to_tensor(labels)
    if labels.shape.rank != 1 or not labels.dtype.is_integer:
        raise ValueError(
            f"labels of shape {labels.shape} and type {labels.dtype.name}:"
            f" {user} takes integers [B], one class per image; without it,"
            " multi-hot [B, C] are allowed, too"
        )
    return labels


def is_id(
    labels: tf.Tensor, classes: int | None = None, unlabelled: bool = False
) -> tf.Tensor:
    """Whether each integer is a class id, or -1 if `unlabelled`."""
    last = tf.int32.max if classes is None else classes - 1
    ids = tf.cast(labels, tf.int64)  # A smaller type need not hold the last.
    return (ids >= (-1 if unlabelled else 0)) & (ids <= last)


def known(
    x: tf.Tensor, labels: tf.Tensor, classes: int, unlabelled: bool = False
) -> tf.Tensor:
    """Returns `x`, which is NaN unless labels [B] are of so many classes."""
    fine = tf.reduce_all(is_id(labels, classes, unlabelled))
    message = f"labels must be integers from 0 to {classes - 1}"
    return or_nan(x, fine, message + _OR_NONE * unlabelled)


def noticed(
    x: tf.Tensor, labels: tf.Tensor, unlabelled: bool = False
) -> tf.Tensor:
    """Returns `x`, which is NaN if labels [B] or [B, C] are not allowed.

    `unlabelled`: a class id of -1 is allowed, too. Eager code raises a
    `ValueError`, a graph an `InvalidArgumentError`; XLA, which raises nothing,
    keeps NaN.
    """
    if labels.dtype == tf.bool or labels.shape.rank == 3:
        return x
    if labels.shape.rank == 1:
        fine = tf.reduce_all(is_id(labels, unlabelled=unlabelled))
        message = _IDS + _OR_NONE * unlabelled
    else:
        fine = tf.reduce_all((labels == 0) | (labels == 1))
        message = _ROWS
    return or_nan(x, fine, message)


def or_nan(x: tf.Tensor, fine: bool | tf.Tensor, message: str) -> tf.Tensor:
    """Returns `x`, which is NaN unless `fine`, bool []; see `noticed`."""
    if isinstance(fine, bool) or tf.executing_eagerly():
        if not fine:
            raise ValueError(message)
        return x
    _asserted.add(message)
    check = tf.raw_ops.Assert(condition=fine, data=[message])
    with tf.control_dependencies([check]):
        # A constant NaN would alarm tf.debugging.enable_check_numerics.
        one = tf.cast(fine, x.dtype)
        return x * (one / one)
