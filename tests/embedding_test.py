"""Bulk embedding: the encoder's own outputs, in order, nothing changed."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import config, embedding


def _encoder():
    inputs = tf.keras.Input([4, 4, 3])
    x = tf.keras.layers.Conv2D(5, 3)(inputs)
    x = tf.keras.layers.BatchNormalization()(x)
    return tf.keras.Model(inputs, tf.keras.layers.GlobalAveragePooling2D()(x))


def _data(n=10):
    images = np.random.default_rng(0).random([n, 4, 4, 3], np.float32)
    return images, np.arange(n) - 1


def test_embeds_ragged_batches_in_order_with_one_graph():
    images, labels = _data()
    encoder, traces = _encoder(), []

    def counted(x, training):
        traces.append(x.shape)
        return encoder(x, training=training)

    batches = tf.data.Dataset.from_tensor_slices((images, labels)).batch(4)
    embeddings, found = embedding.embed(counted, batches)
    expected = encoder(images, training=False)
    np.testing.assert_allclose(embeddings, expected, atol=1e-6)
    assert embeddings.dtype == np.float32
    assert found.dtype == np.int32
    assert found.tolist() == labels.tolist()
    assert len(traces) == 1


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("sizes", [[4, 4, 2], [5, 1], [1], [2, 7]], ids=str)
def test_every_example_counts_once_on_any_number_of_replicas(sizes, replicas):
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(replicas)]
    )
    images, labels = _data(sum(sizes))
    ends = np.cumsum(sizes)
    batches = [
        (images[end - size : end], labels[end - size : end])
        for size, end in zip(sizes, ends, strict=True)
    ]
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


def test_embedding_leaves_every_weight_and_statistic():
    encoder = _encoder()
    before = embedding.checksum(encoder)
    embedding.embed(encoder, [_data()])
    assert embedding.checksum(encoder) == before
    encoder(_data()[0], training=True)  # What a broken protocol would do.
    assert embedding.checksum(encoder) != before


def test_checksum_tells_values_and_their_order():
    class Holder(tf.Module):
        def __init__(self, *values):
            super().__init__()
            self.weights = [tf.Variable(v, name="any") for v in values]

    reference = embedding.checksum(Holder([1.0, 2.0], [3.0]))
    assert len(reference) == 64
    assert embedding.checksum(Holder([1.0, 2.0], [3.0])) == reference
    assert embedding.checksum(Holder([3.0], [1.0, 2.0])) != reference
    assert embedding.checksum(Holder([1.0], [2.0, 3.0])) != reference


def test_no_images_is_an_error_of_the_user():
    with pytest.raises(config.UserError, match="no readable image"):
        embedding.embed(_encoder(), [])


@pytest.mark.parametrize("scheme", ["", "ram://"])
def test_npz_holds_embeddings_labels_and_names(scheme, tmp_path):
    path = f"{scheme}{tmp_path}/new/out.npz"
    embeddings = np.random.default_rng(0).random([3, 2], np.float32)
    embedding.write(path, embeddings[:1])
    embedding.write(path, embeddings, np.array([1, 0, 1]), ["cat", "dog"])
    with tf.io.gfile.GFile(path, "rb") as file:
        found = np.load(file, allow_pickle=False)
        np.testing.assert_array_equal(found["embeddings"], embeddings)
        assert found["labels"].tolist() == [1, 0, 1]
        assert found["label_names"].tolist() == ["cat", "dog"]
    assert tf.io.gfile.listdir(f"{scheme}{tmp_path}/new") == ["out.npz"]


def test_unlabelled_embeddings_have_no_labels(tmp_path):
    path = str(tmp_path / "out.npz")
    embedding.write(path, np.zeros([3, 2], np.float32))
    assert np.load(path).files == ["embeddings"]


@pytest.mark.parametrize("name", ["file/out.npz", "folder"])
def test_a_file_that_cannot_be_written_is_an_error_of_the_user(name, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(config.UserError, match="cannot write"):
        embedding.write(str(tmp_path / name), np.zeros([1, 2]))
    with pytest.raises(config.UserError, match="cannot write"):
        embedding.check_writable(str(tmp_path / name))


def test_checking_leaves_nothing_but_the_folder(tmp_path):
    embedding.check_writable(str(tmp_path / "new" / "out.npz"))
    assert list((tmp_path / "new").iterdir()) == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
