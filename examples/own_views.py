"""Views of your own: a function of a crop, or a Keras layer."""

import tensorflow as tf

from tf_contrastive import datasets, views


def my_view(image, seed, strength=0.4):
    """Brightens a crop float32 [S, S, 3]; `seed` is int32 [2]."""
    image = tf.image.stateless_random_brightness(image, strength, seed)
    return tf.clip_by_value(image, 0.0, 1.0)


turned = tf.keras.layers.RandomRotation(0.1)

if __name__ == "__main__":
    for part, options in ((my_view, {"strength": 0.2}), (turned, {})):
        policy = views.build(part, image_size=8, flip=False, **options)
        batches = datasets.training_batches(
            datasets.source("digits"),
            datasets.ViewMaker(views.Views(policy, 2)),
            datasets.Order(batch_size=64, seed=0),
        )
        images, labels = next(iter(batches))
        print(images.shape, labels.shape, float(tf.reduce_mean(images)))
