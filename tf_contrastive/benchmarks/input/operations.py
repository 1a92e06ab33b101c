"""What an operation of a policy costs the host, and a policy a device."""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_contrastive import encoders
from tf_contrastive import views as views_module
from tf_contrastive.benchmarks import measure
from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE

# What a device does beside changing colours, and with how many views.
_ENCODER = "resnet50"
_ENCODED = 16


@dataclasses.dataclass(frozen=True)
class _Single(views_module.Policy):
    """One operation, as a policy applies it."""

    operation: Any

    @property
    def operations(self) -> tuple[Any, ...]:
        """The operation."""
        return (self.operation,)


def profile(
    policies: Sequence[str], size: int, repeats: int
) -> list[dict[str, Any]]:
    """Milliseconds a view of each operation of policies, each by itself."""
    inputs = _noise(512 if size <= CIFAR_STEM_MAX_SIDE else 32, size)
    rows = []
    for policy in policies:
        built = views_module.build(policy, image_size=size)
        for operation in built.operations:
            alone = _Single(size, operation)
            call = tf.function(alone.photometric, autograph=False)
            rows.append(
                {
                    "policy": policy,
                    "image_size": size,
                    "operation": type(operation).__name__,
                    "milliseconds_per_view": _milliseconds(
                        call, inputs, repeats
                    ),
                }
            )
    return rows


def device_fractions(
    policies: Sequence[str], size: int, repeats: int
) -> list[dict[str, Any]]:
    """What policies cost a device, of an encoder's forward and backward pass.

    Colours are compiled as in training, the encoder is run as in training.
    """
    inputs = _noise(64, size)
    encoder = encoders.build(_ENCODER, stem="auto", image_shape=(size, size, 3))

    @tf.function(autograph=False)
    def step(pixels: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(encoder(pixels, training=True))
        return tape.gradient(total, encoder.trainable_variables)

    encoding = _milliseconds(step, (inputs[0][:_ENCODED],), repeats)
    rows = []
    for policy in policies:
        built = views_module.build(policy, image_size=size)
        coloring = functools.partial(built.photometric, static=True)
        call = tf.function(coloring, jit_compile=True, autograph=False)
        milliseconds = _milliseconds(call, inputs, repeats)
        rows.append(
            {
                "policy": policy,
                "image_size": size,
                "encoder": _ENCODER,
                "compiled_milliseconds_per_view": milliseconds,
                "encoder_milliseconds_per_view": encoding,
                "device_fraction": milliseconds / encoding,
            }
        )
    return rows


def _noise(count: int, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Views float32 [count, S, S, 3], and their seeds."""
    pixels = tf.random.stateless_uniform([count, size, size, 3], [0, 1])
    seeds = tf.random.stateless_uniform(
        [count, 2], [0, 2], None, None, tf.int32
    )
    return pixels, seeds


def _milliseconds(
    call: Callable[..., Any], inputs: tuple[tf.Tensor, ...], repeats: int
) -> float:
    """The median of some calls after the first, for each view."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        tf.nest.map_structure(lambda x: x[:1].numpy(), call(*inputs))
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds[1:]) / len(inputs[0])


def profile_table(rows: list[dict[str, Any]]) -> str:
    """What `profile` measured, as text."""
    return measure.table(
        {
            "policy": "{policy}",
            "pixels": "{image_size}",
            "operation": "{operation}",
            "ms/view": "{milliseconds_per_view:.3f}",
        },
        rows,
    )


def device_table(rows: list[dict[str, Any]]) -> str:
    """What `device_fractions` measured, as text."""
    return measure.table(
        {
            "policy": "{policy}",
            "pixels": "{image_size}",
            "compiled ms/view": "{compiled_milliseconds_per_view:.3f}",
            "encoder": "{encoder}",
            "its ms/view": "{encoder_milliseconds_per_view:.1f}",
            "share": "{device_fraction:.1%}",
        },
        rows,
    )
