"""A loss of your own: each first view finds its second one in the batch."""

import tensorflow as tf

from tf_contrastive import datasets, encoders, heads, losses, views
from tf_contrastive.model import ContrastiveModel


def my_loss(projections, temperature=0.1):
    """Returns the loss of each first view, [B, 1], of [B, 2, P]."""
    z = tf.math.l2_normalize(projections, axis=-1)
    everyone = losses.global_batch(z)  # Of all replicas.
    own = everyone.first + tf.range(tf.shape(z)[0])
    logits = z[:, 0] @ tf.transpose(everyone.projections[:, 1]) / temperature
    return tf.nn.sparse_softmax_cross_entropy_with_logits(own, logits)[:, None]


if __name__ == "__main__":
    crop = views.build("crop", image_size=8, min_crop_area=0.5, flip=False)
    batches = datasets.training_batches(
        datasets.source("digits"),
        datasets.ViewMaker(views.Views(crop, 2)),
        datasets.Order(batch_size=256, seed=0),
    )
    encoder = encoders.build("resnet10", width=0.25, image_shape=(8, 8, 3))
    model = ContrastiveModel(encoder, heads.build("mlp"), my_loss)
    model.compile(tf.keras.optimizers.SGD(0.2, momentum=0.9))
    model.fit(batches, steps_per_epoch=5, epochs=3, verbose=2)
