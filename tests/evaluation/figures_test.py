"""The papers' figures: spectra, transformations, t-SNE and K-means."""

import contexts
import numpy as np
import pytest
import small
import tensorflow as tf
from sklearn import datasets as sklearn_datasets

from tf_contrastive import datasets, encoders, errors, exporting, heads, views
from tf_contrastive.config import fields
from tf_contrastive.config.evaluate import Evaluate, evaluate
from tf_contrastive.evaluation import (
    kmeans,
    protocols,
    spectra,
    transformations,
    tsne,
)
from tf_contrastive.lab.claims import color_histograms

_RNG = np.random.RandomState(0)


def _photographs(count=64, side=16):
    china = sklearn_datasets.load_sample_image("china.jpg") / np.float32(255)
    random = np.random.RandomState(4)
    corners = random.randint(0, 380, size=(count, 2))
    return np.stack([china[y : y + side, x : x + side] for y, x in corners])


# ---- Spectra -----------------------------------------------------------------


def test_values_and_shares_of_a_spectrum():
    values = np.array([8.0, 4.0, 2.0, 1.0, 1.0] + [0.0] * 7)
    rotation = np.linalg.qr(_RNG.normal(size=(12, 12)))[0]
    symmetric = spectra.spectrum(rotation * values @ rotation.T)
    np.testing.assert_allclose(symmetric["singular_values"], values, atol=1e-8)
    np.testing.assert_allclose(symmetric["eigenvalues"], values, atol=1e-8)
    assert symmetric["shares"] == pytest.approx({1: 0.5, 10: 1.0})
    # The complex eigenvalues of a rotation have magnitude 1.
    turned = spectra.spectrum(np.array([[0.0, -1.0], [1.0, 0.0]]))
    np.testing.assert_allclose(turned["eigenvalues"], [1, 1])
    assert turned["effective_rank"] == pytest.approx(2.0)
    wide = spectra.spectrum(np.ones([3, 7]))
    assert wide["eigenvalues"] is None
    assert wide["effective_rank"] == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(errors.UserError, match="weights"):
        spectra.spectrum(np.full([2, 2], np.nan))


def test_the_matrix_of_a_linear_projection():
    tf.keras.utils.set_random_seed(1)
    head = heads.build("linear", output=5)
    head(_RNG.normal(size=(64, 7)).astype("f") * 3 + 1, training=True)
    dense, norm = head.layers
    scale = (norm.moving_variance + norm.epsilon) ** -0.5
    expected = dense.kernel * (norm.gamma * scale)
    np.testing.assert_allclose(
        spectra.linear_map(head, 7), expected, rtol=1e-4, atol=1e-6
    )


# ---- Colour histograms -------------------------------------------------------


def test_crops_of_one_colour_share_their_histogram():
    colors = np.arange(8) * 32 + 8  # Each in a bin of its own.
    images = np.broadcast_to(colors[:, None, None, None], [8, 12, 12, 3])
    source = datasets.from_arrays(images.astype(np.uint8), np.arange(8))
    crop = color_histograms.measure(
        source, views.build("crop", image_size=8), 0
    )
    assert crop == {"same_image": 1.0, "other_image": 0.0, "matched": 1.0}
    distorted = views.build(
        "simclr", image_size=8, color_jitter_strength=1.0, blur=False
    )
    distorted = color_histograms.measure(source, distorted, 0)
    assert distorted["same_image"] < 0.5
    assert distorted["matched"] < 1


# ---- Transformations ---------------------------------------------------------


def test_images_are_transformed_as_their_class_says():
    images = _photographs()
    extra = np.concatenate([images, np.full_like(images[..., :1], 0.7)], -1)
    batches = [(extra[:40], None), (extra[40:], None)]
    for name, task in transformations.TASKS.items():
        pixels, kinds = map(
            np.concatenate,
            zip(*transformations.transformed(batches, name, 0), strict=True),
        )
        assert pixels.shape == extra.shape
        assert (pixels[..., 3] == np.float32(0.7)).all()
        counts = np.bincount(kinds, minlength=len(task.fractions))
        np.testing.assert_allclose(counts / 64, task.fractions, atol=0.17)
        np.testing.assert_array_equal(pixels[kinds == 0], extra[kinds == 0])
        distance = np.abs(pixels - extra).mean(axis=(1, 2, 3))
        assert (distance[kinds > 0] > 0).mean() > 0.9, name
        if name == "rotation":
            for image, before, kind in zip(pixels, extra, kinds, strict=True):
                np.testing.assert_array_equal(image, np.rot90(before, kind))
        if name == "color":
            spread = np.ptp(pixels[..., :3], axis=-1).max(axis=(1, 2))
            np.testing.assert_array_equal(spread < 1e-6, kinds == 1)
        # The size of batches makes no difference.
        again, _ = next(transformations.transformed([(extra, 0)], name, 0))
        np.testing.assert_allclose(again, pixels, atol=1e-6)


