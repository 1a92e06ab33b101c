"""Momentum encoder: a slow copy of the network, and a queue of its keys.

He et al. 2020 (MoCo), section 3.2 and algorithm 1, with BatchNorm statistics of
the global batch in place of shuffled ones.
"""

import types
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.config.loss import BatchOptions
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.distribution.batch_normalization import synchronize
from tf_contrastive.losses import similarity
from tf_contrastive.model import ring_buffer
from tf_contrastive.model.contrastive_step import Batch, ContrastiveStep


class MomentumEncoder(ContrastiveStep):
    """Trains with MoCo: view 0 of an image is the query, view 1 the key.

    A slow copy of encoder and head makes the keys; negatives are the keys of
    earlier batches. Without `momentum` it changes nothing.
    """

    arguments: tuple[str, ...] = ("momentum", "queue_size")

    def __init__(
        self,
        *args: Any,
        momentum: float | None = None,
        queue_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        loss = self.contrastive_loss
        # A loss of one's own need not know of keys.
        takes_keys = getattr(loss, "takes_keys", False)
        if takes_keys and momentum is None:
            raise ValueError("the loss takes keys: pass momentum")
        if momentum is not None and not takes_keys:
            raise ValueError(
                f"momentum={momentum} makes keys, which the loss does not take:"
                ' use the loss "moco"'
            )
        if momentum is None and queue_size is not None:
            raise ValueError(f"queue_size={queue_size} needs a momentum")
        self.key_branch = None
        if momentum is not None:
            if queue_size is None:
                queue_size = BatchOptions.queue_size
            self.key_branch = KeyBranch(
                self.encoder,
                self.projection_head,
                momentum=momentum,
                queue_size=queue_size,
                normalize=loss.normalize,
            )
        self.momentum, self.queue_size = momentum, queue_size

    def start_key_branch(self) -> None:
        """Gives the key branch, if there is one, the weights of the queries."""
        if self.key_branch is not None:
            self.key_branch.encoder.set_weights(self.encoder.get_weights())

    @classmethod
    def arguments_of_run(
        cls, run: Pretrain, num_classes: int | None
    ) -> dict[str, Any]:
        """The constructor's arguments for a resolved run."""
        arguments = super().arguments_of_run(run, num_classes)
        if run.loss.takes_keys:
            arguments["momentum"] = run.batch.key_momentum
            arguments["queue_size"] = run.batch.queue_size
        return arguments

    def checkpointed(self) -> dict[str, Any]:
        """The key branch, too."""
        parts = super().checkpointed()
        if self.key_branch is not None:
            parts["key_branch"] = self.key_branch
        return parts

    def images_at_once(self, images: int, views: int) -> int:
        """Those of the queries: keys have no gradient."""
        if self.key_branch is not None:
            views = 1
        return super().images_at_once(images, views)

    def batch(self, data: Any, training: bool) -> Batch:
        """Unpacks the data, and makes the keys of view 1."""
        batch = super().batch(data, training)
        if self.key_branch is None:
            return batch
        if batch.views.shape[1] != 2:
            raise ValueError(
                f"{batch.views.shape[1]} views per image: with a momentum there"
                " must be 2, the query's and the key's"
            )
        keys = self.without_gradient(
            self.key_branch, batch.views[:, 1], training
        )
        return batch._replace(
            views=batch.views[:, :1], keys=keys[:, tf.newaxis]
        )

    def loss_arguments(self, batch: Batch) -> dict[str, tf.Tensor]:
        """The keys of this batch, and the queue of earlier ones."""
        if self.key_branch is None:
            return super().loss_arguments(batch)
        return {
            "keys": batch.keys,
            "queue": self.key_branch.queue,
            "queue_mask": self.key_branch.filled(),
        }

    def learn(self, batch: Batch) -> list[str]:
        """One training step, after which the key branch follows."""
        names = super().learn(batch)
        if self.key_branch is not None and batch.keys is not None:
            self.key_branch.follow()
            self.key_branch.enqueue(batch.keys[:, 0])
        return names


class KeyBranch(tf.keras.layers.Layer):
    """Key encoder, key head, and the keys of the latest batches.

    It starts with the weights of the query branch and follows them slowly; its
    BatchNormalization layers keep moving statistics of their own inputs.
    Nothing here has a gradient.

    `momentum` is m of k <- m k + (1 - m) q, `queue_size` Q; `normalize` says
    whether keys are l2-normalised before they are kept.
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
        self.momentum = momentum
        self._normalize = normalize
        self.queue_size = queue_size
        self.encoder, features = _clone(encoder, encoder.input_shape[1:])
        self.projection_head, keys = _clone(projection_head, features)
        self.queue = self.add_weight(
            "queue", [queue_size, *keys], initializer="zeros", trainable=False
        )
        # Keys that were ever put into the queue.
        self.enqueued = self.add_weight(
            "enqueued", [], tf.int64, initializer="zeros", trainable=False
        )
        # Keras does not look into a namespace: the queries' weights are not
        # weights of this layer.
        self._followed = types.SimpleNamespace(
            keys=_trainable(self.encoder, self.projection_head),
            queries=_trainable(encoder, projection_head),
        )
        self.built = True

    @property
    def trainable_weights(self) -> list[tf.Variable]:
        """None: the key branch follows, and is not trained."""
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
        """Returns which slots of the queue hold a key, bool [Q]."""
        return tf.range(self.queue_size, dtype=tf.int64) < self.enqueued

    def follow(self, momentum: float | tf.Tensor | None = None) -> None:
        """Updates k to m k + (1 - m) q, after the step has updated q.

        `momentum`: m of this step; None: that of the constructor.
        """
        m = self.momentum if momentum is None else momentum
        followed = self._followed
        averages = [
            m * k + (1 - m) * q
            for k, q in zip(followed.keys, followed.queries, strict=True)
        ]
        distribution.assign(followed.keys, averages)

    def enqueue(self, keys: tf.Tensor) -> None:
        """Puts the keys [B, P] of all replicas in place of the oldest ones."""
        if self._normalize:
            keys = similarity.l2_normalize(keys)
        ring_buffer.enqueue(
            [self.queue],
            self.enqueued,
            [keys],
            f"queue_size={self.queue_size} is less than the {{size}} images of"
            " a global batch: use a longer queue",
        )


def _trainable(*layers: tf.keras.layers.Layer) -> list[tf.Variable]:
    return [v for layer in layers for v in layer.trainable_variables]


def _clone(
    layer: tf.keras.layers.Layer, input_shape: tuple[int, ...]
) -> tuple[tf.keras.layers.Layer, tuple[int, ...]]:
    """Copies a built layer, weights included; and its output's shape.

    Both shapes are those of one example.
    """
    clone = tf.keras.models.clone_model(layer)
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        synchronize(clone)  # Layers of layers have made Keras' own again.
    output = clone(tf.keras.Input(input_shape))
    clone.set_weights(layer.get_weights())
    return clone, tuple(output.shape[1:])
