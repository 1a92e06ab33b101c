"""An operation for some views of a batch, or one of several for each."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.views import prng

# (views float32 [k, ...], parameters [k, p]) -> the same shape.
Operation = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def apply_where(
    mask: tf.Tensor,
    operation: Operation,
    views: tf.Tensor,
    parameters: tf.Tensor,
    static: bool,
    costly: bool = False,
) -> tf.Tensor:
    """Applies an operation to the views of a mask, bool [m].

    Views are float32 [m, ...], parameters [m, p]; `static`: see `apply_choice`.
    A TPU applies a `costly` operation to the views of the mask only, one at a
    time.
    """
    if static and costly and distribution.on_tpu():
        return _one_by_one(mask, operation, views, parameters)
    if static:
        mask = tf.reshape(mask, [-1] + [1] * (views.shape.rank - 1))
        return tf.where(mask, operation(views, parameters), views)
    rows = tf.where(mask)
    changed = operation(
        tf.gather(views, rows[:, 0]), tf.gather(parameters, rows[:, 0])
    )
    return tf.tensor_scatter_nd_update(views, rows, changed)


def _one_by_one(
    mask: tf.Tensor,
    operation: Operation,
    views: tf.Tensor,
    parameters: tf.Tensor,
) -> tf.Tensor:
    # Of each view among those of the mask, from 1.
    number = tf.cumsum(tf.cast(mask, tf.int32))

    def step(done: tf.Tensor, views: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # Without the sort or the dynamic shape of a list of the views.
        i = tf.reduce_sum(tf.cast(number <= done, tf.int32))
        changed = operation(views[i][tf.newaxis], parameters[i][tf.newaxis])
        return done + 1, tf.tensor_scatter_nd_update(views, [[i]], changed)

    count = tf.reduce_max(number)
    return tf.while_loop(lambda done, _: done < count, step, (0, views))[1]


def apply_choice(
    choice: tf.Tensor,
    operations: Sequence[Operation],
    views: tf.Tensor,
    parameters: tf.Tensor,
    static: bool,
    costly: Collection[int] = (),
) -> tf.Tensor:
    """Applies to each view, float32 [m, ...], one of several operations.

    A choice, int32 [m], of 0 leaves a view unchanged, k means operations[k-1].
    `static` keeps shapes independent of it: every operation acts on every view,
    which suits vector units; otherwise each acts only on its own views. Those
    of the choices `costly` are applied as by `apply_where`.
    """
    if static:
        result = views
        shape = [-1] + [1] * (views.shape.rank - 1)
        for number, operation in enumerate(operations, start=1):
            if number in costly:
                result = apply_where(
                    choice == number, operation, result, parameters, True, True
                )
                continue
            mask = tf.reshape(choice == number, shape)
            result = tf.where(mask, operation(views, parameters), result)
        return result
    count = len(operations) + 1
    rows = tf.dynamic_partition(tf.range(tf.size(choice)), choice, count)
    parts = tf.dynamic_partition(views, choice, count)
    values = tf.dynamic_partition(parameters, choice, count)
    results = [parts[0]]
    results += map(lambda f, x, p: f(x, p), operations, parts[1:], values[1:])
    return tf.ensure_shape(tf.dynamic_stitch(rows, results), views.shape)


@dataclasses.dataclass(frozen=True)
class RandomApply:
    """Operations in a row, each with a probability of its own draw."""

    operations: tuple[Any, ...]  # `policies.Photometric`, of different streams.
    probability: float

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers per view, by stream."""
        streams = {"random_apply": len(self.operations)}
        for operation in self.operations:
            streams |= operation.streams
        return streams

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        coins = uniforms["random_apply"]
        for number, operation in enumerate(self.operations):

            def act(
                views: tf.Tensor, rows: tf.Tensor, operation: Any = operation
            ) -> tf.Tensor:
                drawn = {
                    stream: tf.gather(uniforms[stream], rows[:, 0])
                    for stream in operation.streams
                }
                return operation(views, drawn, static)

            mask = coins[:, number] < self.probability
            rows = tf.range(tf.shape(coins)[0])[:, tf.newaxis]
            arguments = mask, act, pixels, rows, static
            if static:
                pixels = apply_where(*arguments)
                continue
            # Some operations do not take an empty batch.
            pixels = tf.cond(
                tf.reduce_any(mask),
                lambda arguments=arguments: apply_where(*arguments),
                lambda pixels=pixels: pixels,
            )
        return pixels