def test_classes_are_predicted_only_from_features_that_hold_them():
    random = np.random.RandomState(0)
    kinds = random.randint(4, size=900)
    noise = random.normal(size=(900, 6))
    informative = noise + 3 * np.eye(6)[kinds]
    for rows, low, high in ((informative, 0.85, 1.0), (noise, 0.15, 0.35)):
        scores = transformations.predict(
            rows[:600], kinds[:600], rows[600:], kinds[600:], hidden=32
        )
        assert low < scores["top1"] < high
        assert scores["chance"] == pytest.approx(0.25, abs=0.06)
        assert scores["predictions"].shape == (300,)
    # A tenth, for early stopping, has an image of each class from 40 on.
    least = transformations.predict(noise[:40], kinds[:40], noise, kinds)
    assert least["predictions"].shape == (900,)
    with pytest.raises(errors.UserError, match="transforms_train=30"):
        evaluate(transforms_train=30).validate()


# ---- t-SNE -------------------------------------------------------------------


def test_a_map_keeps_clusters_together():
    labels = _RNG.randint(4, size=120)
    centers = _RNG.normal(size=(4, 8))
    rows = (centers[labels] + 0.1 * _RNG.normal(size=(120, 8))).astype("f")
    places, divergence = tsne.tsne(rows, perplexity=10)
    assert places.shape == (120, 2)
    assert 0 < divergence < 2
    distances = ((places[:, None] - places) ** 2).sum(-1)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(1)] == labels).mean() > 0.95
    again, _ = tsne.tsne(rows, perplexity=10)
    np.testing.assert_array_equal(places, again)


def test_maps_of_few_and_of_equal_points():
    assert np.isfinite(tsne.tsne(np.eye(5, 2), perplexity=30)[0]).all()
    assert np.isfinite(tsne.tsne(np.ones([9, 3]))[0]).all()
    with pytest.raises(errors.UserError, match="embeddings"):
        tsne.tsne(np.diag([np.nan] + [1.0] * 8))


def test_random_examples_of_random_classes():
    labels = np.repeat(np.arange(20), 30)
    rows = tsne.choose(labels, 5, 40, seed=1)
    assert len(rows) == 40
    assert len(np.unique(labels[rows])) == 5
    np.testing.assert_array_equal(rows, tsne.choose(labels, 5, 40, seed=1))
    assert len(tsne.choose(np.full(9, -1), 5, 40, seed=1)) == 9


def test_a_legend_names_at_most_twenty_classes():
    labels = np.arange(100)
    for count, legends in ((10, 1), (100, 0)):
        places = {"h": _RNG.normal(size=(100, 2))}
        figure = tsne.plot(places, labels % count, list(map(str, labels)))
        assert len(figure.legends) == legends


# ---- K-means -----------------------------------------------------------------


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
    with pytest.raises(errors.UserError, match="NaN"):
        kmeans.local_clusters(features * np.nan, 2)


def test_patches_are_squares_of_pixels():
    image = np.arange(64 * 64 * 3, dtype=np.float32).reshape(64, 64, 3)
    patches = kmeans.patches(image)
    assert patches.shape == (32, 32, 12)
    np.testing.assert_array_equal(patches[3, 5], image[6:8, 10:12].reshape(-1))
    assert kmeans.patches(image[:8, :8]).shape == (8, 8, 3)


@pytest.fixture(scope="module")
def encoder():
    """A small residual network with statistics of photographs."""
    tf.keras.utils.set_random_seed(0)
    network = encoders.build(
        "resnet10",
        width=0.125,
        stem="cifar",
        image_shape=(16, 16, 3),
        synchronized=False,
    )
    network(_photographs(), training=True)
    return network


@pytest.fixture(scope="module")
def exported(encoder, tmp_path_factory):
    """The same encoder, exported and loaded."""
    folder = str(tmp_path_factory.mktemp("export"))
    return exporting.load(exporting.export(encoder, folder))


