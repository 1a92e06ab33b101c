"""Views of your own: a function image -> view, or a Keras layer of images."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config import own
from tf_contrastive.views import prng

# A uniform number is a multiple of 2**-24.
_SEEDS = 2.0**24


class OwnOperation:
    """Applies a function to each image, or a Keras layer to a batch of them.

    Args:
      part: a function of an image, which may take `seed`, int32 [2]; or a Keras
        layer of images float32 [m, h, w, 3], which draws its own numbers.
      options: of the function.
      side: of its results in pixels, S.
    """

    def __init__(
        self, part: Any, options: Mapping[str, Any], side: int
    ) -> None:
        self._part, self._options, self._side = part, options, side

    @property
    def streams(self) -> dict[str, int]:
        """Two numbers per view, its seed."""
        return {"own": 2}

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Makes float32 [m, S, S, 3] in [0, 1] of images [m, h, w, 3]."""
        del static
        if isinstance(self._part, tf.keras.layers.Layer):
            return self._checked(self._part(pixels, training=True), 1)
        seeds = tf.cast(uniforms["own"] * _SEEDS, tf.int32)
        return tf.map_fn(
            lambda row: self._view(*row),
            (pixels, seeds),
            fn_output_signature=tf.TensorSpec(
                [self._side, self._side, 3], tf.float32
            ),
        )

    def _view(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        options = dict(self._options)
        if own.takes(self._part, "seed"):
            options["seed"] = seed
        return self._checked(self._part(image, **options), 0)

    def _checked(self, view: Any, first: int) -> tf.Tensor:
        """Returns views as float32 in [0, 1]; `first` is the rows' axis."""
        view, side = tf.convert_to_tensor(view), self._side
        if view.dtype == tf.uint8:
            view = tf.cast(view, tf.float32) / 255.0
        fits = view.shape[first:].is_compatible_with([side, side, 3])
        if not fits or not view.dtype.is_floating:
            raise errors.UserError(
                f"augmentation {own.name_of(self._part)} returns"
                f" {view.dtype.name} of shape {view.shape}: must be floats in"
                f" [0, 1], or uint8, of shape [{side}, {side}, 3]"
            )
        return tf.ensure_shape(
            tf.cast(view, tf.float32), [*view.shape[:first], side, side, 3]
        )
