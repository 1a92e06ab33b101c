"""An operation for some views of a batch, or one of several for each."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_contrastive.views import prng

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


@dataclasses.dataclass(frozen=True)
class Sometimes:
    """Operations one after the other, each on its own share of the views.

    Attributes:
      operations: of `policy.Photometric`, whose streams differ.
      probability: share of the views that each acts on.
    """

    operations: tuple[Any, ...]
    probability: float

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers that a view takes."""
        own = {"sometimes": len(self.operations)}
        return own | {
            k: n for f in self.operations for k, n in f.streams.items()
        }

    def __call__(
        self, pixels: tf.Tensor, unit: prng.Unit, static: bool = False
    ) -> tf.Tensor:
        """Acts on pixels float32 [m, S, S, 3] in [0, 1]."""
        chosen = unit["sometimes"] < self.probability
        for number, operation in enumerate(self.operations):
            pixels = _share(pixels, chosen[:, number], operation, unit, static)
        return pixels


def _share(
    pixels: tf.Tensor,
    chosen: tf.Tensor,
    operation: Any,
    unit: prng.Unit,
    static: bool,
) -> tf.Tensor:
    """Lets an operation act on the views that are chosen, bool [m]."""
    counts = operation.streams

    def act(views, rows):
        parts = tf.split(rows, [*counts.values(), 1], axis=1)[:-1]
        return operation(views, dict(zip(counts, parts, strict=True)), static)

    # The last column is for an operation that draws nothing.
    own = [unit[stream] for stream in counts]
    rows = tf.concat([*own, unit["sometimes"][:, :1]], axis=1)
    if static:
        return some(pixels, chosen, rows, act, static)
    # Not all operations take a batch of none.
    return tf.cond(
        tf.reduce_any(chosen),
        lambda: some(pixels, chosen, rows, act, static),
        lambda: pixels,
    )
