"""Data of your own: a tf.data.Dataset, or arrays, for each split."""

import sklearn.datasets
import tensorflow as tf

from tf_contrastive import datasets, views


def my_data(split):
    """Returns (image, label) of a split: the last 400 digits are `test`."""
    digits = sklearn.datasets.load_digits()
    rows = {"train": slice(0, -400), "test": slice(-400, None)}[split]
    parts = digits.images[rows] / 16, digits.target[rows]
    return tf.data.Dataset.from_tensor_slices(parts)


if __name__ == "__main__":
    source = datasets.from_dataset(my_data("train"))
    print(source.info.num_examples, source.info.num_classes)
    batches = datasets.training_batches(
        source,
        datasets.ViewMaker(views.Views(views.build("crop", image_size=8), 2)),
        datasets.Order(batch_size=128, seed=0),
    )
    print([part.shape for part in next(iter(batches))])
