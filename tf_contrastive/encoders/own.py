"""Encoders of your own."""

from typing import Any

import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config import encoder as declared
from tf_contrastive.config import own
from tf_contrastive.distribution import own_network


class OwnEncoder(declared.OwnEncoder):
    """A Keras model, or a function that returns one.

    Args:
      part: the model, or the function.
      options: of the function.

    Raises:
      UserError: a ValueError, for something else, or an unknown option.
    """

    def __init__(self, part: Any, options: dict[str, Any]) -> None:
        own.options_of(part, declared.OWN_INPUTS, options, "encoder")
        self._part, self._options = part, options
        super().__init__(network=own.name_of(part))

    def __call__(self, images: tf.Tensor, synchronized: bool) -> tf.Tensor:
        """Maps standardised [N, H, W, K] to features [N, D], or 4-D maps."""
        options = dict(self._options)
        if own.takes(self._part, "image_shape"):
            options["image_shape"] = tuple(images.shape[1:])
        _, x = own_network.apply(
            f"encoder {self.network}", self._part, options, images, synchronized
        )
        if x.shape.rank not in (2, 4):
            raise errors.UserError(
                f"encoder {self.network} returns features of shape {x.shape}:"
                " must be [N, D], or [N, h, w, D], which are averaged"
            )
        return x
