"""Small views: a second, smaller size of views in the same step.

Multi-crop (Caron et al. 2020, SwAV, section 2.3).
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.model.contrastive_step import Batch, ContrastiveStep


class SmallViews(ContrastiveStep):
    """Takes {"views": [B, V, H, W, K], "small_views": [B, S, h, w, K]}.

    With `augment`, these have "seeds" [B, V + S, 2]. As in SwAV's code the
    encoder passes once over the views of each size, so that BatchNormalization
    has statistics of each size and updates the moving ones by the large views
    first; then the head passes once over all. Probe and nearest neighbors see
    the large views.
    """

    def batch(self, data: Any, training: bool) -> Batch:
        """Unpacks the data."""
        inputs, labels, weights = tf.keras.utils.unpack_x_y_sample_weight(data)
        if not isinstance(inputs, Mapping):
            return super().batch(data, training)
        if not {"views", "small_views"} <= inputs.keys():
            raise ValueError(
                f"inputs of {', '.join(inputs)}: must be views and small_views"
            )
        loss = self.contrastive_loss
        if not loss.takes_small_views:
            raise ValueError(
                f"small_views: {type(loss).__name__} takes views of one size"
            )
        views = inputs["views"], inputs.get("seeds")
        batch = super().batch((views, labels, weights), training)
        channels = self.encoder.input_shape[-1]
        number = self._num_views.of[training].get("small_views")
        sizes = number, None, None, channels
        small = self.checked(inputs["small_views"], sizes)
        return batch._replace(small_views=small)

    def features(self, batch: Batch, training: bool) -> tf.Tensor:
        """The features of all views, [B, V + S, D]."""
        large = super().features(batch, training)
        if batch.small_views is None:
            return large
        take_any_size(self.encoder)
        try:
            small = self.features_of(batch.small_views, training)
        except ValueError as error:
            _, height, width, _ = self.encoder.input_shape
            small_height, small_width = batch.small_views.shape[2:4]
            raise errors.UserError(
                f"encoder {self.encoder.name} takes images of {height} x"
                f" {width} pixels alone, and no small views of {small_height} x"
                f" {small_width}: use a convolutional network with a global"
                " average"
            ) from error
        return tf.concat([large, small], axis=1)


def take_any_size(network: tf.keras.Model) -> None:
    """Lets a network of Keras take images of another size than it declares."""
    for part in (network, *network.submodules):
        if isinstance(part, tf.keras.Model):
            part.input_spec = None
