"""Operations of three channels on views of any number of channels."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive.base import terminal
from tf_contrastive.views import prng
from tf_contrastive.views.ablation import Noise
from tf_contrastive.views.color import ColorJitter, Grayscale, InRandomOrder
from tf_contrastive.views.own import OwnOperation
from tf_contrastive.views.selection import RandomApply

_OF_COLORS = (ColorJitter, InRandomOrder, Grayscale)
# They take any number of channels.
_OF_ANY = (Noise, OwnOperation)
# Once for a policy that is built again.
_report_once = functools.cache(terminal.info)


@dataclasses.dataclass(frozen=True)
class _OfAny:
    """An operation of three channels, and its random numbers."""

    operation: Any  # `policies.Photometric`, as of all classes here.

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers per view, by stream."""
        return self.operation.streams


class OnAll(_OfAny):
    """Applies an operation to all channels in the same way, by threes."""

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


@dataclasses.dataclass(frozen=True)
class OnColors(_OfAny):
    """Applies an operation to three channels of views, and keeps the others."""

    colors: tuple[int, ...]

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, K] in [0, 1]."""
        planes = tf.unstack(pixels, axis=-1)
        chosen = tf.stack([planes[k] for k in self.colors], axis=-1)
        changed = tf.unstack(self.operation(chosen, uniforms, static), axis=-1)
        for k, plane in zip(self.colors, changed, strict=True):
            planes[k] = plane
        return tf.stack(planes, axis=-1)


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


def report_left_out(policy: str, operations: Iterable[Any]) -> None:
    """Logs which operations `on_channels` leaves out without colours."""
    names = [type(x).__name__ for x in operations if isinstance(x, _OF_COLORS)]
    if names:
        _report_once(
            f"augmentation {policy}: {', '.join(names)} left out, since"
            " color_channels are not set"
        )
