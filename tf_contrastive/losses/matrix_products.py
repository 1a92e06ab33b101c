"""Matrix products of embeddings that are nearly float32 on every device.

TPUs multiply float32 matrices in bfloat16, and GPUs from Ampere on in TF32. At
low losses the rounding is larger than the differences that a loss is about.
"""

import functools
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution

# Compute capability of the first GPUs with TF32: Ampere.
_TF32_SINCE = (8, 0)


def rounded_by_device(strategy: tf.distribute.Strategy) -> bool:
    """Whether the strategy's devices round factors of float32 products."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return True
    if not tf.config.experimental.tensor_float_32_execution_enabled():
        return False
    return (distribution.gpu_capability(strategy) or (0, 0)) >= _TF32_SINCE


def use_split(similarity_products: str) -> bool:
    """Whether an option's value, auto, plain or split, splits products.

    `auto` asks for the current strategy: call it where the step is traced.
    """
    if similarity_products == "auto":
        return rounded_by_device(tf.distribute.get_strategy())
    return similarity_products == "split"


def matmul(
    a: tf.Tensor,
    b: tf.Tensor,
    *,
    split: bool,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> tf.Tensor:
    """Multiplies float32 matrices; if split, without a gradient.

    `split` computes three products, of each factor's bfloat16 value and of the
    remainder, without that of both remainders. Factors are exact in bfloat16 to
    2**-17 of their entries, so that rounding them further changes little.
    """
    multiply = functools.partial(
        tf.matmul, transpose_a=transpose_a, transpose_b=transpose_b
    )
    if not split:
        return multiply(a, b)
    (a, rest_a), (b, rest_b) = map(distribution.bfloat16_parts, (a, b))
    return multiply(a, b) + (multiply(a, rest_b) + multiply(rest_a, b))


def dot_products(a: tf.Tensor, b: tf.Tensor, *, split: bool) -> tf.Tensor:
    """Dot products of the rows of a [m, p] and b [n, p], float32 [m, n].

    Those of the gradient are split, too.
    """
    if not split:
        return tf.matmul(a, b, transpose_b=True)

    @tf.custom_gradient
    def of_rows(a: tf.Tensor, b: tf.Tensor) -> Any:
        def gradient(g: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return (
                matmul(g, b, split=True),
                matmul(g, a, split=True, transpose_a=True),
            )

        return matmul(a, b, split=True, transpose_b=True), gradient

    return of_rows(a, b)
