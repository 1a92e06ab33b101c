"""Clusters of local features."""

import contexts
import numpy as np
import photographs
import pytest
import small
import tensorflow as tf

from tf_contrastive.evaluation import kmeans


def test_local_clusters_are_regions():
    features = np.zeros([6, 8, 3])
    features[:, :4] = [1, 0, 0.1]
    features[:3, 4:] = [0, 2, 0]
    features[3:, 4:] = [0, 0, -1]
    clusters, explained = kmeans.local_clusters(features, 3)
    expected = np.zeros([6, 8], int)
    expected[:3, 4:] = 1
    expected[3:, 4:] = 2
    np.testing.assert_array_equal(clusters, expected)  # By first appearance.
    assert explained == pytest.approx(1.0)
    two, less = kmeans.local_clusters(features, 2)
    assert two.max() == 1
    assert 0.2 < less < 1
    # Fewer places than clusters, with equal directions.
    equal, _ = kmeans.local_clusters(features[:1, :3], 16)
    np.testing.assert_array_equal(equal, 0)
    # Gray pixels differ only in their length.
    gray = np.repeat([[0.2, 0.9]], 3, axis=0)[..., np.newaxis] * np.ones(3)
    normalized, _ = kmeans.local_clusters(gray, 2)
    pixels, _ = kmeans.local_clusters(gray, 2, normalize=False)
    assert normalized.max() == 0
    np.testing.assert_array_equal(pixels, [[0, 1]] * 3)


def test_patches_are_squares_of_pixels():
    image = np.arange(64 * 64 * 3, dtype=np.float32).reshape(64, 64, 3)
    patches = kmeans.patches(image)
    assert patches.shape == (32, 32, 12)
    np.testing.assert_array_equal(patches[3, 5], image[6:8, 10:12].reshape(-1))
    assert kmeans.patches(image[:8, :8]).shape == (8, 8, 3)


@pytest.mark.slow
def test_inner_layers_of_a_model():
    encoder = photographs.encoder()
    before = [v.numpy() for v in encoder.variables]
    inner = kmeans.local_features(encoder, 16)
    assert inner.names == tuple(f"stage{n}_block1_relu" for n in (2, 3, 4))
    images = photographs.photographs(4)
    maps = [m.numpy() for m in inner.make(images)]
    assert [m.shape[1] for m in maps] == [8, 4, 2]
    np.testing.assert_allclose(
        maps[-1].mean(axis=(1, 2)), encoder(images), atol=1e-5
    )
    twice = kmeans.local_features(encoder, 16, scale=2)
    assert twice.side == 32
    assert twice.make(tf.image.resize(images, [32, 32]))[-1].shape[1] == 4
    for value, variable in zip(before, encoder.variables, strict=True):
        np.testing.assert_array_equal(value, variable)


def test_an_encoder_without_layers_of_its_own_is_left_out():
    flat = small.convolutions()
    nested = tf.keras.Sequential([flat])
    for encoder, is_left_out in ((flat, False), (nested, True)):
        context = contexts.changed(photographs.context(), encoder=encoder)
        assert bool(kmeans.lacks_layers(context)) is is_left_out


@pytest.mark.slow
def test_kmeans(monkeypatch):
    monkeypatch.setattr(kmeans, "IMAGES", 2)
    monkeypatch.setattr(kmeans, "CLUSTERS", (2, 3))
    context = photographs.context(projection=photographs.head())
    measurement = contexts.measure("kmeans", context)
    assert len(measurement["plots"]) == 2
    clusters = measurement["arrays"]["clusters_0_stage4_block1_relu_3"]
    assert clusters.shape == (4, 4)
    metrics = measurement["metrics"]
    assert metrics["explained_pixels_2"] <= metrics["explained_pixels_3"]
    contexts.check_plots(measurement)
