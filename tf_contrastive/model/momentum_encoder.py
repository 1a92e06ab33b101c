"""Momentum contrast: a slow copy of the network, and a queue of its keys.

Layer 4. He et al. 2020 ("MoCo"), section 3.2 and algorithm 1, with the
statistics of the global batch in place of shuffled batch normalization.
"""

import types

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.losses import similarity


class KeyBranch(tf.keras.layers.Layer):
    """Key encoder, key head, and the keys of the latest batches.

    It starts with the weights of the query branch, which it follows at a
    distance; only its BatchNormalization layers take their moving statistics
    from what passes through themselves. Nothing here has a gradient.

    Args:
      encoder: the query encoder, images [N, H, W, K] -> h [N, D].
      projection_head: the query head, h [N, D] -> z [N, P], built.
      momentum: m of k <- m k + (1 - m) q, in [0, 1).
      queue_size: Q, keys kept as negatives.
      normalize: whether keys are l2-normalised before they are kept.

    Raises:
      ValueError: for a momentum or a queue size out of its range.
    """

    def __init__(
        self,
        encoder: tf.keras.Model,
        projection_head: tf.keras.layers.Layer,
        *,
        momentum: float,
        queue_size: int,
        normalize: bool = True,
    ) -> None:
        super().__init__(name="key_branch", dtype="float32")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum}: must be in [0, 1)")
        if queue_size < 1:
            raise ValueError(f"queue_size={queue_size}: must be at least 1")
        self._momentum = momentum
        self._normalize = normalize
        self.queue_size = queue_size
        self.encoder, features = _clone(encoder, encoder.input_shape[1:])
        self.projection_head, keys = _clone(projection_head, features)
        self.queue = self.add_weight(
            "queue",
            [queue_size, *keys],
            initializer="zeros",
            trainable=False,
        )
        # Keys that were ever put into the queue.
        self.enqueued = self.add_weight(
            "enqueued", [], tf.int64, initializer="zeros", trainable=False
        )
        # Held where Keras does not look: queries are no part of this layer.
        self._followed = types.SimpleNamespace(
            keys=_trainable(self.encoder, self.projection_head),
            queries=_trainable(encoder, projection_head),
        )
        self.built = True

    @property
    def trainable_weights(self) -> list[tf.Variable]:
        """None: what is followed is not trained."""
        return []

    @property
    def non_trainable_weights(self) -> list[tf.Variable]:
        """All weights, the queue and its counter."""
        return [
            *self.encoder.weights,
            *self.projection_head.weights,
            self.queue,
            self.enqueued,
        ]

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Makes keys [N, P] of images [N, H, W, K], without a gradient."""
        features = self.encoder(images, training=training)
        keys = self.projection_head(features, training=training)
        return tf.stop_gradient(keys)

    def filled(self) -> tf.Tensor:
        """Which slots of the queue hold a key, bool [Q]."""
        return tf.range(self.queue_size, dtype=tf.int64) < self.enqueued

    def follow(self) -> None:
        """k <- m k + (1 - m) q; call it once the step has updated q."""
        m, followed = self._momentum, self._followed
        averages = [
            m * k + (1 - m) * q
            for k, q in zip(followed.keys, followed.queries, strict=True)
        ]
        distribution.assign(followed.keys, averages)

    def enqueue(self, keys: tf.Tensor) -> None:
        """Puts this replica's keys [B, P], and the others', into the queue.

        The keys of the global batch, in the order of the replicas, take the
        place of the oldest ones.

        Raises:
          ValueError: if the queue has no room for the global batch; if its size
            is known only once the step runs, that raises InvalidArgumentError.
        """
        if self._normalize:
            keys = similarity.l2_normalize(keys)
        keys = distribution.cross_replica_concat(keys)
        size = keys.shape[0]
        message = (
            f"queue_size={self.queue_size} is less than the"
            f" {size or 'number of'} images of a global batch: give a longer"
            " queue"
        )
        count = tf.shape(keys, tf.int64)[0]
        if size is None:
            tf.debugging.assert_less_equal(
                count, tf.constant(self.queue_size, tf.int64), message
            )
        elif size > self.queue_size:
            raise ValueError(message)
        slots = tf.range(count) + self.enqueued
        queue = tf.tensor_scatter_nd_update(
            self.queue, slots[:, tf.newaxis] % self.queue_size, keys
        )
        distribution.assign(
            [self.queue, self.enqueued], [queue, self.enqueued + count]
        )


def _trainable(*layers: tf.keras.layers.Layer) -> list[tf.Variable]:
    return [v for layer in layers for v in layer.trainable_variables]


def _clone(
    layer: tf.keras.layers.Layer, input_shape: tuple[int, ...]
) -> tuple[tf.keras.layers.Layer, tuple[int, ...]]:
    """Copies a built layer or model, weights included.

    Args:
      layer: what is copied.
      input_shape: of one example.

    Returns:
      The copy, and the shape of what it makes of one example.
    """
    clone = tf.keras.models.clone_model(layer)
    output = clone(tf.keras.Input(input_shape))
    clone.set_weights(layer.get_weights())
    return clone, tuple(output.shape[1:])
