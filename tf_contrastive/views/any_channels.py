"""Operations of three channels on views of any number of channels."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive.views import prng
from tf_contrastive.views.ablation import Noise
from tf_contrastive.views.color import ColorJitter, Grayscale, InRandomOrder
from tf_contrastive.views.own import OwnOperation
from tf_contrastive.views.selection import RandomApply

_OF_COLORS = (ColorJitter, InRandomOrder, Grayscale)
# They take any number of channels.
_OF_ANY = (Noise, OwnOperation)


@dataclasses.dataclass(frozen=True)
class OnColors:
    """Applies an operation to three channels of views, and keeps the others."""

    operation: Any  # `policies.Photometric`, as of all classes here.
    colors: tuple[int, ...]

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers per view, by stream."""
        return self.operation.streams

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, K] in [0, 1]."""
        planes = tf.unstack(pixels, axis=-1)
        chosen = tf.stack([planes[k] for k in self.colors], axis=-1)
        changed = self.operation(chosen, uniforms, static)
        for k, plane in zip(
            self.colors, tf.unstack(changed, axis=-1), strict=True
        ):
            planes[k] = plane
        return tf.stack(planes, axis=-1)


@dataclasses.dataclass(frozen=True)
class OnAll:
    """Applies an operation to all channels in the same way, by threes."""

    operation: Any

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers per view, by stream."""
        return self.operation.streams

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, K] in [0, 1]."""
        channels = pixels.shape[-1]
        missing = -channels % 3
        whole = tf.pad(pixels, [[0, 0]] * 3 + [[0, missing]])
        parts = tf.split(whole, (channels + missing) // 3, axis=-1)
        changed = [self.operation(part, uniforms, static) for part in parts]
        return tf.concat(changed, axis=-1)[..., :channels]


def on_channels(
    operations: Iterable[Any], colors: tuple[int, ...]
) -> Iterator[Any]:
    """Yields operations of any number of channels in the place of those of 3.

    Those of colours are left out if there are no `colors`.
    """
    for operation in operations:
        if isinstance(operation, RandomApply):
            parts = tuple(on_channels(operation.operations, colors))
            if parts:
                yield dataclasses.replace(operation, operations=parts)
        elif isinstance(operation, _OF_ANY):
            yield operation
        elif not isinstance(operation, _OF_COLORS):
            yield OnAll(operation)
        elif colors:
            yield OnColors(operation, colors)


def left_out(operations: Iterable[Any], colors: tuple[int, ...]) -> list[str]:
    """Returns the names of the operations that `on_channels` leaves out."""
    return [
        type(x).__name__
        for x in operations
        if not colors and isinstance(x, _OF_COLORS)
    ]
