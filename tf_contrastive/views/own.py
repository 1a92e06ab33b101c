"""Views of your own: a function image -> view, or a Keras layer of images."""

import dataclasses
import inspect
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.base import callables, errors
from tf_contrastive.views import prng

# A uniform number is a multiple of 2**-24.
_SEEDS = 2.0**24
# Views are in [0, 1], or standardised.
_LARGEST = 16.0


class OwnOperation:
    """Applies a function to each image, or a Keras layer to a batch of them.

    A function may take `seed`, int32 [2], and `options`; a layer draws its own
    numbers. Their results have the `shape` (S, S, K).
    """

    def __init__(
        self, part: Any, options: Mapping[str, Any], shape: tuple[int, ...]
    ) -> None:
        self._part, self._options, self._shape = part, options, shape

    @property
    def streams(self) -> dict[str, int]:
        """Two numbers per view, its seed."""
        return {"own": 2}

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Makes float32 [m, S, S, K] in [0, 1] of images [m, h, w, K]."""
        del static
        if isinstance(self._part, tf.keras.layers.Layer):
            return self._checked(self._of_layer(pixels), 1)
        seeds = tf.cast(uniforms["own"] * _SEEDS, tf.int32)
        count = pixels.shape[0] or tf.shape(pixels)[0]

        def step(
            i: tf.Tensor, views: tf.TensorArray
        ) -> tuple[tf.Tensor, tf.TensorArray]:
            return i + 1, views.write(i, self._view(pixels[i], seeds[i]))

        # Not tf.map_fn: if the function fails in a graph, no strategy of
        # several replicas can be entered any more.
        start = tf.TensorArray(tf.float32, count, element_shape=self._shape)
        _, views = tf.while_loop(lambda i, _: i < count, step, (0, start))
        return views.stack()

    def _of_layer(self, pixels: tf.Tensor) -> tf.Tensor:
        layer = distribution.with_autograph(self._part)
        # Some of KerasCV do not take it.
        call = inspect.signature(type(self._part).__call__)
        takes_training = any(
            p.name == "training" or p.kind is p.VAR_KEYWORD
            for p in call.parameters.values()
        )
        options = {"training": True} if takes_training else {}
        views = layer(pixels, **options)
        if getattr(self._part, "trainable_variables", None):
            raise errors.UserError(
                f"augmentation {callables.name_of(self._part)} has weights,"
                " which nothing trains: make it a part of the encoder"
            )
        return views

    def _view(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        options = dict(self._options)
        if callables.takes(self._part, "seed"):
            options["seed"] = seed
        function = distribution.with_autograph(self._part)
        for _ in range(2):  # A Keras layer draws its seed at its first call.
            before = _states()
            view = function(image, **options)
            if tf.executing_eagerly() or _states() == before:
                return self._checked(view, 0)
        raise errors.UserError(
            f"augmentation {callables.name_of(self._part)} draws numbers of"
            " Python or NumPy, which are drawn once for all images: use"
            " tf.random.stateless_uniform with its parameter `seed`"
        )

    def _checked(self, view: Any, first: int) -> tf.Tensor:
        """Returns views as float32 in [0, 1]; `first` is the rows' axis."""
        shape, name = self._shape, callables.name_of(self._part)
        form = f"must be floats in [0, 1], or uint8, of shape {[*shape]}"
        try:
            view = tf.convert_to_tensor(view)
        except (TypeError, ValueError) as error:
            raise errors.UserError(
                f"augmentation {name} returns {type(view).__name__}: {form}"
            ) from error
        if view.dtype == tf.uint8:
            view = tf.cast(view, tf.float32) / 255.0
        fits = view.shape[first:].is_compatible_with(shape)
        if not fits or not view.dtype.is_floating:
            raise errors.UserError(
                f"augmentation {name} returns {view.dtype.name} of shape"
                f" {view.shape}: {form}"
            )
        view = tf.cast(view, tf.float32)
        check = tf.debugging.Assert(
            tf.reduce_max(tf.abs(view)) <= _LARGEST,  # Not for a NaN.
            [
                f"augmentation {name} returns values outside of [0, 1]:",
                tf.reduce_min(view),
                tf.reduce_max(view),
            ],
        )
        with tf.control_dependencies([check]):
            return tf.ensure_shape(view, [*view.shape[:first], *shape])


@dataclasses.dataclass(frozen=True)
class WholeView:
    """Makes views of whole images, in place of a crop."""

    operation: OwnOperation

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers per view, by stream."""
        return self.operation.streams

    def __call__(
        self, images: tf.Tensor, image_ids: tf.Tensor, uniforms: prng.Uniforms
    ) -> tf.Tensor:
        """Makes views float32 [m, S, S, K] of images [n, h, w, K]."""
        return self.operation(tf.gather(images, image_ids), uniforms)

    def reduction(self, *_: Any) -> tf.Tensor:
        """A whole image is never halved, float32 [1]."""
        return tf.ones([1])


def _states() -> tuple[Any, ...]:
    """States of the generators of Python and NumPy that all modules share."""
    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2:]