@pytest.mark.slow
def test_inner_layers_of_a_model_and_of_its_export(encoder, exported):
    before = [v.numpy() for v in encoder.variables]
    inner = kmeans.local_features(encoder, 16)
    assert inner.names == (
        "stage2_block1_relu",
        "stage3_block1_relu",
        "stage4_block1_relu",
    )
    images = _photographs(4)
    maps = [m.numpy() for m in inner.make(images)]
    assert [m.shape[1] for m in maps] == [8, 4, 2]
    np.testing.assert_allclose(
        maps[-1].mean(axis=(1, 2)), encoder(images), atol=1e-5
    )
    # A SavedModel has no layers; its graph gives the same maps.
    of_graph = kmeans.local_features(exported, 16)
    assert of_graph.side == 16
    for ours, theirs in zip(maps, of_graph.make(images), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    twice = kmeans.local_features(encoder, 16, scale=2)
    assert twice.side == 32
    assert twice.make(tf.image.resize(images, [32, 32]))[-1].shape[1] == 4
    for value, variable in zip(before, encoder.variables, strict=True):
        np.testing.assert_array_equal(value, variable)


def test_an_encoder_without_maps_is_refused():
    flat = tf.keras.Sequential(
        [tf.keras.layers.Flatten(), tf.keras.layers.Dense(4)]
    )
    flat.build([None, 8, 8, 3])
    with pytest.raises(errors.UserError, match="convolutional"):
        kmeans.local_features(flat, 8)


# ---- Protocols ---------------------------------------------------------------


def _context(encoder, labelled=True, projection=None, **options):
    random = np.random.RandomState(3)
    images = (_photographs(160) * 255).astype(np.uint8)
    labels = random.randint(3, size=160) if labelled else None
    train, test = (
        datasets.from_arrays(images[rows], labels[rows] if labelled else None)
        for rows in (slice(0, 100), slice(100, 160))
    )
    return contexts.make(
        encoder,
        train,
        test,
        fields.replace(Evaluate(), embedding_batch_size=32),
        run=fields.replace(small.RUN, image_size=16),
        projection=projection,
        **options,
    )


@pytest.fixture(scope="module")
def head():
    """A linear projection of the encoder's features."""
    linear = heads.build("linear", output=8, batch_norm=False)
    linear(np.ones([2, 64], "f"))
    return linear


@pytest.fixture(scope="module")
def context(encoder, head):
    """The encoder with its projection, on images of three classes."""
    return _context(encoder, projection=head)


def test_spectrum(context, head):
    assert "not linear" in protocols.missing("spectrum", context)
    measurement = contexts.measure("spectrum", context)
    expected = np.linalg.svd(head.layers[0].kernel, compute_uv=False)
    np.testing.assert_allclose(
        measurement["arrays"]["singular_values"], expected, rtol=1e-3
    )
    assert measurement["metrics"]["rows"] == 64
    contexts.check_plots(measurement)


def test_transforms(context):
    measurement = contexts.measure(
        "transforms",
        context,
        transforms_train=80,
        transforms_test=50,
        transforms_hidden=16,
    )
    metrics = measurement["metrics"]
    assert set(metrics) == {
        f"{task}_{name}"
        for task in transformations.TASKS
        for name in ("h", "h_interval", "z", "z_interval", "chance")
    }
    for name, (low, high) in (
        (name, value) for name, value in metrics.items() if "interval" in name
    ):
        top1 = metrics[name.removesuffix("_interval")]
        assert 0 <= low <= top1 <= high <= 1
        # 1.96 standard errors of 50 images, roughly.
        half = 1.96 * np.sqrt(top1 * (1 - top1) / 50)
        assert (high - low) / 2 == pytest.approx(half, abs=0.03)
    # Edges look different from pixels.
    assert metrics["sobel_h"] > 0.7 > metrics["sobel_chance"]
    contexts.check_plots(measurement)


def test_tsne_and_kmeans(context):
    measurement = contexts.measure(
        "tsne", context, tsne_examples=40, tsne_classes=2
    )
    arrays = measurement["arrays"]
    assert arrays["tsne_z"].shape == arrays["tsne_h"].shape
    assert len(np.unique(arrays["tsne_labels"])) == 2
    contexts.check_plots(measurement)
    measurement = contexts.measure(
        "kmeans", context, kmeans_images=2, kmeans_clusters=(2, 3)
    )
    assert len(measurement["plots"]) == 2
    clusters = measurement["arrays"]["clusters_0_stage4_block1_relu_3"]
    assert clusters.shape == (4, 4)
    metrics = measurement["metrics"]
    assert metrics["explained_pixels_2"] <= metrics["explained_pixels_3"]
    contexts.check_plots(measurement)


def test_an_export_without_labels(exported):
    lines = []
    unlabelled = _context(exported, labelled=False, log=lines.append)
    for name in ("tsne", "transforms"):
        assert protocols.missing(name, unlabelled) is None
    measurement = contexts.measure("tsne", unlabelled, tsne_examples=30)
    assert "tsne_z" not in measurement["arrays"]
    contexts.check_plots(measurement)
    measurement = contexts.measure(
        "kmeans", unlabelled, kmeans_images=1, kmeans_clusters=(2,)
    )
    assert any("only takes 16 pixels" in line for line in lines)
    assert len(measurement["metrics"]) == 4
    contexts.check_plots(measurement)
