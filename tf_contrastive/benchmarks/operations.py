"""The cost of each operation on the host, and of a policy on a device."""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_contrastive import encoders, views
from tf_contrastive.benchmarks import measure
from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE

# The encoder with whose passes a policy on the device is compared, and the
# number of views that it encodes.
_ENCODER = "resnet50"
_ENCODED = 16

PROFILE = {
    "policy": "{policy}",
    "pixels": "{image_size}",
    "operation": "{operation}",
    "ms/view": "{milliseconds_per_view:.3f}",
}
DEVICE = {
    "policy": "{policy}",
    "pixels": "{image_size}",
    "compiled ms/view": "{compiled_milliseconds_per_view:.3f}",
    "encoder": "{encoder}",
    "encoder ms/view": "{encoder_milliseconds_per_view:.1f}",
    "fraction": "{device_fraction:.1%}",
}


@dataclasses.dataclass(frozen=True)
class _Single(views.Policy):
    """One operation, as a policy applies it."""

    operation: Any

    @property
    def operations(self) -> tuple[Any, ...]:
        """The operation."""
        return (self.operation,)


def profile(
    policies: Sequence[str], size: int, repeats: int
) -> list[measure.Row]:
    """Measures each operation of the policies alone, in ms per view."""
    inputs = _noise(512 if size <= CIFAR_STEM_MAX_SIDE else 32, size)
    rows = []
    for name in policies:
        policy = views.build(name, image_size=size)
        for operation in policy.operations:
            alone = _Single(size, operation)
            call = tf.function(alone.photometric, autograph=False)
            rows.append(
                {
                    "policy": name,
                    "image_size": size,
                    "operation": type(operation).__name__,
                    "milliseconds_per_view": _per_view(call, inputs, repeats),
                }
            )
    return rows


def device(
    policies: Sequence[str], size: int, repeats: int
) -> list[measure.Row]:
    """Measures compiled policies, as a fraction of an encoder's two passes."""
    inputs = _noise(64, size)
    encoder = encoders.build(_ENCODER, stem="auto", image_shape=(size, size, 3))

    @tf.function(autograph=False)
    def step(pixels: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(encoder(pixels, training=True))
        return tape.gradient(total, encoder.trainable_variables)

    encoding = _per_view(step, (inputs[0][:_ENCODED],), repeats)
    rows = []
    for name in policies:
        policy = views.build(name, image_size=size)
        photometric = functools.partial(policy.photometric, static=True)
        call = tf.function(photometric, jit_compile=True, autograph=False)
        milliseconds = _per_view(call, inputs, repeats)
        rows.append(
            {
                "policy": name,
                "image_size": size,
                "encoder": _ENCODER,
                "compiled_milliseconds_per_view": milliseconds,
                "encoder_milliseconds_per_view": encoding,
                "device_fraction": milliseconds / encoding,
            }
        )
    return rows


def _noise(count: int, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns views float32 [count, S, S, 3] and their seeds."""
    pixels = tf.random.stateless_uniform([count, size, size, 3], [0, 1])
    seeds = tf.random.stateless_uniform(
        [count, 2], [0, 2], None, None, tf.int32
    )
    return pixels, seeds


def _per_view(
    function: Callable[..., Any], inputs: tuple[tf.Tensor, ...], repeats: int
) -> float:
    """Returns the median milliseconds of a call, per view."""

    def call() -> None:
        tf.nest.map_structure(lambda x: x[:1].numpy(), function(*inputs))

    times = measure.in_turns({"": call}, repeats, warm_up=1)
    return 1000 * statistics.median(times[""]) / len(inputs[0])
