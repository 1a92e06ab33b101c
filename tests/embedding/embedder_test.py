"""The embedder: the encoder's own outputs, in order, and its checksum."""

import numpy as np
import pytest
import replicas as share
import small
import tensorflow as tf

from tf_contrastive import embedding
from tf_contrastive.base import errors


def _encoder():
    return small.convolutions(4, (5,), tf.keras.layers.BatchNormalization)


def _data(n=10):
    images = np.random.default_rng(0).random([n, 4, 4, 3], np.float32)
    return images, np.arange(n) - 1


@pytest.mark.parametrize(
    ("replicas", "sizes"),
    [(1, [4, 4, 2]), (2, [5, 1]), (2, [2, 7]), (3, [1]), (3, [2, 7])],
    ids=str,
)
def test_every_example_counts_once_on_any_number_of_replicas(replicas, sizes):
    strategy = share.strategy(replicas)
    images, labels = _data(sum(sizes))
    parts = (np.split(x, np.cumsum(sizes)[:-1]) for x in (images, labels))
    batches = list(zip(*parts, strict=True))
    traces = []
    with strategy.scope():
        encoder = _encoder()

        def counted(x, training):
            traces.append(x.shape)
            return encoder(x, training=training)

        embeddings, found = embedding.embed(counted, batches)
    expected = encoder(images, training=False)
    np.testing.assert_allclose(embeddings, expected, atol=1e-6)
    assert found.tolist() == labels.tolist()
    # Compiled once, for one shape: a share of the first batch.
    assert set(traces) == {(-(-sizes[0] // replicas), 4, 4, 3)}
    assert len(traces) == replicas


def test_the_checksum_depends_on_values_and_their_order():
    class Holder(tf.Module):
        def __init__(self, *values):
            super().__init__()
            self.weights = [tf.Variable(v, name="any") for v in values]

    reference = embedding.checksum(Holder([1.0, 2.0], [3.0]))
    assert len(reference) == 64
    assert embedding.checksum(Holder([1.0, 2.0], [3.0])) == reference
    assert embedding.checksum(Holder([3.0], [1.0, 2.0])) != reference
    assert embedding.checksum(Holder([1.0], [2.0, 3.0])) != reference


def test_the_checksum_of_replicas_is_that_of_one():
    one = _encoder()
    random = np.random.default_rng(0)
    one.set_weights([random.random(x.shape) for x in one.weights])
    with share.strategy(3).scope():
        three = _encoder()
    three.set_weights(one.get_weights())
    assert embedding.checksum(three) == embedding.checksum(one)


def test_no_images_is_an_error_of_the_user():
    with pytest.raises(errors.UserError, match="no readable image"):
        embedding.embed(_encoder(), [])
